"""Going on from a checkpoint: with which configuration, in which directory, and how faithfully."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rl_training import registry
from rl_training.algorithms.base import Algorithm
from rl_training.assembly import Session, make_session, require_same_spaces
from rl_training.errors import AxiomError, CheckpointError, ConfigError, EnvError
from rl_training.execution import Start, execute
from rl_training.experiment.checkpoint import Checkpoint, read_checkpoint
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.drift import Change, config_changes, require_allowed
from rl_training.experiment.find import find_checkpoint
from rl_training.experiment.layers import Layer, Resolved, file_layers, replace, resolve_layers
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.run import Run
from rl_training.experiment.runs import CONFIG, run_of
from rl_training.experiment.sections import differing
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import Trainer

OUTPUT_DIR = TrainConfig.output_dir
"""Where a checkpoint without a run of its own goes on, unless told otherwise: never where a file says."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A checkpoint to go on from, the run it belongs to if any, and the configuration to go on with."""

    checkpoint: Checkpoint
    run_dir: Path | None
    resolved: Resolved
    changes: Sequence[Change]

    @property
    def config(self) -> TrainConfig:
        """The configuration to go on with."""
        return self.resolved.config


def open_continuation(path: str | PathLike[str]) -> tuple[Checkpoint, list[Layer]]:
    """The checkpoint meant by a path, and the layers its configuration is made of before any overrides."""
    checkpoint = read_checkpoint(find_checkpoint(path, "latest"))
    run_dir = run_of(checkpoint.path)
    if run_dir is None:
        values = {**to_dict(checkpoint.config), "output_dir": OUTPUT_DIR}
        return checkpoint, [Layer(str(checkpoint.path / CONFIG), values)]
    if not (run_dir / CONFIG).is_file():
        return checkpoint, [Layer(str(checkpoint.path / CONFIG), to_dict(checkpoint.config))]
    try:
        return checkpoint, file_layers(run_dir / CONFIG)
    except ConfigError as error:
        raise _unreadable(error, run_dir) from None


def plan(
    checkpoint: Checkpoint, layers: Sequence[Layer], overrides: Layer, *, allow_drift: bool
) -> Continuation:
    """Put the configuration together, and refuse one that would make it another run."""
    run_dir = run_of(checkpoint.path)
    if run_dir is not None and "output_dir" in overrides.values:
        raise ConfigError(
            f"{overrides.origin}: output_dir: {run_dir} goes on where it is; only a checkpoint that lies "
            f"outside a run goes on elsewhere: copy {checkpoint.path} out of it first"
        )
    try:
        resolved = resolve_layers([*layers, overrides])
    except ConfigError as error:
        if run_dir is not None and _is_wrong(layers):
            raise _unreadable(error, run_dir) from None
        raise
    resolved = _settled(resolved, checkpoint.config)
    changes = config_changes(checkpoint.config, resolved, layers[-1].origin)
    require_allowed(changes, allow_drift=allow_drift, accepted=_accepted(run_dir))
    return Continuation(checkpoint, run_dir, resolved, changes)


def _settled(resolved: Resolved, saved: TrainConfig) -> Resolved:
    """An automatic choice has been made when the run began, and stays."""
    config = resolved.config
    if config.env.backend != "auto":
        return resolved
    env = dataclasses.replace(config.env, backend=saved.env.backend)
    return dataclasses.replace(resolved, config=dataclasses.replace(config, env=env))


def session_of(checkpoint: Checkpoint, config: TrainConfig, env: Any, device: str | None = None) -> Session:
    """Prepare what is needed to rebuild the agent of a checkpoint."""
    module = config.env_id.rpartition(":")[0]
    if env is None and module and module not in sys.modules:
        raise CheckpointError(
            f"{checkpoint.path}: its env {config.env_id!r} would import the module {module!r}, which a file "
            f"must not decide; import it yourself (on the command line: --import {module})"
        )
    return make_session(Resolved(config, {}), env, checkpoint.spec, device)


def session_to_load(checkpoint: Checkpoint, env: Any, device: str) -> Session:
    """A session for a saved agent; should it learn on, then beside its run or in `runs`."""
    run_dir = run_of(checkpoint.path)
    beside = OUTPUT_DIR if run_dir is None else str(run_dir.parent)
    session = session_of(checkpoint, replace(checkpoint.config, output_dir=beside), env, device)
    session.state, session.step, session.source = checkpoint.state, checkpoint.step, checkpoint.path
    session.written_by = checkpoint.written_by
    return session


def algorithm_of(session: Session) -> Algorithm:
    """The algorithm a session describes, with fresh networks."""
    cls = registry.algorithm(session.config.algo).cls
    try:
        algorithm: Algorithm = cls.from_context(session.context)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise ConfigError(f"network: larger than the memory of {session.context.device}: {error}") from None
    algorithm.session = session
    return algorithm


