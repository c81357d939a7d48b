"""What every front door calls: train, resume, evaluate, load."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch

from rl_training import registry
from rl_training.algorithms.base import Algorithm
from rl_training.assembly import (
    Session,
    make_session,
    make_test_envs,
    resolve_config,
    separate_env,
    warn_of_idle_precision,
)
from rl_training.continuation import (
    Continuation,
    algorithm_of,
    go_on,
    open_continuation,
    plan,
    restore,
    session_of,
    session_to_load,
)
from rl_training.envs.observations import batched
from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.execution import execute
from rl_training.experiment.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rl_training.experiment.find import Which, find_checkpoint
from rl_training.experiment.layers import Resolved, keyword_layer, replace
from rl_training.experiment.loggers import summarize
from rl_training.experiment.run import Run
from rl_training.policies.obs import to_tensor
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import evaluate as run_episodes
from rl_training.runtime.evaluator import evaluation_mode
from rl_training.runtime.random import derive_seed
from rl_training.runtime.trainer import Trainer
from rl_training.runtime.video import VideoWriter
from rl_training.types import Obs, PolicyState

AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)
StrPath = str | PathLike[str]
Callbacks = Callback | Sequence[Callback]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a finished run left behind."""

    run_dir: Path
    checkpoint_path: Path
    best_checkpoint_path: Path | None
    metrics: dict[str, Any]
    status: str
    stop_reason: str | None
    algorithm: Algorithm


def train(
    config: Any = None,
    *,
    env: Any = None,
    callbacks: Callbacks = (),
    init_from: StrPath | None = None,
    progress: bool = False,
    **overrides: Any,
) -> TrainResult:
    """Train from a config, mapping or file and write a run directory.

    `overrides` are fields of the config or of the algorithm's hyperparameters; `preset` names a packaged
    preset to build on; `init_from` starts from the weights of a checkpoint.
    """
    env, keywords = separate_env(env, overrides)
    return start(resolve_config(config, keywords, env=env), env, callbacks, init_from, progress)


def start(
    resolved: Resolved,
    env: Any = None,
    callbacks: Callbacks = (),
    init_from: StrPath | None = None,
    progress: bool = False,
) -> TrainResult:
    """Train a resolved configuration."""
    session = make_session(resolved, env)
    algorithm = algorithm_of(session)
    if init_from is not None:
        restore(algorithm, read_checkpoint(find_checkpoint(init_from)), weights_only=True)
    return _begin(algorithm, session, callbacks, progress)


def resume(
    path: StrPath,
    *,
    extend_schedules: bool = False,
    allow_drift: bool = False,
    env: Any = None,
    callbacks: Callbacks = (),
    progress: bool = False,
    **overrides: Any,
) -> TrainResult:
    """Go on with a run from its latest checkpoint, or from the checkpoint given, in the same directory.

    A checkpoint that lies outside a run goes on in a new run in `output_dir` (default: `runs`). `overrides`
    are as in `train`; those that would make it another run need `allow_drift`.
    """
    env, keywords = separate_env(env, overrides)
    checkpoint, layers = open_continuation(path)
    given = keyword_layer(keywords, keywords.get("algo") or checkpoint.config.algo)
    return resume_planned(
        plan(checkpoint, layers, given, allow_drift=allow_drift),
        env,
        callbacks,
        progress,
        extend_schedules=extend_schedules,
    )


def resume_planned(
    continuation: Continuation,
    env: Any = None,
    callbacks: Callbacks = (),
    progress: bool = False,
    *,
    extend_schedules: bool = False,
) -> TrainResult:
    """Go on as planned."""
    session = session_of(continuation.checkpoint, continuation.config, env)
    return _result(
        *go_on(
            algorithm_of(session),
            session,
            continuation.checkpoint,
            run_dir=continuation.run_dir,
            changes=continuation.changes,
            callbacks=callbacks,
            progress=progress,
            extend_schedules=extend_schedules,
        )
    )


