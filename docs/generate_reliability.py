"""Writes the figures of `docs/reliability.md` from what the fault tests reported.

python docs/generate_reliability.py REPORT.jsonl    update the rows of the tests that have reported

`make test-faults` calls it. Each line of the report is one object: `test`, `case`, `failures`, and counts.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("reliability.md")
BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"
HEAD = "| test | case | trials | of these | failures |\n|---|---|---:|---|---:|"


def main(report: Path) -> None:
    """Put the newest figures into the page."""
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


def render(page: str, lines: list[dict[str, Any]]) -> str:
    """The page with the rows of these reports; rows of tests that have not reported stay."""
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    rows = {
        tuple(row.split(" | ")[:2]): row for row in re.findall(r"^\| (?!test |-)(.*) \|$", old, re.MULTILINE)
    }
    rows |= {(str(line["test"]), str(line["case"])): _row(line) for line in lines}
    table = "\n".join([HEAD, *(f"| {rows[key]} |" for key in sorted(rows))])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _row(line: dict[str, Any]) -> str:
    counts = {k: v for k, v in line.items() if k not in ("test", "case", "failures")}
    name = "trials" if "trials" in counts else "runs"
    trials = counts.pop(name)
    details = ", ".join(f"{value:,} {key}" for key, value in counts.items())
    return f"{line['test']} | {line['case']} | {trials:,} | {details} | {line['failures']}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
