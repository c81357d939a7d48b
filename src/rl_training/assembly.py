"""Puts the parts of a run together: configuration, envs, algorithm, trainer, callbacks, files."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import torch

from rl_training import registry
from rl_training.algorithms.base import Algorithm, Context
from rl_training.envs import choose_backend, evaluation_backend, make_vector_env, probe, shown_by
from rl_training.envs.config import EnvConfig
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.config import TrainConfig, plain, to_dict
from rl_training.experiment.layers import (
    Layer,
    Resolved,
    file_layers,
    keyword_layer,
    preset_layers,
    resolve_layers,
)
from rl_training.experiment.presets import preset_names
from rl_training.policies.encoders import ConvEncoder
from rl_training.runtime.device import available_threads, resolve_device
from rl_training.runtime.on_policy import OnPolicyTrainer  # noqa: F401 - registers its family
from rl_training.runtime.random import derive_seed
from rl_training.types import Spec


@dataclass(slots=True)
class Session:
    """What an algorithm object remembers between lifecycle calls."""

    config: TrainConfig
    spec: Spec
    context: Context
    env: Any = None
    preset: str | None = None
    run_dir: Path | None = None
    """The run that `learn` has written."""
    source: Path | None = None
    """The checkpoint this agent was loaded from, or that `learn` ended with."""
    step: int = 0
    state: dict[str, Any] | None = None
    """The whole state of the run after `learn`, ready to be saved."""
    written_by: Mapping[str, Any] = field(default_factory=dict)
    """Who wrote the checkpoint this agent was loaded from."""
    sampling: torch.Generator | None = None
    """The generator behind `predict(deterministic=False)`."""


def make_session(
    resolved: Resolved, env: Any, spec: Spec | None = None, device: str | None = None
) -> Session:
    """Look at the env and prepare what an algorithm is built from.

    With a `spec` an env is looked at only where one is given, which must be like it.
    """
    # An automatic choice is made once and saved, so that no later release resumes the run with another.
    backend = choose_backend(resolved.config, resolved.config.num_envs, env)
    env_section = dataclasses.replace(resolved.config.env, backend=backend)
    threads = resolved.config.threads or available_threads()
    config = dataclasses.replace(resolved.config, env=env_section, threads=threads)
    target = resolve_device(device or config.device)
    if spec is None:
        spec = probe(config, env)
    elif env is not None:
        name = _env_name(env)
        # No env of a user's is batched, but it may serve to evaluate an agent that was trained in such.
        alone = dataclasses.replace(config, env_id=name, env=dataclasses.replace(env_section, backend="sync"))
        if not config.env.atari.preprocess:  # which no env of a user's can have: who plays in it is told
            require_same_spaces(spec, shown_by(alone, env, like=spec), name)
    check_action_space(config.algo, spec)
    context = Context(
        spec=spec,
        hyperparams=config.hyperparams,
        network=config.network,
        device=target,
        seed=derive_seed(config.seed, "weights"),
        normalize_obs=config.env.normalize_obs,
        precision=config.precision,
    )
    return Session(config, spec, context, env=env, preset=resolved.preset)


def make_test_envs(
    session: Session, count: int, *, seed: int | None = None, render_mode: str | None = None
) -> VectorEnv:
    """Fresh envs to try an agent in, at most `count` and at most as many as evaluations have.

    Without a `seed` their episodes follow from the run's, and are not those that picked the best checkpoint.
    """
    config = session.config
    alone = render_mode is not None or isinstance(session.env, gymnasium.Env)
    backend = evaluation_backend(config)
    envs = make_vector_env(
        config,
        1 if alone else min(count, max(config.evaluation.num_envs, 1)),
        seed=derive_seed(config.seed, "test") if seed is None else seed,
        env=session.env,
        backend="sync" if alone and backend != "batched" else backend,
        device=session.context.device,
        render_mode=render_mode,
    )
    try:
        require_same_spaces(session.spec, envs.spec, config.env_id)
    except EnvError:
        envs.close()
        raise
    return envs


def resolve_config(
    config: Any, keywords: Mapping[str, Any], algo: str | None = None, env: Any = None
) -> Resolved:
    """A configuration from whatever a user passes in Python: a config, mapping, file, preset, keywords."""
    keywords = dict(keywords)
    layers: list[Layer] = []
    if (preset := keywords.pop("preset", None)) is not None:
        layers += preset_layers(preset)
    match config:
        case None:
            pass
        case TrainConfig():
            layers.append(Layer("config", to_dict(config)))
        case Mapping():
            layers += preset_layers(config["preset"]) if "preset" in config else []
            given = {key: plain(value) for key, value in config.items() if key != "preset"}
            layers.append(Layer("config", given))
        case str() | PathLike():
            if not Path(config).exists():
                _refuse_names(str(config))
            layers += file_layers(Path(config))
        case _:
            raise ConfigError(f"expected a TrainConfig, a mapping or a path, got {type(config).__name__}")
    named = [layer.values["algo"] for layer in layers if "algo" in layer.values]
    chosen = keywords.get("algo") or (named[-1] if named else algo)
    if not named and algo is not None:
        layers.insert(0, Layer("algorithm class", {"algo": algo}))
    if env is not None:
        one = {"num_envs": 1} if isinstance(env, gymnasium.Env) else {}
        layers.insert(0, Layer("env", {"env_id": _env_name(env), **one}))
    return resolve_layers([*layers, keyword_layer(keywords, chosen)])


def _refuse_names(given: str) -> None:
    """Where a file is expected that is not there: what has a keyword of its own is told so."""
    if given in gymnasium.registry:
        raise ConfigError(f"{given}: no such file; an env's id goes in as env_id={given!r}")
    if given in preset_names():
        raise ConfigError(f"{given}: no such file; a preset's name goes in as preset={given!r}")


def separate_env(env: Any, keywords: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """`env=` is an env to train on, or (a mapping) the config's section of that name."""
    if isinstance(env, Mapping | EnvConfig):
        return None, {**keywords, "env": env}
    return env, dict(keywords)