def evaluate(
    path: StrPath,
    *,
    which: Which = "best",
    num_episodes: int = 10,
    seed: int | None = None,
    deterministic: bool | None = None,
    env: Any = None,
    render: bool = False,
    video: StrPath | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Play full episodes with a saved agent; `which` picks the checkpoint of a run directory.

    Unless `deterministic` says otherwise, actions are chosen as in the evaluations of its training.
    """
    algorithm = load(path, env=env, which=which, device=device)
    return evaluate_algorithm(
        algorithm,
        num_episodes=num_episodes,
        seed=seed,
        deterministic=deterministic,
        render=render,
        video=video,
    )


def load(path: StrPath, env: Any = None, *, which: Which = "best", device: str = "auto") -> Algorithm:
    """A trained agent from a run directory or checkpoint, whatever its algorithm."""
    checkpoint = read_checkpoint(find_checkpoint(path, which))
    algorithm = algorithm_of(session_to_load(checkpoint, env, device))
    restore(algorithm, checkpoint)
    return algorithm


# Behind the methods of `Algorithm`.


def open_session(cls: type[Algorithm], config: Any, env: Any, overrides: Mapping[str, Any]) -> Session:
    """Resolve what was passed to an algorithm's constructor."""
    ids = [entry.id for entry in registry.algorithms().values() if entry.cls is cls]
    if not ids:
        raise ConfigError(f"{cls.__name__} is not registered: decorate it with @register_algorithm")
    plain = [i for i in ids if not registry.algorithm(i).hyperparams({})]
    env, keywords = separate_env(env, overrides)
    resolved = resolve_config(config, keywords, (plain or ids)[0], env)
    if resolved.config.algo not in ids:
        raise ConfigError(
            f"algo: {resolved.config.algo!r} is not {cls.__name__}, which is {' or '.join(ids)}"
        )
    return make_session(resolved, env)


def learn(
    algorithm: Algorithm,
    *,
    total_timesteps: int | None,
    callbacks: Callbacks,
    progress: bool,
) -> TrainResult:
    """Train an algorithm object: a first call starts a run, later ones go on with it.

    An agent that was loaded goes on from where it was saved, in a run of its own.
    """
    session = session_behind(algorithm)
    if total_timesteps is not None:
        session.config = replace(session.config, total_timesteps=total_timesteps)
    if session.run_dir is not None:
        checkpoint = read_checkpoint(find_checkpoint(session.run_dir, "latest"))
    elif session.state is not None and "trainer" in session.state:
        assert session.source is not None  # only what was loaded has a state before a run
        checkpoint = Checkpoint(
            session.source, session.step, session.config, session.spec, session.state, session.written_by
        )
    else:
        return _begin(algorithm, session, callbacks, progress)
    return _result(
        *go_on(
            algorithm, session, checkpoint, run_dir=session.run_dir, callbacks=callbacks, progress=progress
        )
    )


def evaluate_algorithm(
    algorithm: Algorithm,
    *,
    num_episodes: int,
    seed: int | None = None,
    deterministic: bool | None = None,
    render: bool = False,
    video: StrPath | None = None,
) -> dict[str, Any]:
    """Play full episodes in fresh envs; by default not those that picked the best checkpoint."""
    try:
        too_few = operator.index(num_episodes) < 1
    except TypeError:
        raise ConfigError(f"num_episodes: must be a whole number, got {num_episodes!r}") from None
    if too_few:
        raise ConfigError(f"num_episodes: must be at least 1, got {num_episodes}")
    session = session_behind(algorithm)
    plain = session.config.evaluation.deterministic if deterministic is None else deterministic
    mode = "human" if render else "rgb_array" if video is not None else None
    with make_test_envs(session, num_episodes, seed=seed, render_mode=mode) as envs:

        def play(on_step: Any = None) -> Any:
            return run_episodes(
                algorithm.policy, envs, num_episodes, device=algorithm.context.device,
                deterministic=plain, seed=envs.seed, on_step=on_step,
                longest=session.config.evaluation.max_episode_steps, env_id=session.config.env_id,
            )  # fmt: skip

        if video is not None:
            with VideoWriter(video, fps=envs.render_fps) as writer:
                evaluation = play(lambda _: writer.write(envs.render()[0]))
        else:
            evaluation = play((lambda _: envs.render()) if render else None)
    source = None if session.source is None else str(session.source)
    return {**summarize(evaluation), "deterministic": plain, "checkpoint": source}


def predict(
    algorithm: Algorithm, obs: Obs, state: PolicyState | None, *, deterministic: bool
) -> tuple[Any, Any]:
    """The env's action for one observation, or for a batch of them."""
    session, device = session_behind(algorithm), algorithm.context.device
    space = session.spec.observation_space
    if session.sampling is None:
        session.sampling = torch.Generator(device).manual_seed(derive_seed(session.config.seed, "predict"))
    batch, is_single = batched(space, obs)
    with torch.inference_mode(), evaluation_mode(algorithm.policy):
        output = algorithm.policy.act(to_tensor(batch, device), state, deterministic, session.sampling)
        actions = algorithm.policy.env_actions(output.actions).cpu().numpy()
    return (actions[0] if is_single else actions), output.state


def save(algorithm: Algorithm, path: StrPath, *, include_buffer: bool) -> None:
    """Write a checkpoint of an algorithm object: after `learn` with all that is needed to go on."""
    session = session_behind(algorithm)
    state = {**(session.state or {}), **algorithm.state_dict()}
    if not include_buffer:
        state = {name: part for name, part in state.items() if name != "buffer"}
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(target, state, config=session.config, spec=session.spec, step=session.step)


def load_as(cls: type[AlgorithmT], path: StrPath, *, env: Any, device: str) -> AlgorithmT:
    """`load`, insisting on the algorithm's class."""
    algorithm = load(path, env, device=device)
    if not isinstance(algorithm, cls):
        raise CheckpointError(f"{path}: holds a {type(algorithm).__name__} agent, not {cls.__name__}")
    return algorithm


def session_behind(algorithm: Algorithm) -> Session:
    """What an algorithm remembers of its run, or an error where it has none."""
    if algorithm.session is None:
        raise AxiomError("this algorithm was built from a bare context; it has no env or config to work with")
    session: Session = algorithm.session
    return session


def _begin(algorithm: Algorithm, session: Session, callbacks: Callbacks, progress: bool) -> TrainResult:
    """Train from step 0 in a new run directory."""
    warn_of_idle_precision(algorithm)

    def create() -> Run:
        return Run.create(session.config, session.spec, preset=session.preset)

    return _result(*execute(algorithm, session, create, callbacks=callbacks, progress=progress))


def _result(run: Run, trainer: Trainer) -> TrainResult:
    checkpoint = run.latest_checkpoint
    assert checkpoint is not None  # a final one is always written
    return TrainResult(
        run_dir=run.dir,
        checkpoint_path=checkpoint,
        best_checkpoint_path=run.best_checkpoint,
        metrics={**trainer.latest, "global_step": trainer.global_step},
        status=run.metadata["status"],
        stop_reason=trainer.stop_reason,
        algorithm=trainer.algorithm,
    )
