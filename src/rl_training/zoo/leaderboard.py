"""`axiomrl leaderboard`: who is best over several envs, with intervals and ties, and who cannot be ranked.

Ranks: contestants are ordered by their statistic. One whose interval overlaps that of the first of a rank
shares this rank (marked `=`), since the data do not tell them apart; the next rank counts all who are above.
A ranking over several envs is of those who are on all of them. Where there are no two such, as among
algorithms for discrete and for continuous actions, every env has a board of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

import numpy as np

from rl_training.errors import ConfigError, nearest
from rl_training.zoo.drift import drift_of
from rl_training.zoo.groups import Group, group_runs
from rl_training.zoo.overview import TITLES
from rl_training.zoo.references import Points, Scale, is_known, points_for
from rl_training.zoo.statistics import (
    STATISTICS,
    Array,
    Estimate,
    difference,
    estimate,
    normalized,
    probability_of_improvement,
)
from rl_training.zoo.summaries import RunSummary

UNFINISHED = ("running", "interrupted")
MAX_NAMED = 3
"""Of more envs that are missing, the number is told."""
NAMES = {**TITLES, "gap": "optimality gap"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant: its place, its score over all envs, and that on each of them."""

    name: str
    rank: int | None
    tied: bool
    score: Estimate | None
    by_env: Mapping[str, Group]
    delta: Estimate | None = None
    probability: Estimate | None = None
    reason: str = ""
    unscored: int = 0
    """Runs of it that ended without a score, such as those that diverged: its rank does not know them."""

    @property
    def runs(self) -> list[RunSummary]:
        """All of its runs that count."""
        return [run for group in self.by_env.values() for run in group.runs]

    @property
    def drifted(self) -> int:
        """How many of them are not what their preset or manifest says."""
        return sum(bool(drift_of(run)) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Board:
    """Everybody, the best first, then those without a rank."""

    entries: Sequence[Entry]
    envs: Sequence[str]
    statistic: str
    confidence: float
    scale: Scale
    points: Points
    baseline: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    parts: Sequence[Board] = ()
    """One board an env, where a ranking over all of them says too little or too much."""

    @property
    def ranked(self) -> list[Entry]:
        """Those with a rank."""
        return [entry for entry in self.entries if entry.rank is not None]

    @property
    def title(self) -> str:
        """What is ranked by."""
        prefix = "" if self.scale == "none" else "normalised "
        return f"{prefix}{NAMES[self.statistic]} [{100 * self.confidence:g} %]"


class Options(TypedDict, total=False):
    """How a board is made."""

    by: Sequence[str]
    statistic: str
    scale: Scale | None
    which: str
    min_seeds: int
    confidence: float
    without_drift: bool


def leaderboard(
    runs: Sequence[RunSummary],
    *,
    baseline: str | None = None,
    per_env: bool = False,
    **options: Unpack[Options],
) -> Board:
    """Rank over every env there is; with `per_env`, or where no two are on all of them, env by env too."""
    whole, parts = _board(runs, **options), []
    if len(whole.envs) > 1 and (per_env or len(whole.ranked) < 2):
        parts = [_board([run for run in runs if run.env_id == env], **options) for env in whole.envs]
    if baseline is None:
        return replace(whole, parts=parts)
    _require_ranked(baseline, [whole, *parts])
    return replace(_with_baseline(whole, baseline), parts=[_with_baseline(part, baseline) for part in parts])


def _board(
    runs: Sequence[RunSummary],
    *,
    by: Sequence[str] = ("algo",),
    statistic: str = "iqm",
    scale: Scale | None = None,
    which: str = "final",
    min_seeds: int = 3,
    confidence: float = 0.95,
    without_drift: bool = False,
) -> Board:
    """Rank by a statistic over every env on the board; scores are normalised when there are several."""
    counted = [run for run in runs if run.status not in UNFINISHED and run.score(which) is not None]
    notes = (
        [f"{len(runs) - len(counted)} unfinished or without a score, left out"]
        if len(counted) < len(runs)
        else []
    )
    if without_drift:
        faithful = [run for run in counted if not drift_of(run)]
        notes += (
            [f"{len(counted) - len(faithful)} with drift, left out"] if len(faithful) < len(counted) else []
        )
        counted = faithful
    contestants = _contestants(counted, by, which)
    ended = [run for run in runs if run.status not in UNFINISHED and run.score(which) is None]
    ended = [run for run in ended if not (without_drift and drift_of(run))]
    unscored = Counter({name: _size(own) for name, own in _contestants(ended, by, which).items()})
    envs = sorted({run.env_id for run in counted})
    chosen: Scale = scale or ("none" if len(envs) <= 1 and statistic != "gap" else "reference")
    pooled = {
        env: [s for run in counted if run.env_id == env and (s := run.score(which)) is not None]
        for env in envs
    }
    points = {} if chosen == "none" else points_for(pooled, chosen)
    if chosen in ("reference", "human") and (unknown := [env for env in envs if not is_known(env, chosen)]):
        notes.append(
            f"no {chosen} points for {', '.join(unknown)}: lowest and highest score of the board instead"
        )
    scored: list[Entry] = []
    unranked: list[Entry] = []
    for name, groups in contestants.items():
        entry = Entry(name, None, False, None, groups, unscored=unscored[name])
        if reason := _unranked(groups, envs, min_seeds):
            unranked.append(replace(entry, reason=reason))
        else:
            strata = _strata(groups, envs, points)
            found = estimate(strata, STATISTICS[statistic], confidence=confidence)
            scored.append(replace(entry, score=found))
    unranked += [
        Entry(name, None, False, None, {}, reason="no run with a score", unscored=count)
        for name, count in unscored.items()
        if name not in contestants
    ]
    entries = _ranked(scored, statistic)
    return Board([*entries, *unranked], envs, statistic, confidence, chosen, points, notes=notes)


def strata_of(entry: Entry, board: Board) -> list[Array]:
    """The scores that are ranked by, one array an env."""
    return _strata(entry.by_env, board.envs, board.points)


def _contestants(runs: Sequence[RunSummary], by: Sequence[str], which: str) -> dict[str, dict[str, Group]]:
    """Name → env → runs."""
    found: dict[str, dict[str, Group]] = {}
    for group in group_runs(runs, [*by, "env"], which=which):
        name = " · ".join(group.values[:-1])
        found.setdefault(name, {})[group.values[-1]] = group
    return found


def _size(groups: Mapping[str, Group]) -> int:
    return sum(len(group.runs) for group in groups.values())


def _unranked(groups: Mapping[str, Group], envs: Sequence[str], min_seeds: int) -> str:
    """Why a contestant cannot be compared with the others, if so."""
    missing = [env for env in envs if env not in groups]
    few = [env for env, group in groups.items() if len({run.seed for run in group.runs}) < min_seeds]
    named = f"not on {', '.join(missing)}"
    reasons = (
        [named if len(missing) <= MAX_NAMED else f"on {len(groups)} of {len(envs)} envs"] if missing else []
    )
    reasons += [f"fewer than {min_seeds} seeds on {', '.join(few)}"] if few else []
    return "; ".join(reasons)


def _strata(groups: Mapping[str, Group], envs: Sequence[str], points: Points) -> list[Array]:
    return [
        normalized(groups[env].scores, *points[env]) if env in points else np.asarray(groups[env].scores)
        for env in envs
    ]


def _ranked(scored: Sequence[Entry], statistic: str) -> list[Entry]:
    """Entries in order, those whose interval overlaps the first of a rank sharing it."""
    sign = 1.0 if statistic == "gap" else -1.0
    order = sorted(scored, key=lambda e: sign * (e.score.value if e.score else 0.0))
    ranks: list[int] = []
    for place, entry in enumerate(order):
        leader = order[ranks[-1] - 1] if ranks else None
        same = leader is not None and leader.score and entry.score and entry.score.overlaps(leader.score)
        ranks.append(ranks[-1] if same else place + 1)
    return [
        replace(entry, rank=rank, tied=ranks.count(rank) > 1)
        for entry, rank in zip(order, ranks, strict=True)
    ]


def _require_ranked(baseline: str, boards: Sequence[Board]) -> None:
    names = list(dict.fromkeys(entry.name for board in boards for entry in board.ranked))
    if baseline not in names:
        for entry in (entry for board in boards for entry in board.entries if entry.name == baseline):
            raise ConfigError(f"command line: --baseline {baseline}: it has no rank: {entry.reason}")
        near = nearest(baseline, names)
        known = f"did you mean {near}?" if near else f"ranked: {', '.join(names) or 'nobody'}"
        raise ConfigError(f"command line: --baseline {baseline}: not on the board; {known}")


def _with_baseline(board: Board, baseline: str) -> Board:
    """The same board with everybody's distance from one of them; as it is where that one has no rank."""
    strata = {entry.name: strata_of(entry, board) for entry in board.ranked}
    if baseline not in strata:
        return board

    def measured(entry: Entry) -> Entry:
        if entry.rank is None or entry.name == baseline:
            return entry
        pair = strata[baseline], strata[entry.name]
        return replace(
            entry,
            delta=difference(*pair, STATISTICS[board.statistic], confidence=board.confidence),
            probability=probability_of_improvement(*pair, confidence=board.confidence),
        )

    return replace(board, entries=[measured(entry) for entry in board.entries], baseline=baseline)
