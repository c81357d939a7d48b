"""The leaderboard as a page: the table, intervals to scale, and the share of runs above each score."""

from __future__ import annotations

from html import escape

import numpy as np

from rl_training import __version__
from rl_training.zoo.charts import Line, chart
from rl_training.zoo.leaderboard import NAMES, Board, strata_of
from rl_training.zoo.leaderboard_text import board_table, heading, notes, remarks, shown_boards
from rl_training.zoo.page import command as command_box
from rl_training.zoo.page import notice, page, section, table
from rl_training.zoo.series import MAX_SERIES
from rl_training.zoo.statistics import performance_profile
from rl_training.zoo.strips import Strip, strips

POINTS = 101


def leaderboard_page(board: Board, *, command: str = "") -> str:
    """The whole page."""
    names = ", ".join(board.envs)
    facts = f"<li>by <b>{escape(board.title)}</b></li><li>envs <b>{escape(names)}</b></li>"
    head = f'<div class="head"><h1>Leaderboard</h1></div><ul class="facts">{facts}</ul>'
    parts = [f"<header>{head}</header>", _notices(board)]
    parts += [notice("One board an env", [remark], "") for remark in remarks(board)]
    for number, one in enumerate(shown_boards(board)):
        parts += _sections(one, f": {heading(one)}" if board.parts else "", f"-{number}" * bool(number))
    if command:
        parts.append(section("Command", command_box("This page was written by", command), name="command"))
    footer = f"<footer>written by axiomrl {__version__}</footer>"
    return page("Leaderboard", "\n".join(part for part in parts if part) + footer, broad=True)


def _sections(board: Board, of: str, number: str) -> list[str]:
    """A board with its pictures; `of` and `number` tell it apart from others on the page."""
    if not board.ranked:
        return [_table(board, of, number)]
    return [make(board, of, number) for make in (_table, _intervals, _profile)]


def _notices(board: Board) -> str:
    drifted = sum(entry.drifted for entry in board.entries)
    if not drifted:
        return ""
    total = sum(len(entry.runs) for entry in board.entries)
    return notice(
        f"{drifted} of {total} runs are not what their preset says.", ["See the last column."], "interrupted"
    )


def _table(board: Board, of: str, number: str) -> str:
    made = board_table(board)
    rows = []
    for place, (entry, cells) in enumerate(zip(board.entries, made.shown, strict=True)):
        shown = [escape(cell) for cell in cells]
        kind = f"g{place % MAX_SERIES}" if entry.score is not None and place < MAX_SERIES else ""
        shown[0] = f'<span class="rank">{shown[0]}</span>'
        shown[1] = f'<i class="swatch {kind}"></i>{shown[1]}'
        if shown[-1]:
            shown[-1] = f'<span class="warn">{shown[-1]}</span>'
        rows.append(shown)
    numeric = [index for index, column in enumerate(made.columns) if column.numeric]
    content = table([column.title for column in made.columns], rows, numeric=numeric)
    below = "".join(f'<p class="below">{escape(note[:1].upper() + note[1:])}.</p>' for note in notes(board))
    return section(f"Ranking{of}", f'<div class="wide">{content}</div>{below}', name=f"ranking{number}")


def _intervals(board: Board, of: str, number: str) -> str:
    """Everybody's statistic with its interval."""
    rows = [
        Strip(entry.name, f"g{place % MAX_SERIES}" if place < MAX_SERIES else "", entry.score)
        for place, entry in enumerate(board.entries)
        if entry.score is not None
    ]
    decimals = 1 if board.scale == "none" else 3
    content = strips(rows, title=board.title, decimals=decimals)
    name = NAMES[board.statistic]
    return section(f"{name[:1].upper()}{name[1:]}{of}", content, name=f"intervals{number}")


def _profile(board: Board, of: str, number: str) -> str:
    """The share of runs above each score: a line further right and up is better."""
    ranked = [entry for entry in board.entries if entry.score is not None][:MAX_SERIES]
    strata = {entry.name: strata_of(entry, board) for entry in ranked}
    values = np.concatenate([scores for own in strata.values() for scores in own])
    low, high = float(values.min()), float(values.max())
    if low == high:
        return ""
    at = np.linspace(low, high, POINTS)
    lines, keys = [], []
    for place, (name, own) in enumerate(strata.items()):
        profile = performance_profile(own, at, replicates=500)
        share = list(zip(at.tolist(), profile.share.tolist(), strict=True))
        band = list(zip(at.tolist(), profile.low.tolist(), profile.high.tolist(), strict=True))
        lines.append(Line(name, share, f"g{place}", band))
        keys.append(f'<span><i class="swatch g{place}"></i>{escape(name)}</span>')
    label = "return" if board.scale == "none" else "normalised score"
    drawn = chart(
        lines, title="Performance profile", y_label="share of runs above", x_label=label, x_start=low,
        kind="tall", x_name=label,
    )  # fmt: skip
    legend = f'<div class="legend">{"".join(keys)}</div>'
    note = '<p class="below">The share of runs that score above each value, with 95 % bootstrap bands.</p>'
    return section(f"Performance profile{of}", legend + drawn + note, name=f"profile{number}")
