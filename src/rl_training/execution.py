"""Runs what `assembly` has put together: envs, trainer, callbacks and run directory, from start to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.assembly import Session
from rl_training.envs import evaluation_backend, make_vector_env
from rl_training.envs.snapshot import Grade, worst
from rl_training.envs.vector import VectorEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.drift import Change
from rl_training.experiment.loggers import RunLogger
from rl_training.experiment.run import Run, Status
from rl_training.experiment.runs import output_folder
from rl_training.participants import loop_settings, other_learners, training_envs
from rl_training.runtime.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStopping,
    EvaluationCallback,
    TimeBudget,
    VideoCallback,
)
from rl_training.runtime.device import torch_settings
from rl_training.runtime.evaluator import evaluate as run_episodes
from rl_training.runtime.progress import ProgressCallback
from rl_training.runtime.random import derive_seed
from rl_training.runtime.signals import stop_on_signals
from rl_training.runtime.team import Team
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.video import VideoWriter, require_video
from rl_training.types import Evaluation


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run that goes on begins: a saved state, who wrote it, and what has been changed since."""

    state: Mapping[str, Any]
    written_by: Mapping[str, Any]
    changes: Sequence[Change] = ()
    extend_schedules: bool = False
    outcome: Mapping[str, Any] | None = None
    """How the run had ended when its process died: there is nothing left to train, only to say so."""
    ends_again: bool = False
    """Whether what comes after training is to be done once more, because it failed."""


class EvaluationEnvs:
    """The envs of evaluations during training: made at first use, the same episodes every time."""

    def __init__(self, session: Session, algorithm: Algorithm) -> None:
        self.session, self.algorithm = session, algorithm
        self.seed = derive_seed(session.config.seed, "evaluation")
        self._envs: VectorEnv | None = None

    def __call__(self) -> Evaluation:
        """Evaluate the current policy."""
        settings = self.session.config.evaluation
        return run_episodes(
            self.algorithm.policy,
            self.open(),
            settings.episodes,
            device=self.algorithm.context.device,
            deterministic=settings.deterministic,
            seed=self.seed,
            longest=settings.max_episode_steps,
            env_id=self.session.config.env_id,
        )

    def open(self) -> VectorEnv:
        """The envs, made if that has not been done."""
        settings = self.session.config.evaluation
        if self._envs is None:
            count = min(settings.num_envs, settings.episodes)
            config = self.session.config
            backend = evaluation_backend(config)
            self._envs = make_vector_env(
                config, count, seed=self.seed, env=self.session.env, backend=backend,
                device=self.algorithm.context.device,
            )  # fmt: skip
        return self._envs

    def record(self, path: Path) -> None:
        """Film the first episode that an evaluation plays."""
        config, policy = self.session.config, self.algorithm.policy
        with (
            make_vector_env(
                config, 1, seed=self.seed, env=self.session.env, backend="sync", render_mode="rgb_array"
            ) as envs,
            VideoWriter(path, fps=envs.render_fps) as writer,
        ):
            run_episodes(
                policy,
                envs,
                1,
                device=self.algorithm.context.device,
                deterministic=config.evaluation.deterministic,
                seed=self.seed,
                on_step=lambda _: writer.write(envs.render()[0]),
                longest=config.evaluation.max_episode_steps,
                env_id=config.env_id,
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
    open_run: Callable[[], Run],
    *,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = False,
    start: Start | None = None,
) -> tuple[Run, Trainer]:
    """Run a trainer from step 0, or from `start`, to its end, and leave the run directory in order.

    The run is opened last: what cannot be trained leaves no trace, and no worker inherits the run's lock.
    """
    config, device = session.config, algorithm.context.device
    chosen = _all_callbacks(callbacks, config, progress)
    with ExitStack() as stack:
        stack.enter_context(
            torch_settings(
                device,
                threads=config.threads,
                deterministic=config.deterministic,
                precision=config.precision,
            )
        )
        envs = stack.enter_context(training_envs(session, algorithm))
        settings = loop_settings(config, scratch=output_folder(config.output_dir))
        Trainer.families[algorithm.family].check(algorithm, envs, settings)
        team = other_learners(session, algorithm)
        if team is not None:
            stack.enter_context(team)
        evaluator = EvaluationEnvs(session, algorithm)
        stack.callback(evaluator.close)
        if config.evaluation.every_steps and config.evaluation.video:
            require_video()
            if evaluation_backend(config) == "batched":
                raise ConfigError(f"evaluation.video: env {config.env_id} exists as tensors only")
        if config.evaluation.every_steps and session.env is not None:
            evaluator.open()  # a user's env that cannot be had twice is better known now
        run = open_run()
        try:
            trainer = _run(algorithm, session, run, envs, evaluator, chosen, start, team)
        except KeyboardInterrupt as error:
            run.finish("interrupted", "interrupted at once")
            error.add_note(run.how_to_go_on())
            raise
        except BaseException as error:
            run.fail(error)
            error.add_note(run.how_to_go_on())
            raise
    status, reason = _outcome(trainer) or ("completed", None)
    run.finish(status, reason)
    return run, trainer


