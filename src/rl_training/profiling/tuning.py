"""From what was faster once to what is worth setting: measured again, and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.profiling.candidates import Candidate
from rl_training.profiling.compare import (
    MORE_TURNS,
    Comparison,
    Trial,
    attempt,
    compare,
    try_out,
    winners,
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The settings that were kept, and what they bring together."""

    chosen: tuple[Candidate, ...]
    comparison: Comparison | None
    """None where nothing was kept."""


def leader(trials: Sequence[Trial], *, changes_data: bool) -> Trial | None:
    """The largest gain among what leaves the data alone, or among what does not."""
    found = [t for t in winners(trials) if (t.candidate.effect == "data") == changes_data]
    return found[0] if found else None


def confirmed(
    config: TrainConfig, trials: Sequence[Trial], weights: Mapping[str, Any], seconds: float, say: Say
) -> list[Trial]:
    """The same trials with whatever leads measured again, for longer: the best is partly the luckiest."""
    trials = list(trials)
    for changes_data in (False, True):
        while (first := leader(trials, changes_data=changes_data)) is not None and first.first is None:
            say(f"once more {first.candidate.name}")
            trials[trials.index(first)] = _again(config, first, weights, seconds)
    return trials


def _again(config: TrainConfig, trial: Trial, weights: Mapping[str, Any], seconds: float) -> Trial:
    found = try_out(config, trial.candidate, weights, seconds, trial.at_most, MORE_TURNS)
    before, after = trial.comparison, found.comparison
    assert before is not None
    if after is not None and after.first_start_up_s is None:  # nothing is compiled twice
        after = replace(after, first_start_up_s=before.first_start_up_s)
    return replace(found, comparison=after, first=before)


def combine(
    config: TrainConfig, ranked: Sequence[Trial], weights: Mapping[str, Any], seconds: float, say: Say
) -> Tuned:
    """The best setting, and on top of it each next one that still helps, if all do better than it alone."""
    if not ranked:
        return Tuned((), None)
    best = ranked[0]
    chosen, current = [best.candidate], best.candidate.apply(config)
    for trial in ranked[1:]:
        say(f"trying {trial.candidate.name} with {', '.join(c.name for c in chosen)}")
        if try_out(current, trial.candidate, weights, seconds).is_faster:
            chosen.append(trial.candidate)
            current = trial.candidate.apply(current)
    if len(chosen) > 1:
        say("all of them against the present settings")
        together, _ = attempt(lambda: compare(config, current, weights, seconds, MORE_TURNS))
        if together is not None and together.is_faster and together.gain > best.gain:
            return Tuned(tuple(chosen), together)
    return Tuned((best.candidate,), best.comparison)