def restore(algorithm: Algorithm, checkpoint: Checkpoint, *, weights_only: bool = False) -> None:
    """Take over what a checkpoint holds, or its weights and nothing else."""
    try:
        algorithm.load_state_dict(checkpoint.state, weights_only=weights_only)
    except (RuntimeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path}: {_misfit(checkpoint, algorithm.session, error)}") from None


def _misfit(checkpoint: Checkpoint, session: Session, error: Exception) -> str:
    """Why weights do not fit, in one line: what they were made for or, where that is the same, the error."""
    held, wanted = (registry.algorithm(cfg.algo).cls for cfg in (checkpoint.config, session.config))
    if held is not wanted:
        return f"holds a {held.__name__} agent, not {wanted.__name__}"
    reasons = []
    try:
        require_same_spaces(checkpoint.spec, session.spec, session.config.env_id)
    except EnvError as other:
        reasons.append(str(other))
    networks = ({"network": to_dict(cfg)["network"]} for cfg in (checkpoint.config, session.config))
    reasons += [
        f"{'.'.join(key)} was {json.dumps(old)}, not {json.dumps(new)}"
        for key, old, new in differing(*networks)
    ]
    reason = " ".join("; ".join(reasons or [str(error)]).split())
    return f"its weights do not fit this configuration: {reason[:400]}{'…' if len(reason) > 400 else ''}"


def go_on(
    algorithm: Algorithm,
    session: Session,
    checkpoint: Checkpoint,
    *,
    run_dir: Path | None,
    changes: Sequence[Change] = (),
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = False,
    extend_schedules: bool = False,
) -> tuple[Run, Trainer]:
    """Train on from a checkpoint, in its run directory or, without one, in a new one."""
    if "trainer" not in checkpoint.state:
        raise CheckpointError(f"{checkpoint.path}: holds an agent but no training state; use --init-from")
    if algorithm.family == "off-policy" and "buffer" not in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path}: was saved without its replay buffer, so that it cannot be resumed; "
            "use --init-from to take its weights into a new run"
        )
    config = session.config
    as_it_was = run_dir is not None and not changes and not extend_schedules
    end = _broken_off_end(run_dir, checkpoint) if as_it_was and run_dir is not None else None
    if checkpoint.step >= config.total_timesteps and end is None:
        raise AxiomError(
            f"{run_dir or checkpoint.path}: already at step {checkpoint.step} of {config.total_timesteps}; "
            "give a larger total (--total-timesteps N) to train on"
        )
    restore(algorithm, checkpoint)  # what does not fit is better known before the run is touched

    def open_run() -> Run:
        if run_dir is None:
            return Run.create(config, session.spec, preset=session.preset)
        return Run.reopen(run_dir, config, session.spec, checkpoint.path)

    start = Start(
        checkpoint.state,
        checkpoint.written_by,
        changes,
        extend_schedules=extend_schedules,
        outcome=checkpoint.outcome if end is not None else None,
        ends_again=end == "failed",
    )
    return execute(algorithm, session, open_run, callbacks=callbacks, progress=progress, start=start)


def _broken_off_end(run_dir: Path, checkpoint: Checkpoint) -> str | None:
    """What a run says of itself whose last checkpoint was written, but not that it has ended.

    `running`: its process died before it could; `failed`: something raised when training was over. Neither
    is meant where the run had ended before its last step, and went on from there: it has steps to train.
    """
    if checkpoint.outcome.get("status") != "completed":
        return None
    try:
        metadata = read_metadata(run_dir)
    except CheckpointError:
        return "running"
    last = _last_resume(metadata)
    if last.get("trains") and last.get("step") == checkpoint.step:
        return None
    status = metadata.get("status")
    return str(status) if status in ("running", "failed") else None


def _accepted(run_dir: Path | None) -> list[Mapping[str, Any]]:
    """The drift that was allowed when the run last went on."""
    try:
        return list(_last_resume(read_metadata(run_dir))["drift"]) if run_dir else []
    except (CheckpointError, LookupError, TypeError):
        return []


def _last_resume(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the run last went on: nothing if it has not, or if its file does not hold what it should."""
    resumes = metadata.get("resumes")
    last = resumes[-1] if isinstance(resumes, list) and resumes else {}
    return last if isinstance(last, Mapping) else {}


def _is_wrong(layers: Sequence[Layer]) -> bool:
    """Whether the configuration cannot be had even as it stands, before any overrides."""
    try:
        resolve_layers(layers)
    except ConfigError:
        return True
    return False


def _unreadable(error: ConfigError, run_dir: Path) -> ConfigError:
    advice = (
        f"{run_dir / CONFIG}: put it right, or remove it to go on with the checkpoint's own configuration"
    )
    return ConfigError([*error.problems, advice])
