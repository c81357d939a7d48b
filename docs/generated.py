"""What the generators of pages share: the part of a page that is not written by hand, and their command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

BEGIN, END = "<!-- begin generated -->", "<!-- end generated -->"


def generated_part(page: str) -> str:
    """What stands between the marks now."""
    return page.split(BEGIN)[1].split(END)[0]


def with_generated(page: str, text: str) -> str:
    """The page with its generated part replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def bring_up_to_date(path: Path, render: Callable[[str], str]) -> int:
    """Rewrite a page, or with `--check` say whether it needs it; the exit status."""
    page = path.read_text(encoding="utf-8")
    fresh = render(page)
    if "--check" in sys.argv[1:]:
        print("up to date" if fresh == page else f"{path} is out of date: run python {sys.argv[0]}")
        return int(fresh != page)
    path.write_text(fresh, encoding="utf-8")
    return 0
