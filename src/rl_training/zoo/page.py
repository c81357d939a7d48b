"""The frame of every HTML report: one file that loads nothing, with the pieces its sections share."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


def page(title: str, body: str, *, media: bool = False, broad: bool = False) -> str:
    """A complete document. Its content policy forbids every load and every script but our own.

    With `media`, videos may be in it, inside the file itself; `broad` is for pages of wide tables.
    """
    style, script = _asset("report.css"), _asset("report.js")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    wide = ' class="broad"' if broad else ""
    policy += "; media-src data:" if media else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main{wide}>\n{body}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def section(title: str, content: str, *, summary: str | None = None, name: str = "") -> str:
    """A titled card; with a `summary` it is folded until asked for."""
    if summary is None:
        return f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'
    head = f'<summary><h2>{escape(title)}</h2><span class="muted">{escape(summary)}</span></summary>'
    return f'<section id="{name}"><details>{head}{content}</details></section>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already."""
    right = set(numeric)
    kind = [' class="num"' if index in right else "" for index in range(len(columns))]
    head = "".join(f"<th{kind[i]}>{escape(column)}</th>" for i, column in enumerate(columns))
    lines = ("".join(f"<td{kind[i]}>{cell}</td>" for i, cell in enumerate(row)) for row in rows)
    slack = len(columns) - 1 in right  # the last column takes the width left over: never a number
    body = "".join(f"<tr>{line}{'<td></td>' * slack}</tr>" for line in lines)
    head += "<th></th>" * slack
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def figures(cells: Iterable[tuple[str, str, str]]) -> str:
    """The few numbers that matter: each a label, a value and a note, all plain text."""
    items = "".join(
        f'<div><dt>{escape(label)}</dt><dd class="value">{escape(value)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for label, value, note in cells
    )
    return f'<dl id="figures" class="figures">{items}</dl>'


def pairs(title: str, items: Iterable[tuple[str, str]]) -> str:
    """A titled list of names and values, both plain text."""
    rows = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in items)
    return f"<div><h3>{escape(title)}</h3><dl>{rows}</dl></div>"


def command(label: str, text: str) -> str:
    """A command to copy."""
    button = '<button type="button" hidden>Copy</button>'
    return f'<div class="command"><p>{escape(label)}</p><div><pre>{escape(text)}</pre>{button}</div></div>'


def notice(title: str, lines: Sequence[str], tone: str = "") -> str:
    """Something the reader must know before the figures."""
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<div class="notice {tone}"><b>{escape(title)}</b>{text}</div>'


def _asset(name: str) -> str:
    return (resources.files("rl_training") / "zoo" / "assets" / name).read_text("utf-8")
