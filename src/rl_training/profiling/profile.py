"""A minute of training, taken apart: where the time goes, what the limits are, and what would be faster."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from rl_training.assembly import make_session, resolve_config
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import Resolved
from rl_training.profiling.bench import Bench, Speed, prepared
from rl_training.profiling.candidates import WORTHWHILE, Candidate, candidates
from rl_training.profiling.ceilings import UpdateSpeed, env_speed, update_speed
from rl_training.profiling.compare import MORE_TURNS, TURNS, Trial, attempt, try_out, winners
from rl_training.profiling.tuning import Say, Tuned, combine, confirmed, leader
from rl_training.runtime.device import available_threads
from rl_training.runtime.stopwatch import measured, updating

CEILING, TRIAL = 1 / 20, 1 / 20
"""What a ceiling and a candidate take of the time that training is watched for."""


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
    env_steps_per_second: float | None = None
    """None, like `update_speed`, where it could not be measured."""
    update_speed: UpdateSpeed | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    """Why of the ceilings of `env` and `updates` one could not be measured."""
    sampler: Mapping[str, float] = field(default_factory=dict)
    """What a sampler did meanwhile, in seconds, if experience is collected by one."""
    trials: tuple[Trial, ...] = ()
    tuned: Tuned | None = None
    complete: bool = True
    """False: it was stopped before everything was tried."""

    @property
    def shares(self) -> dict[str, float]:
        """Each part of the whole."""
        return shares_of(self.parts)

    @property
    def sampler_shares(self) -> dict[str, float]:
        """What of its own time a sampler spends on what."""
        return shares_of(self.sampler)

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
        return leader(self.trials, changes_data=changes_data) if self.complete else None

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
    *_, found = stages(resolved, seconds=seconds, autotune=autotune, change_data=change_data)
    return found


def stages(
    resolved: Resolved,
    *,
    seconds: float,
    autotune: bool = False,
    change_data: bool = False,
    say: Say = lambda _: None,
) -> Iterator[Profile]:
    """`profile` of a configuration that is resolved: all that is known, again after each thing measured.

    Whoever stops it has what was known by then. `say` is told what is going on.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds: must be more than 0, got {seconds}")
    if resolved.config.learners > 1:
        raise ConfigError(
            "learners: a profile is of one; set learners: 1, what several would bring is tried by itself"
        )
    session = make_session(Resolved(prepared(resolved.config), {}), None)
    config = session.config
    found, weights, possible, apart = yield from _watched(config, seconds, say)
    turn = seconds * TRIAL / TURNS
    worth = [c for c in possible if c.largest_gain(found.shares) >= WORTHWHILE]
    trials = [Trial(c, skipped="it could not bring anything") for c in possible if c not in worth]
    for number, candidate in enumerate(worth, 1):
        say(f"trying {number}/{len(worth)}: {candidate.name}")
        at_most = candidate.largest_gain(found.shares) if apart else inf
        trials.append(try_out(config, candidate, weights, turn, at_most))
        yield replace(found, trials=tuple(trials))
    trials = confirmed(config, trials, weights, turn, say)
    tuned = None
    if autotune:
        allowed = winners([t for t in trials if change_data or t.candidate.effect != "data"])
        tuned = combine(config, allowed, weights, turn, say)
    yield replace(found, trials=tuple(trials), tuned=tuned, complete=True)


def _watched(
    config: TrainConfig, seconds: float, say: Say
) -> Generator[Profile, None, tuple[Profile, Mapping[str, Any], list[Candidate], bool]]:
    """Training itself and its ceilings; what it has learnt by then, what there is to try, and whether the
    shares of its parts are those of a run."""
    say(f"training {config.algo} on {config.env_id} for {seconds:g} s")
    with Bench(config) as bench:
        start_up, device = bench.warm_up(in_parts=True), bench.device
        modes = bench.compile_modes()
        possible = candidates(config, device, available_threads(), modes)
        compiles = any(mode.startswith("compiled") for mode in modes.values())
        say(_outlook(seconds, start_up, len(possible), compiles))
        with measured(bench.trainer) as watch:
            steps = bench.run(seconds).steps
        speed = Speed(steps, watch.total)
        weights = copy.deepcopy(bench.trainer.algorithm.state_dict())
        iterations, made = watch.calls["iterate"], watch.calls[updating(bench.trainer)[1]]
        unwatched = bench.run(seconds * CEILING) if device.type == "cuda" else speed
        found = Profile(
            config, str(device), speed, watch.seconds, made, unwatched.per_second,
            sampler=watch.sampler, complete=False,
        )  # fmt: skip
        yield found
        say("envs and updates on their own")
        envs, no_envs = attempt(lambda: env_speed(bench, seconds * CEILING))
        updates, no_updates = attempt(
            lambda: update_speed(bench, made / iterations, steps / iterations, seconds * CEILING)
        )
        problems = {name: text for name, text in (("env", no_envs), ("updates", no_updates)) if text}
        found = replace(found, env_steps_per_second=envs, update_speed=updates, problems=problems)
        yield found
        # On a GPU shares are those of waiting for every part, and envs that are tensors may be compiled with
        # the policy: a run is another computation there.
        trainer = bench.trainer
        fused = trainer.updates.compiles and trainer.collector.stepping.tensors
    return found, weights, possible, device.type == "cpu" and not fused


def _outlook(seconds: float, start_up: float, settings: int, compiles: bool) -> str:
    """How long it will take, about: those that lead are measured twice."""
    again = seconds * TRIAL * MORE_TURNS / TURNS
    trials = 2 * (settings * (seconds * TRIAL + start_up) + 2 * (again + start_up))
    total = seconds * (1 + 2 * CEILING) + trials
    about = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"
    longer = ", more if any is compiled" if compiles else ""
    return f"up to {settings} other settings next: about {about} in all{longer}"


def shares_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part of all of them together."""
    total = max(sum(parts.values()), 1e-9)
    return {part: seconds / total for part, seconds in parts.items()}
