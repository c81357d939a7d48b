"""The leaderboard in words and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_training.experiment.files import to_json
from rl_training.zoo import formatting as fmt
from rl_training.zoo.leaderboard import Board, Entry
from rl_training.zoo.overview import score_text
from rl_training.zoo.statistics import Estimate
from rl_training.zoo.tables import Column, Table

MAX_ENVS = 6
"""With more of them, columns for each would not fit."""


def board_table(board: Board) -> Table:
    """One row a contestant."""
    single = len(board.envs) == 1
    columns = [Column("rank", "rank"), Column("name", "name", numeric=False), Column("score", board.title)]
    if board.baseline is not None:
        columns += [Column("delta", f"Δ {board.baseline}"), Column("probability", f"P(> {board.baseline})")]
    shown_envs = [] if single or len(board.envs) > MAX_ENVS else list(board.envs)
    columns += [Column(f"env:{env}", env) for env in shown_envs]
    columns += [Column("runs", "runs"), Column("notes", "", numeric=False)]
    rows = []
    for entry in board.entries:
        row = [rank_text(entry), entry.name, _share_text(entry.score, board)]
        if board.baseline is not None:
            row += [_share_text(entry.delta, board, sign=True), _percent(entry.probability)]
        row += [
            score_text(entry.by_env[env].score) if env in entry.by_env else fmt.NONE for env in shown_envs
        ]
        rows.append([*row, str(len(entry.runs)), _remarks(entry)])
    return Table(columns, rows, [entry_data(entry) for entry in board.entries])


def entry_data(entry: Entry) -> dict[str, Any]:
    """A contestant for programs."""
    data: dict[str, Any] = {
        "name": entry.name,
        "rank": entry.rank,
        "tied": entry.tied,
        **_bounds("", entry.score),
    }
    data |= _bounds("delta", entry.delta) | _bounds("probability", entry.probability)
    data |= {
        "runs": len(entry.runs),
        "unscored_runs": entry.unscored,
        "drifted_runs": entry.drifted,
        "reason": entry.reason or None,
    }
    for env, group in entry.by_env.items():
        data |= {f"{env}": group.score.value if group.score else None}
    return data


def rank_text(entry: Entry) -> str:
    """`1`, `2=` for one of several, or a dash."""
    return fmt.NONE if entry.rank is None else f"{entry.rank}{'=' * entry.tied}"


def shown_boards(board: Board) -> list[Board]:
    """The boards that say something: the whole, unless it ranks no two, and those of single envs."""
    return [*([board] if not board.parts or len(board.ranked) > 1 else []), *board.parts]


def as_text(board: Board) -> str:
    """The tables, and what must be known of them."""
    return _listed(board, lambda one: board_table(one).text(), title="", note="\n")


def as_markdown(board: Board) -> str:
    """The same for GitHub."""
    return _listed(board, lambda one: board_table(one).markdown(), title="### ", note="\n- ")


def _listed(board: Board, drawn: Callable[[Board], str], *, title: str, note: str) -> str:
    """One board after the other, each with what must be known of it."""
    parts = []
    for one in shown_boards(board):
        head = f"{title}{heading(one)}\n{chr(10) if title else ''}" if board.parts else ""
        parts.append(head + drawn(one) + "".join(f"{note}{line}" for line in notes(one)))
    return "\n\n".join(part.rstrip("\n") for part in [*parts, *remarks(board)]) + "\n"


def as_csv(board: Board) -> str:
    """One line a contestant and board."""
    tables = [(heading(one), board_table(one)) for one in shown_boards(board)]
    rows = [{"board": name, **row} for name, table in tables for row in table.data]
    return Table(tables[0][1].columns, [], rows).csv()


def as_json(board: Board) -> str:
    """Everything."""
    return to_json({**_data(board), "by_env": [_data(part) for part in board.parts]}, indent=1) + "\n"


def heading(board: Board) -> str:
    """What a board is about, among others."""
    return board.envs[0] if len(board.envs) == 1 else f"all {len(board.envs)} envs"


def remarks(board: Board) -> list[str]:
    """Why there is a board an env."""
    if not board.parts or len(board.ranked) > 1:
        return []
    return [f"no two are ranked on all of the {len(board.envs)} envs: one board an env"]


def _data(board: Board) -> dict[str, Any]:
    return {
        "statistic": board.statistic, "confidence": board.confidence, "normalize": board.scale,
        "points": {env: {"zero": low, "one": high} for env, (low, high) in board.points.items()},
        "envs": list(board.envs), "baseline": board.baseline, "notes": list(board.notes),
        "entries": [entry_data(entry) for entry in board.entries],
    }  # fmt: skip


def _share_text(score: Estimate | None, board: Board, *, sign: bool = False) -> str:
    """Normalised scores with three decimals, raw ones as everywhere."""
    if score is None:
        return fmt.NONE
    signed = fmt.plus if sign else str
    if board.scale == "none":
        return signed(score_text(score))
    value = signed(fmt.number(score.value, 3))
    if score.low is None or score.high is None:
        return value
    return f"{value} [{fmt.number(score.low, 3)}, {fmt.number(score.high, 3)}]"


def _percent(share: Estimate | None) -> str:
    return fmt.NONE if share is None else fmt.chance(share.value, share.low, share.high)


def _remarks(entry: Entry) -> str:
    drift = f"drift in {entry.drifted} of {len(entry.runs)}" if entry.drifted else ""
    lost = f"{entry.unscored} more without a score" if entry.unscored and entry.runs else ""
    return "; ".join(text for text in (entry.reason, lost, drift) if text)


def _bounds(name: str, score: Estimate | None) -> dict[str, float | None]:
    prefix = f"{name}_" if name else ""
    if score is None:
        return {name or "score": None, f"{prefix}low": None, f"{prefix}high": None}
    return {name or "score": score.value, f"{prefix}low": score.low, f"{prefix}high": score.high}


def notes(board: Board) -> list[str]:
    """What must be known of the numbers."""
    lines = list(board.notes)
    if len(board.envs) > 1 and not board.parts and len(board.ranked) < len(board.entries):
        lines.append("--per-env also ranks those who are not on every env")
    if any(entry.tied for entry in board.entries):
        lines.append("= shares its rank: the interval overlaps that of the first of the rank")
    if board.points:
        shown = ", ".join(
            f"{env} {fmt.number(low)} to {fmt.number(high)}" for env, (low, high) in board.points.items()
        )
        lines.append(f"0 to 1 is: {shown}")
    return lines
