"""Where an export comes from: what its description says of the run behind it."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training import api
from rl_training.algorithms.base import Algorithm
from rl_training.assembly import Session
from rl_training.envs.config import EnvConfig
from rl_training.experiment.config import TrainConfig, plain
from rl_training.experiment.find import Which
from rl_training.experiment.fingerprint import read_contents
from rl_training.experiment.runs import run_of

Agent = str | PathLike[str] | Algorithm
"""A run directory, a checkpoint, or an agent that is there already."""

_FOR_LEARNING = (
    "backend", "worker_timeout", "max_worker_restarts", "normalize_obs", "normalize_reward", "clip_reward",
    "reward_scale",
)  # fmt: skip
"""Fields of `env` that do not change what the policy is shown; the observation normaliser is part of it."""


def open_agent(agent: Agent, env: Any, which: Which) -> tuple[Algorithm, Session]:
    """The agent, and what it remembers of its run."""
    algorithm = agent if isinstance(agent, Algorithm) else api.load(agent, env, which=which, device="cpu")
    return algorithm, api.session_behind(algorithm)


def about_run(session: Session) -> dict[str, Any]:
    """Enough to find the run again, and to prove that it is the same."""
    config, source = session.config, session.source
    run_dir = None if source is None else run_of(source)
    return {
        "run_name": None if run_dir is None else run_dir.name,
        "algo": config.algo,
        "env_id": config.env_id,
        "env_kwargs": plain(config.env_kwargs),
        "seed": config.seed,
        "step": session.step,
        "checkpoint": None if source is None else source.name,
        "fingerprint": _fingerprint(source),
    }


def env_section(config: TrainConfig) -> dict[str, Any]:
    """What is wrapped around the env before a policy sees it: fields of `env` that are not the default."""
    default = EnvConfig()
    shown = {f.name: getattr(config.env, f.name) for f in fields(EnvConfig) if f.name not in _FOR_LEARNING}
    return {name: plain(value) for name, value in shown.items() if value != getattr(default, name)}


def _fingerprint(checkpoint: Path | None) -> dict[str, str] | None:
    """What `axiomrl inspect` says of the weights and normalisers."""
    if checkpoint is None:
        return None
    digests = read_contents(checkpoint, only=("policy", "networks", "collector")).fingerprint()
    return {name: value for name, value in digests.items() if name in ("weights", "normalizer")}