def check_action_space(algo: str, spec: Spec) -> None:
    """Refuse an env whose actions the algorithm cannot take, before anything is built."""
    supported = registry.algorithm(algo).actions
    kind = type(spec.action_space).__name__
    if kind not in supported:
        others = [e.id for e in registry.algorithms().values() if kind in e.actions]
        hint = f"; algorithms that do: {', '.join(others)}" if others else ""
        raise ConfigError(
            f"algo: {algo!r} does not support {kind} actions, only {', '.join(supported)}{hint}"
        )


def warn_of_idle_precision(algorithm: Algorithm) -> None:
    """Say so where the precision that was asked for changes nothing."""
    device, precision = algorithm.context.device, algorithm.context.precision
    networks = (algorithm.policy, *algorithm.networks.values())
    if precision == "bf16" and not any(isinstance(m, ConvEncoder) for n in networks for m in n.modules()):
        warnings.warn("precision: bf16 has no effect: there is no image encoder to use it", stacklevel=4)
    if precision == "tf32" and device.type != "cuda":
        warnings.warn(f"precision: tf32 has no effect on a {device.type}, only on a GPU", stacklevel=4)


def require_same_spaces(trained: Spec, offered: Spec, name: str) -> None:
    """Refuse an env that is not what an agent was built for."""
    for what in ("observation_space", "action_space"):
        ours, theirs = getattr(trained, what), getattr(offered, what)
        if ours != theirs:
            raise EnvError(
                f"env {name}: its {what.replace('_', ' ')} is {theirs}, the agent was built for {ours}"
            )


def _env_name(env: Any) -> str:
    """What to call an env that was passed as an object."""
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return str(getattr(env, "__name__", type(env).__name__)).strip("<>") or "custom"
