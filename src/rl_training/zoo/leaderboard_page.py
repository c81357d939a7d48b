"""The leaderboard as a page: the table, intervals to scale, and the share of runs at or above each score."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import numpy as np

from rl_training import __version__
from rl_training.zoo.charts import Line, chart
from rl_training.zoo.leaderboard import NAMES, Board, strata_of
from rl_training.zoo.leaderboard_text import board_table, heading, notes, remarks, shown_boards
from rl_training.zoo.overview import decimals_for
from rl_training.zoo.page import command as command_box
from rl_training.zoo.page import notice, page, section, table
from rl_training.zoo.records import Point
from rl_training.zoo.series import MAX_SERIES, kind_of, left_out
from rl_training.zoo.statistics import Array, performance_profile
from rl_training.zoo.strips import Strip, strips

MAX_STEPS = 200


def leaderboard_page(board: Board, *, command: str = "") -> str:
    """The whole page."""
    names, shown = ", ".join(board.envs), shown_boards(board)
    facts = f"<li>by <b>{escape(shown[0].title)}</b></li><li>envs <b>{escape(names)}</b></li>"
    head = f'<div class="head"><h1>Leaderboard</h1></div><ul class="facts">{facts}</ul>'
    parts = [f"<header>{head}</header>", _notices(board)]
    parts += [notice(f"{remark[:1].upper()}{remark[1:]}.", []) for remark in remarks(board)]
    for number, one in enumerate(shown):
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
        f"{drifted} of {total} runs are not what their preset or manifest says.",
        ["See the last column."],
        "interrupted",
    )


def _table(board: Board, of: str, number: str) -> str:
    made = board_table(board)
    rows = []
    for place, (entry, cells) in enumerate(zip(board.entries, made.shown, strict=True)):
        shown = [escape(cell) for cell in cells]
        kind = kind_of(place) if entry.score is not None else ""
        shown[0] = f'<span class="rank">{shown[0]}</span>'
        shown[1] = f'<span class="entry"><i class="swatch {kind}"></i>{shown[1]}</span>'
        if shown[-1]:
            shown[-1] = f'<span class="warn">{shown[-1]}</span>'
        rows.append(shown)
    numeric = [index for index, column in enumerate(made.columns) if column.numeric]
    content = table([column.title for column in made.columns], rows, numeric=numeric)
    below = "".join(f'<p class="below">{escape(note[:1].upper() + note[1:])}.</p>' for note in notes(board))
    return section(
        f"Ranking{of}", f'<div class="wide ranking">{content}</div>{below}', name=f"ranking{number}"
    )


def _intervals(board: Board, of: str, number: str) -> str:
    """Everybody's statistic with its interval."""
    rows = [
        Strip(entry.name, kind_of(place), entry.score)
        for place, entry in enumerate(board.entries)
        if entry.score is not None
    ]
    decimals = max(decimals_for(row.score) for row in rows) if board.scale == "none" else 3
    content = strips(rows, title=board.title, decimals=decimals)
    name = NAMES[board.statistic]
    return section(f"{name[:1].upper()}{name[1:]}{of}", content, name=f"intervals{number}")


def _profile(board: Board, of: str, number: str) -> str:
    """The share of runs at or above each score: a line further right and up is better."""
    ranked = [entry for entry in board.entries if entry.score is not None]
    strata = [strata_of(entry, board) for entry in ranked[:MAX_SERIES]]
    at = np.unique(np.concatenate([scores for own in strata for scores in own]))
    if len(at) == 1:
        return ""
    if len(at) > MAX_STEPS:
        at = np.linspace(at[0], at[-1], MAX_STEPS)
    lines, keys = [], []
    for place, (entry, own) in enumerate(zip(ranked, strata, strict=False)):
        profile = performance_profile(own, just_below(at), confidence=board.confidence, replicates=500)
        kind = kind_of(place)
        share, low, high = (steps_of(at, part) for part in (profile.share, profile.low, profile.high))
        band = [(x, a, b) for (x, a), (_, b) in zip(low, high, strict=True)]
        lines.append(Line(entry.name, share, kind, band))
        keys.append(f'<span><i class="swatch {kind}"></i>{escape(entry.name)}</span>')
    label = "return" if board.scale == "none" else "normalised score"
    drawn = chart(
        lines, title="Performance profile", y_label="share of runs at or above", x_label=label,
        x_start=float(at[0]), kind="tall", x_name=label, y_has=(0.0, 1.0),
    )  # fmt: skip
    legend = f'<div class="legend">{"".join(keys)}</div>'
    more = f" {note}." if (note := left_out(len(ranked))) else ""
    text = (
        "The share of runs that score at least each value, every env counting the same, with "
        f"{100 * board.confidence:g} % bootstrap bands.{more}"
    )
    below = f'<p class="below">{text}</p>'
    return section(f"Performance profile{of}", f"{legend}{drawn}{below}", name=f"profile{number}")


def just_below(thresholds: Array) -> Array:
    """Thresholds that whatever is at one of these is above: a run at the most there is counts."""
    return np.nextafter(thresholds, -np.inf)


def steps_of(at: Array, values: Array) -> list[Point]:
    """Points of a line that has, between two thresholds, what holds at the upper one."""
    points = list(zip(at.tolist(), values.tolist(), strict=True))
    corners = [((before, y), (x, y)) for (before, _), (x, y) in pairwise(points)]
    return [points[0], *(point for pair in corners for point in pair)]
