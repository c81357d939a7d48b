"""A profile of round numbers."""

from __future__ import annotations

from typing import Any

from rl_training.envs.config import EnvConfig
from rl_training.experiment.config import TrainConfig
from rl_training.profiling.bench import Speed
from rl_training.profiling.candidates import Candidate
from rl_training.profiling.ceilings import UpdateSpeed
from rl_training.profiling.compare import Comparison, Trial
from rl_training.profiling.profile import Profile

SMALL: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "network": {"hidden": [16]},
    "env": {"backend": "sync"},
    "hyperparams": {"num_steps": 64, "num_minibatches": 2, "update_epochs": 1},
}  # fmt: skip
CONFIG = TrainConfig(algo="ppo", env_id="CartPole-v1", env=EnvConfig(backend="sync"))
PARTS = {"env": 2.5, "inference": 2.0, "transfer": 0.0, "learn": 5.0, "overhead": 0.5}
NATIVE = Candidate("env.backend", "native", "identical", ("env",))
ASYNC = Candidate("env.backend", "async", "identical", ("env",))
THREADS = Candidate("threads", 2, "equivalent", ("learn",))
COMPILE = Candidate("compile", "on", "equivalent", ("learn",))
MORE = Candidate("num_envs", 32, "data", ("env",))


def trial(candidate: Candidate, *ratios: float, start_up_s: float = 0.5, steps: int = 100_000) -> Trial:
    """A comparison with 1,000 steps a second that start in half a second."""
    present = tuple(1000.0 for _ in ratios)
    return Trial(candidate, Comparison(present, tuple(1000.0 * r for r in ratios), steps, start_up_s, 0.5))


def make_profile(*trials: Trial, **others: Any) -> Profile:
    speeds = UpdateSpeed(updates_per_second=400.0, steps_per_second=12_800.0, steps_per_update=32.0)
    watched = Speed(64_000, 10.0)
    return Profile(
        CONFIG, "cpu", watched, PARTS, 2000, 6400.0, 32_000.0, speeds, trials=tuple(trials), **others
    )
