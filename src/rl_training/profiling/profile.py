"""A minute of training, taken apart: where the time goes, what the limits are, and what would be faster."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rl_training.assembly import make_session, resolve_config
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import Resolved
from rl_training.profiling.bench import Bench, Speed, prepared
from rl_training.profiling.candidates import EFFECTS, WORTHWHILE, Candidate, candidates
from rl_training.profiling.ceilings import UpdateSpeed, env_speed, update_speed
from rl_training.profiling.compare import Comparison, Trial, compare, try_out, winners
from rl_training.runtime.device import available_threads
from rl_training.runtime.stopwatch import measured, updating

CEILING, TRIAL = 1 / 20, 1 / 20
"""What a ceiling and a candidate take of the time that training is watched for."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The settings that were kept, and what they bring together."""

    chosen: tuple[Candidate, ...]
    comparison: Comparison | None
    """None where nothing was kept."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one configuration."""

    config: TrainConfig
    """As a run would have it: what was left open is decided."""
    device: str
    speed: Speed
    parts: Mapping[str, float]
    """Seconds by part; they add up to the time of `speed`."""
    updates: int
    steps_per_second: float
    """What training reached; on a GPU when nobody watched, since watching means waiting there."""
    env_steps_per_second: float
    update_speed: UpdateSpeed
    sampler: Mapping[str, float] = field(default_factory=dict)
    """What a sampler did meanwhile, in seconds, if experience is collected by one."""
    trials: tuple[Trial, ...] = ()
    tuned: Tuned | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Each part of the whole."""
        return _shares(self.parts)

    @property
    def sampler_shares(self) -> dict[str, float]:
        """What of its own time a sampler spends on what."""
        return _shares(self.sampler)

    @property
    def longest(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def limit(self) -> str:
        """What would have to be faster: the part that takes longest, or what keeps a sampler busy."""
        if self.longest != "wait":
            return self.longest
        return "sampler " + max(("env", "inference"), key=lambda part: self.sampler.get(part, 0.0))

    def best(self, *, changes_data: bool) -> Trial | None:
        """The largest gain among what leaves the data alone, or among what does not."""
        found = [t for t in winners(self.trials) if (t.candidate.effect == "data") == changes_data]
        return found[0] if found else None

    def settings(self) -> dict[str, Any]:
        """The present value of everything that a candidate may change."""
        config = self.config
        return {
            "num_envs": config.num_envs,
            "env.backend": config.env.backend,
            "threads": config.threads,
            "device": self.device,
            "compile": config.compile,
            "collection": config.collection,
            "learners": config.learners,
        }


def profile(
    config: Any = None,
    *,
    seconds: float = 60.0,
    autotune: bool = False,
    change_data: bool = False,
    **overrides: Any,
) -> Profile:
    """Train for a while without leaving a run, and measure what training is limited by and what would help.

    `config` and `overrides` are those of `train`. With `autotune` faster settings are combined, with
    `change_data` also those that change what the algorithm learns from.
    """
    resolved = resolve_config(config, overrides)
    return measure(resolved, seconds=seconds, autotune=autotune, change_data=change_data)


def measure(
    resolved: Resolved,
    *,
    seconds: float,
    autotune: bool = False,
    change_data: bool = False,
    say: Say = lambda _: None,
) -> Profile:
    """`profile` of a configuration that is resolved; `say` is told what is going on."""
    if not seconds > 0:
        raise ConfigError(f"seconds: must be more than 0, got {seconds}")
    if resolved.config.learners > 1:
        raise ConfigError(
            "learners: a profile is of one; set learners: 1, what several would bring is tried by itself"
        )
    session = make_session(Resolved(prepared(resolved.config), {}), None)
    config, device = session.config, session.context.device
    say(f"training {config.algo} on {config.env_id} for {seconds:g} s")
    with Bench(config) as bench:
        bench.warm_up(in_parts=True)
        with measured(bench.trainer) as watch:
            steps = bench.run(seconds).steps
        speed = Speed(steps, watch.total)
        weights, modes = copy.deepcopy(bench.trainer.algorithm.state_dict()), bench.compile_modes()
        iterations, made = watch.calls["iterate"], watch.calls[updating(bench.trainer)[1]]
        unwatched = bench.run(seconds * CEILING) if device.type == "cuda" else speed
        say("envs and updates on their own")
        found = Profile(
            config,
            str(device),
            speed,
            watch.seconds,
            made,
            unwatched.per_second,
            env_speed(bench, seconds * CEILING),
            update_speed(bench, made / iterations, steps / iterations, seconds * CEILING),
            watch.sampler,
        )
    trials = []
    for candidate in candidates(config, device, available_threads(), modes):
        if candidate.largest_gain(found.shares) < WORTHWHILE:
            trials.append(Trial(candidate, skipped="it could not bring anything"))
            continue
        say(f"trying {candidate.name}")
        trials.append(try_out(config, candidate, weights, seconds * TRIAL))
    tuned = None
    if autotune:
        allowed = [t for t in trials if change_data or t.candidate.effect != "data"]
        tuned = _combine(config, winners(allowed), weights, seconds * TRIAL, say)
    return replace(found, trials=tuple(trials), tuned=tuned)


def _combine(
    config: TrainConfig, ranked: list[Trial], weights: Mapping[str, Any], seconds: float, say: Say
) -> Tuned:
    """The best setting, and on top of it each next one that still helps, if all do better than it alone."""
    chosen: list[Candidate] = []
    current, comparison = config, None
    for trial in ranked:
        if chosen:
            say(f"trying {trial.candidate.name} with {', '.join(c.name for c in chosen)}")
            trial = try_out(current, trial.candidate, weights, seconds)
        if trial.is_faster:
            chosen.append(trial.candidate)
            current, comparison = trial.candidate.apply(current), trial.comparison
    if len(chosen) > 1:
        say("all of them against the present settings")
        try:
            comparison = compare(config, current, weights, seconds)
        except AxiomError:
            comparison = None
        if comparison is None or not comparison.is_faster or comparison.gain <= ranked[0].gain:
            return Tuned((ranked[0].candidate,), ranked[0].comparison)
    return Tuned(tuple(chosen), comparison)


def to_data(profile: Profile) -> dict[str, Any]:
    """A profile as plain data, for `--json`."""
    speed, updates, tuned = profile.speed, profile.update_speed, profile.tuned
    best, other = profile.best(changes_data=False), profile.best(changes_data=True)
    return {
        "algo": profile.config.algo,
        "env_id": profile.config.env_id,
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
            "env": {"steps_per_second": profile.env_steps_per_second},
            "updates": {
                "steps_per_second": updates.steps_per_second,
                "updates_per_second": updates.updates_per_second,
                "steps_per_update": updates.steps_per_update,
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


def _shares(parts: Mapping[str, float]) -> dict[str, float]:
    total = max(sum(parts.values()), 1e-9)
    return {part: seconds / total for part, seconds in parts.items()}


def _with_shares(parts: Mapping[str, float]) -> dict[str, dict[str, float]]:
    shares = _shares(parts)
    return {part: {"seconds": seconds, "share": shares[part]} for part, seconds in parts.items()}


def _trial(trial: Trial) -> dict[str, Any]:
    candidate = trial.candidate
    return {
        "key": candidate.key,
        "value": candidate.value,
        "effect": candidate.effect,
        "note": candidate.note or EFFECTS[candidate.effect],
        **_comparison(trial.comparison),
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
        "present_start_up_s": found and found.present_start_up_s,
        "run_ratio": found and found.gain,
        "pays_from_step": found and found.pays_from,
    }
