"""What a study came to, in sentences: honest ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rl_training.zoo import formatting as fmt
from rl_training.zoo.configs import shown
from rl_training.zoo.tuning.record import PRESET, StudyRecord

_WORDS = {
    "better": "On held-out seeds the best trial beats the base beyond noise",
    "worse": "On held-out seeds the best trial is worse than the base beyond noise; keep the base",
    "no difference": "On held-out seeds there is no difference from the base beyond noise",
    "cannot tell": "Too few held-out seeds to tell the best trial from the base",
}


def states(record: StudyRecord) -> str:
    """`13 completed, 7 pruned`."""
    known = ("completed", "pruned", "failed", "running")
    return ", ".join(f"{count} {state}" for state in known if (count := record.count(state)))


def counts(record: StudyRecord) -> str:
    """`20 of 20 trials: 13 completed, 7 pruned`."""
    return f"{of_asked(len(record.trials), record.data['asked'])}: {states(record) or 'none yet'}"


def of_asked(there: int, asked: int) -> str:
    """`3 of 20 trials`; of more than were asked for, how many there are."""
    return f"{there} of {asked} trials" if there <= asked else f"{there} trials ({asked} asked for)"


def origin(record: StudyRecord) -> str:
    """What was tuned."""
    base = record.data["base"]
    return str(base.get("preset") or base.get("config") or "the defaults")


def score_words(record: StudyRecord) -> str:
    """What a score is."""
    seeds = len(record.data["seeds"])
    over = f"interquartile mean of {seeds} seeds" if seeds > 1 else "mean return of one seed"
    return f"{over} after {fmt.count(record.data['steps'])} steps"


def train_command(record: StudyRecord) -> list[str]:
    """The words that train with the best configuration."""
    imports = [word for name in record.imports for word in ("--import", name)]
    return ["axiomrl", "train", "--config", str(record.path / PRESET), *imports]


def verdict_sentence(record: StudyRecord) -> str:
    """Whether the best beat the base, and by how much."""
    found = record.validation
    if record.best is None:
        return "No trial has been completed."
    if not found:
        return "The best trial has not been compared with the base on held-out seeds."
    p = min(found["p_worse"], found["p_better"])
    sizes = f"{signed(found['difference'])}{_interval(found, 'low', 'high')} in mean return"
    bounds = found.get("probability_low"), found.get("probability_high")
    probability = fmt.chance(found["probability_of_improvement"], *bounds)
    chance = f"a run of it is better than one of the base with probability {probability}"
    return f"{_WORDS[found['verdict']]} ({fmt.p_equals(p)}): {sizes}; {chance}."


def preset_remarks(record: StudyRecord) -> list[str]:
    """What the file of the best configuration says about itself."""
    best = record.best
    assert best is not None
    score = f"{fmt.number(best.value or 0.0)} ({score_words(record)})"
    return [
        f"Trial {best.number} of the study {record.name}, by `axiomrl tune`, tuned from {origin(record)}.",
        f"It scored {score}, as the best of {len(record.trials)} trials.",
        verdict_sentence(record),
    ]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Dotted keys without their sections, where that leaves no doubt."""
    last = {key: key.rpartition(".")[2] for key in keys}
    return {key: name if list(last.values()).count(name) == 1 else key for key, name in last.items()}


def param(value: Any) -> str:
    """A parameter's value with the digits that matter."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def signed(value: float) -> str:
    """A difference with its sign."""
    return fmt.plus(fmt.number(value))


def _interval(found: Mapping[str, Any], low: str, high: str) -> str:
    if found.get(low) is None or found.get(high) is None:
        return ""
    return f" [{signed(found[low])}, {signed(found[high])}]"
