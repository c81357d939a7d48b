"""Learners that train together: what breaks in one is an error of the run, and none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler import assert_fails_and_leaves_nothing, assert_resumes_exactly, settings, start
from watching import alive, children_of, shared_memory, soon

import rl_training
from rl_training.envs import episode_seed
from rl_training.errors import AxiomError, EnvError, NonFiniteError
from rl_training.runtime.random import derive_seed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc and /dev/shm")

TOGETHER: dict[str, Any] = {"collection": "serial", "learners": 2, "num_envs": 4}


def fragile(output_dir: Path, fault: str) -> dict[str, Any]:
    """Breaks in the second rollout of the second learner, in an episode that only it plays."""
    kwargs = {"fault": fault, "at": 14, "seed": episode_seed(derive_seed(0, "learner", 1), 0, 1)}
    never = {"every_steps": 0}
    return settings(
        output_dir, env_id="axiom/Fragile-v0", env_kwargs=kwargs, checkpoint=never, **TOGETHER
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (
            "raise",
            EnvError,
            r"learner 1: env 0 \(axiom/Fragile-v0, episode seed \d+\): step\(\) raised RuntimeError",
        ),
        (
            "nan",
            NonFiniteError,
            r"learner 1: the observation of env 0 at step \d+ .* is NaN .* at step 64\)",
        ),
        ("die", EnvError, "learner 1 died with exit code 7"),
        ("segfault", EnvError, "learner 1 was killed by SIGSEGV"),
    ],
)
def test_what_breaks_in_another_learner_is_raised_in_the_first(
    fault: str, error: type[AxiomError], message: str, tmp_path: Path
) -> None:
    assert_fails_and_leaves_nothing(fragile(tmp_path, fault), error, message)


class Kill(rl_training.Callback):
    """Kills a learner of three: the others are in the middle of a mean then, or wait for one."""

    def on_collect(self, trainer: Any) -> None:
        if trainer.global_step == 288:
            next(p for p in multiprocessing.active_children() if p.name == "learner 2").kill()


def test_a_killed_learner_ends_the_run_which_resumes_exactly(tmp_path: Path) -> None:
    how = {**TOGETHER, "learners": 3, "num_envs": 6}
    with pytest.raises(EnvError, match="learner 2 was killed by SIGKILL"):
        rl_training.train(settings(tmp_path, **how), callbacks=[Kill()])
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole", step=192, **how)


def test_a_signal_to_the_whole_group_stops_a_run_that_resumes_exactly(tmp_path: Path) -> None:
    process = start(settings(tmp_path, **TOGETHER))
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split()[-1] == "interrupted"
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole", **TOGETHER)


def test_when_the_first_is_killed_the_others_end(tmp_path: Path) -> None:
    short = {"num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
    how = {**TOGETHER, "hyperparams": short, "env": {"backend": "async"}}
    process = start(settings(tmp_path, **how))
    found = children_of(process.pid)
    inner = [worker for child in found for worker in children_of(child)]
    assert len(found) == 3  # another learner and two workers of its own kind
    assert len(inner) == 2
    process.kill()
    process.communicate()
    assert soon(lambda: not any(map(alive, (*found, *inner)))), "a learner or its workers live on"
    assert not shared_memory((process.pid, *found, *inner))
    (run_dir,) = tmp_path.iterdir()
    assert_resumes_exactly(run_dir, tmp_path / "whole", **how)


class Ask(rl_training.Callback):
    def on_collect(self, trainer: Any) -> None:
        trainer.state_dict()


def test_learners_in_the_middle_of_an_iteration_cannot_be_asked_for_their_state(tmp_path: Path) -> None:
    with pytest.raises(AxiomError, match=r"in the middle of an iteration.* a callback can ask in on_update"):
        rl_training.train(settings(tmp_path, **TOGETHER), callbacks=[Ask()])


class AskInTime(rl_training.Callback):
    def on_update(self, trainer: Any) -> None:
        self.state = trainer.state_dict()
        trainer.stop("the test")


def test_between_iterations_they_can(tmp_path: Path) -> None:
    callback = AskInTime()
    rl_training.train(settings(tmp_path, **TOGETHER), callbacks=[callback])
    assert list(callback.state["learners"]) == ["1"]


class UpdateAlone(rl_training.Callback):
    """Makes an update of its own, of which the other learners know nothing."""

    def __init__(self, hook: str, *, compiled: bool, swallows: bool) -> None:
        self.hook, self.compiled, self.swallows = hook, compiled, swallows
        setattr(self, hook, self.act)

    def act(self, trainer: Any) -> None:
        if trainer.global_step < 128:
            return  # so that what is compiled is there
        update = trainer.updates if self.compiled else trainer.algorithm.update
        with suppress(Exception) if self.swallows else nullcontext():
            update(trainer.batch())


@pytest.mark.parametrize(
    ("hook", "compiled", "swallows"),
    [
        ("on_update", False, False),
        ("on_update", False, True),
        ("on_update", True, False),
        ("on_collect", False, False),
        ("on_collect", True, False),
        ("on_train_end", False, False),
    ],
)
def test_an_update_of_one_learner_alone_is_an_error(
    hook: str, compiled: bool, swallows: bool, tmp_path: Path
) -> None:
    config = settings(
        tmp_path, total_timesteps=192, checkpoint={"every_steps": 0},
        compile="on" if compiled else "off", **TOGETHER,
    )  # fmt: skip
    callback = UpdateAlone(hook, compiled=compiled, swallows=swallows)
    with pytest.raises(AxiomError, match=r"a mean was asked for in which none .* use learners: 1"):
        rl_training.train(config, callbacks=[callback])
    assert not multiprocessing.active_children()
    saved = list(tmp_path.glob("*/checkpoints/step_192"))
    assert len(saved) == (hook == "on_train_end")  # what is trained is not lost by it


class MeanTooMany(rl_training.Callback):
    """Has the first learner wait for a mean when all others are done."""

    def on_train_start(self, trainer: Any) -> None:
        learn_statistics = trainer.collector.learn_statistics

        def and_wait(buffer: Any) -> None:
            learn_statistics(buffer)
            trainer.seat(torch.zeros(1))

        trainer.collector.learn_statistics = and_wait


def test_an_iteration_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AxiomError, match="a mean was asked for in which none"):
        rl_training.train(settings(tmp_path, total_timesteps=192, **TOGETHER), callbacks=[MeanTooMany()])


class Meddle(rl_training.Callback):
    def on_update(self, trainer: Any) -> None:
        with torch.no_grad():
            next(trainer.algorithm.policy.parameters()).mul_(0.5)


def test_learners_that_have_not_learned_the_same_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(AxiomError, match="learner 1 has not learned the same as the first one"):
        rl_training.train(settings(tmp_path, **TOGETHER), callbacks=[Meddle()])
