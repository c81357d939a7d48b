"""Puts the parts of a run together: configuration, envs, algorithm, trainer, callbacks, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import torch

from rl_training import registry
from rl_training.algorithms.base import Algorithm, Context
from rl_training.envs import make_vector_env, probe
from rl_training.envs.config import EnvConfig
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import (
    Layer,
    Resolved,
    TrainConfig,
    file_layers,
    keyword_layer,
    preset_layers,
    resolve_layers,
    to_dict,
)
from rl_training.experiment.loggers import RunLogger
from rl_training.experiment.run import Run
from rl_training.runtime.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStopping,
    EvaluationCallback,
    TimeBudget,
)
from rl_training.runtime.device import resolve_device, torch_settings
from rl_training.runtime.evaluator import evaluate as run_episodes
from rl_training.runtime.on_policy import OnPolicyTrainer  # noqa: F401 - registers its family
from rl_training.runtime.progress import ProgressCallback
from rl_training.runtime.random import derive_seed
from rl_training.runtime.signals import stop_on_signals
from rl_training.runtime.trainer import LoopSettings, Trainer
from rl_training.types import Evaluation, Spec


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
    """The checkpoint this agent was loaded from."""
    step: int = 0
    state: dict[str, Any] | None = None
    """The whole state of the run after `learn`, ready to be saved."""
    sampling: torch.Generator | None = None
    """The generator behind `predict(deterministic=False)`."""


def make_session(
    resolved: Resolved, env: Any, spec: Spec | None = None, device: str | None = None
) -> Session:
    """Look at the env (unless its spec is known) and prepare what an algorithm is built from."""
    config = resolved.config
    target = resolve_device(device or config.device)
    spec = probe(config, env) if spec is None else spec
    check_action_space(config.algo, spec)
    context = Context(
        spec=spec,
        hyperparams=config.hyperparams,
        network=config.network,
        device=target,
        seed=derive_seed(config.seed, "weights"),
        normalize_obs=config.env.normalize_obs,
    )
    return Session(config, spec, context, env=env, preset=resolved.preset)


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
            layers.append(Layer("config", {key: value for key, value in config.items() if key != "preset"}))
        case str() | PathLike():
            layers += file_layers(Path(config))
        case _:
            raise ConfigError(f"expected a TrainConfig, a mapping or a path, got {type(config).__name__}")
    named = [layer.values["algo"] for layer in layers if "algo" in layer.values]
    chosen = keywords.get("algo") or (named[-1] if named else algo)
    if not named and algo is not None:
        layers.insert(0, Layer("algorithm class", {"algo": algo}))
    if env is not None:
        layers.insert(0, Layer("env", {"env_id": _env_name(env)}))
    return resolve_layers([*layers, keyword_layer(keywords, chosen)])


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


class EvaluationEnvs:
    """The envs of evaluations during training: made at first use, the same episodes every time."""

    def __init__(self, session: Session, algorithm: Algorithm) -> None:
        self.session, self.algorithm = session, algorithm
        self.seed = derive_seed(session.config.seed, "evaluation")
        self._envs: VectorEnv | None = None

    def __call__(self) -> Evaluation:
        """Evaluate the current policy."""
        settings = self.session.config.evaluation
        if self._envs is None:
            count = min(settings.num_envs, settings.episodes)
            self._envs = make_vector_env(
                self.session.config, count, seed=self.seed, env=self.session.env, backend="sync"
            )
        return run_episodes(
            self.algorithm.policy,
            self._envs,
            settings.episodes,
            device=self.algorithm.context.device,
            deterministic=settings.deterministic,
            seed=self.seed,
        )

    def close(self) -> None:
        """Close the envs."""
        if self._envs is not None:
            self._envs.close()


def standard_callbacks(config: TrainConfig) -> list[Callback]:
    """The callbacks a configuration asks for. Stopping comes first, so that what is saved knows of it."""
    callbacks: list[Callback] = []
    stopping = config.stopping
    if stopping.target_return is not None or stopping.patience is not None:
        callbacks.append(
            EarlyStopping(
                target_return=stopping.target_return,
                patience=stopping.patience,
                min_delta=stopping.min_delta,
            )
        )
    if stopping.max_seconds is not None:
        callbacks.append(TimeBudget(stopping.max_seconds))
    callbacks.append(EvaluationCallback(config.evaluation.every_steps))
    callbacks.append(CheckpointCallback(config.checkpoint.every_steps))
    return callbacks


def execute(
    algorithm: Algorithm,
    session: Session,
    run: Run,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    state: Mapping[str, Any] | None = None,
    extend_schedules: bool = False,
) -> Trainer:
    """Run a trainer from its start, or from `state`, to its end, and leave the run directory in order."""
    config, device = session.config, algorithm.context.device
    try:
        with ExitStack() as stack:
            stack.enter_context(
                torch_settings(device, threads=config.threads, deterministic=config.deterministic)
            )
            envs = stack.enter_context(make_vector_env(config, config.num_envs, env=session.env))
            evaluator = EvaluationEnvs(session, algorithm)
            stack.callback(evaluator.close)
            logger = _logger(run, config, None if state is None else state["trainer"]["global_step"])
            stack.callback(logger.close)
            trainer = _trainer_class(algorithm)(
                algorithm, envs, loop_settings(config), metrics=logger, checkpoints=run, evaluator=evaluator,
                callbacks=[*callbacks, *standard_callbacks(config), *([ProgressCallback()] if progress else [])],
            )  # fmt: skip
            run.on_save = lambda: {
                "latest_metrics": dict(trainer.latest),
                "resume_grade": dict(zip(("grade", "reason"), envs.resume_grade, strict=True)),
            }
            if state is not None:
                run.record_resume(trainer.load_state_dict(state), trainer.global_step)
            if extend_schedules:
                trainer.horizon = config.total_timesteps
            with stop_on_signals(trainer):
                trainer.run()
            session.run_dir, session.step, session.state = run.dir, trainer.global_step, trainer.state_dict()
    except BaseException as error:
        run.fail(error)
        raise
    run.finish("interrupted" if trainer.interrupted else "completed", trainer.stop_reason)
    return trainer


def loop_settings(config: TrainConfig) -> LoopSettings:
    """What the loop needs of a configuration."""
    return LoopSettings(
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        log_every=config.logging.every_steps,
        on_nan=config.on_nan,
        reward_scale=config.env.reward_scale,
        normalize_reward=config.env.normalize_reward,
        clip_reward=config.env.clip_reward,
    )


def _trainer_class(algorithm: Algorithm) -> type[Trainer]:
    return Trainer.families[algorithm.family]


def _logger(run: Run, config: TrainConfig, resume_step: int | None) -> RunLogger:
    return RunLogger(
        run.dir,
        tensorboard=config.logging.tensorboard,
        wandb=config.logging.wandb,
        csv_export=config.logging.csv,
        config=to_dict(config),
        resume_step=resume_step,
    )


def _env_name(env: Any) -> str:
    """What to call an env that was passed as an object."""
    if isinstance(env, gymnasium.Env):
        return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return str(getattr(env, "__name__", type(env).__name__)).strip("<>") or "custom"
