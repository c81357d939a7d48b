"""Writes the figures of `docs/reliability.md` from what the fault tests reported.

python docs/generate_reliability.py REPORT.jsonl    update the rows of the tests that have reported

`make test-faults` calls it. Each line of the report is one object: `test`, `case`, `trials`, `failures`,
further counts, and the `commit` and `date` of the measurement. Lines of one test and case are added up.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from generated import generated_part, with_generated

PAGE = Path(__file__).with_name("reliability.md")
HEAD = "| test | case | trials | of these | failures | commit | date |\n|---|---|---:|---|---:|---|---|"
WORDS = ("test", "case", "commit", "date")
FIRST = (*WORDS, "trials", "failures")


def main(report: Path) -> None:
    """Put the newest figures into the page."""
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), lines), encoding="utf-8")


def render(page: str, lines: list[dict[str, Any]]) -> str:
    """The page with the rows of these reports; rows of tests that have not reported stay as they were."""
    old = re.findall(r"^\| (?!test |-)(.*) \|$", generated_part(page), re.MULTILINE)
    rows = {tuple(row.split(" | ")[:2]): row for row in old}
    rows |= {key: _row(total) for key, total in _totals(lines).items()}
    table = "\n".join([HEAD, *(f"| {rows[key]} |" for key in sorted(rows))])
    return with_generated(page, table)


def _totals(lines: list[dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Lines of the same test and case added up: a test may report every trial by itself."""
    totals: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in lines:
        total = totals.setdefault((line["test"], line["case"]), {"test": line["test"], "case": line["case"]})
        for name, value in line.items():
            if name in ("commit", "date"):
                total[name] = sorted({*total.get(name, ()), value})
            elif name not in WORDS:
                total[name] = total.get(name, 0) + value
    return totals


def _row(total: dict[str, Any]) -> str:
    details = ", ".join(f"{value:,} {name}" for name, value in total.items() if name not in FIRST)
    commit, date = (", ".join(total[name]) for name in ("commit", "date"))
    cells = (total["test"], total["case"], f"{total['trials']:,}", details, total["failures"], commit, date)
    return " | ".join(map(str, cells))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