def _run(
    algorithm: Algorithm,
    session: Session,
    run: Run,
    envs: VectorEnv,
    evaluator: EvaluationEnvs,
    callbacks: Sequence[Callback],
    start: Start | None,
    team: Team | None,
) -> Trainer:
    config = session.config
    if config.evaluation.video:
        callbacks = [*callbacks, VideoCallback(evaluator.record, run.dir / "videos")]
    with ExitStack() as stack:
        logger = _logger(run, config, None if start is None else start.state["trainer"]["global_step"])
        stack.callback(logger.close)
        for callback in callbacks:
            if isinstance(callback, ProgressCallback):
                stack.callback(callback.close)
        trainer = Trainer.families[algorithm.family](
            algorithm, envs, loop_settings(config, scratch=run.dir), metrics=logger, checkpoints=run,
            evaluator=evaluator, callbacks=callbacks, seat=None if team is None else team.seat, team=team,
        )  # fmt: skip
        run.on_save = lambda: {
            "latest_metrics": dict(trainer.latest),
            "resources": trainer.resources,
            "compilation": trainer.updates.describe(),
            "resume_grade": dict(zip(("grade", "reason"), _resume_grade(envs, team, session), strict=True)),
        }
        run.outcome = lambda: _outcome(trainer)
        written_by = {} if start is None else _with_mode(start.written_by)
        if written_by and config.compile == "auto":
            trainer.updates.adopt(written_by["compilation"]["updates"])
        run.computed_by = lambda: {"compilation": trainer.updates.surroundings}
        if start is not None:
            grade, changes = trainer.load_state_dict(start.state), list(start.changes)
            if start.extend_schedules:
                before, trainer.horizon = trainer.horizon, config.total_timesteps
                changes.append(Change("schedules", before, trainer.horizon, "extend_schedules", "none"))
            trains = start.outcome is None
            run.record_resume(grade, trainer.global_step, written_by, changes, trains=trains)
            if start.outcome is not None:
                trainer.stop_reason = start.outcome.get("stop_reason")
                trainer.latest.update(run.metadata.get("latest_metrics") or {})
        if start is None or start.outcome is None or start.ends_again:
            with stop_on_signals(trainer):
                trainer.run()
            run.require_saved()
        session.run_dir, session.source = run.dir, run.latest_checkpoint
        session.step, session.state = trainer.global_step, trainer.state_dict()
    return trainer


def _with_mode(written_by: Mapping[str, Any]) -> Mapping[str, Any]:
    """Who wrote a checkpoint, if known, and how updates were computed; at first there was but one way."""
    return {"compilation": {"updates": "eager"}, **written_by} if written_by else {}


def _outcome(trainer: Trainer) -> tuple[Status, str | None] | None:
    """How a run has ended, or None while there is something left to do."""
    if not trainer.finished and trainer.stop_reason is None:
        return None
    stopped_early = trainer.interrupted is not None and not trainer.finished
    return ("interrupted" if stopped_early else "completed"), trainer.stop_reason


def _all_callbacks(
    given: Callback | Sequence[Callback], config: TrainConfig, progress: bool
) -> list[Callback]:
    """The user's callbacks, then those the configuration asks for."""
    users = [given] if isinstance(given, Callback) else list(given)
    for callback in users:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks: expected Callback objects, got {callback!r}")
    return [*users, *standard_callbacks(config), *([ProgressCallback()] if progress else [])]


def _resume_grade(envs: VectorEnv, team: Team | None, session: Session) -> Grade:
    """What a resume from now would give: the envs' own grade, unless the device cannot repeat itself."""
    grade, reason = envs.resume_grade if team is None else worst([envs.resume_grade, team.resume_grade])
    device, deterministic = session.context.device, session.config.deterministic
    if grade == "exact" and device.type != "cpu" and deterministic is not True:
        return "numeric", f"same state, but kernels on {device.type} may differ in the last bits"
    return grade, reason


def _logger(run: Run, config: TrainConfig, resume_step: int | None) -> RunLogger:
    return RunLogger(
        run.dir,
        tensorboard=config.logging.tensorboard,
        wandb=config.logging.wandb,
        csv_export=config.logging.csv,
        config=to_dict(config),
        resume_step=resume_step,
        keep_trying=config.checkpoint.on_error == "continue",
    )
