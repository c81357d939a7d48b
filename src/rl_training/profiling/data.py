"""A profile as plain data, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from rl_training.profiling.candidates import EFFECTS
from rl_training.profiling.compare import Comparison, Trial
from rl_training.profiling.profile import Profile, shares_of


def to_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain data, for `--json`."""
    speed, updates, tuned = profile.speed, profile.update_speed, profile.tuned
    best, other = profile.best(changes_data=False), profile.best(changes_data=True)
    return {
        "algo": profile.config.algo,
        "env_id": profile.config.env_id,
        "complete": profile.complete,
        "settings": profile.settings(),
        "training": {
            "steps": speed.steps,
            "updates": profile.updates,
            "seconds": speed.seconds,
            "steps_per_second": profile.steps_per_second,
            "parts": _with_shares(profile.parts),
            "limit": profile.limit,
            "sampler": _with_shares(profile.sampler) if profile.sampler else None,
        },
        "ceilings": {
            "env": {
                "steps_per_second": profile.env_steps_per_second,
                "error": profile.problems.get("env"),
            },
            "updates": {
                "steps_per_second": updates and updates.steps_per_second,
                "updates_per_second": updates and updates.updates_per_second,
                "steps_per_update": updates and updates.steps_per_update,
                "error": profile.problems.get("updates"),
            },
        },
        "candidates": [_trial(trial) for trial in profile.trials],
        "suggestion": None if best is None else _trial(best),
        "suggestion_that_changes_data": None if other is None else _trial(other),
        "autotune": None
        if tuned is None
        else {
            "settings": {candidate.key: candidate.value for candidate in tuned.chosen},
            **_comparison(tuned.comparison),
        },
    }


def _with_shares(parts: Mapping[str, float]) -> dict[str, dict[str, float]]:
    shares = shares_of(parts)
    return {part: {"seconds": seconds, "share": shares[part]} for part, seconds in parts.items()}


def _trial(trial: Trial) -> dict[str, Any]:
    candidate = trial.candidate
    return {
        "key": candidate.key,
        "value": candidate.value,
        "effect": candidate.effect,
        "note": candidate.note or EFFECTS[candidate.effect],
        **_comparison(trial.comparison),
        "at_most": trial.at_most if trial.at_most < inf else None,
        "first_ratio": trial.first and trial.first.ratio,
        "faster": trial.is_faster,
        "error": trial.error or None,
        "skipped": trial.skipped or None,
    }


def _comparison(found: Comparison | None) -> dict[str, Any]:
    return {
        "steps_per_second": found and found.speed,
        "present_steps_per_second": found and found.present_speed,
        "ratio": found and found.ratio,
        "start_up_s": found and found.start_up_s,
        "first_start_up_s": found and found.first_start_up_s,
        "present_start_up_s": found and found.present_start_up_s,
        "run_ratio": found and found.gain,
        "pays_from_step": found and found.pays_from,
    }
