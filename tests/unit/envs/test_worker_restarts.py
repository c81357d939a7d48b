"""A broken worker may be replaced a bounded number of times: its transition is truncated, and one is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Diary, Settings, through_storage, walk

from rl_training.envs import EnvConfig, VectorEnv, episode_seed, make_vector_env, snapshot
from rl_training.errors import EnvError

BAD = 1
SEED = episode_seed(7, BAD, 0)


def fragile(fault: str, at: int, restarts: int, timeout: float = 20.0) -> Settings:
    config = EnvConfig(backend="async", worker_timeout=timeout, max_worker_restarts=restarts)
    return Settings("axiom/Fragile-v0", {"fault": fault, "at": at, "seed": SEED}, config)


def zeros(envs: VectorEnv) -> Any:
    return np.zeros(envs.num_envs, dtype=np.int64)


def worker(i: int) -> int:
    (pid,) = [
        process.pid for process in multiprocessing.active_children() if process.name == f"env-worker-{i}"
    ]
    assert pid is not None
    return pid


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("raise", "RuntimeError: broken on command"),
        ("die", "died with exit code 7"),
        ("hang", "did not answer within 4 s"),
        ("stop", "did not answer within 4 s"),
        ("segfault", "was killed by SIGSEGV"),
    ],
)
def test_the_broken_transition_is_truncated_and_the_next_episode_begins(fault: str, cause: str) -> None:
    undisturbed = make_vector_env(fragile("none", 0, 0), 3, backend="sync")
    envs = make_vector_env(fragile(fault, 3, 1, timeout=4.0 if fault in ("hang", "stop") else 20.0), 3)
    with envs, undisturbed:
        np.testing.assert_array_equal(envs.reset(), undisturbed.reset())
        for _ in range(2):
            last = np.array(envs.step(zeros(envs)).obs)
            undisturbed.step(zeros(envs))
        total = float(envs.state_dict()["returns"][BAD])
        with pytest.warns(RuntimeWarning) as warned:
            result = envs.step(zeros(envs))
        expected = undisturbed.step(zeros(envs))
        (text,) = [str(item.message) for item in warned]
        assert f"env worker {BAD} (axiom/Fragile-v0, episode seed {SEED}): step() " in text
        assert cause in text
        assert "restart 1 of 1" in text
        assert (result.truncated.tolist(), result.terminated.any()) == ([False, True, False], False)
        assert (result.rewards[BAD], result.ended.tolist()) == (0.0, [BAD])
        assert isinstance(result.final_obs, np.ndarray)
        assert result.final_obs.tolist() == [last[BAD].tolist()]
        (episode,) = result.episodes
        assert (episode.seed, episode.length, episode.terminated) == (SEED, 3, False)
        assert episode.total_reward == total
        others = [0, 2]
        np.testing.assert_array_equal(np.array(result.obs)[others], np.array(expected.obs)[others])
        np.testing.assert_array_equal(result.rewards[others], expected.rewards[others])
        assert envs.episode_seeds[BAD] == episode_seed(7, BAD, 1)
        fresh = gymnasium.make("axiom/Fragile-v0").reset(seed=episode_seed(7, BAD, 1))[0]
        assert np.array(result.obs)[BAD].tolist() == fresh.tolist()
        for _ in range(40):  # and on, through further episodes
            envs.step(zeros(envs))
        assert len(multiprocessing.active_children()) == 3
    assert multiprocessing.active_children() == []


def test_a_half_written_observation_is_not_shown() -> None:
    """The worker dies after it has begun to write what it saw."""

    settings = Settings(env=EnvConfig(backend="async", max_worker_restarts=1))
    with make_vector_env(settings, 2, env=lambda: Diary(endless=True)) as envs:
        envs.reset()
        last = np.array(envs.step(zeros(envs)).obs)
        pid = worker(0)
        os.kill(pid, signal.SIGSTOP)
        backend: Any = envs._backend
        ask = backend._ask

        def scribble(*args: Any) -> Any:
            backend.obs[0] = -5.0
            backend.rewards[0] = 99.0
            backend.terminated[0] = True
            os.kill(pid, signal.SIGKILL)
            backend._ask = ask
            return ask(*args)

        backend._ask = scribble
        with pytest.warns(RuntimeWarning, match="was killed by SIGKILL"):
            result = envs.step(zeros(envs))
        assert isinstance(result.final_obs, np.ndarray)
        assert result.final_obs.tolist() == [last[0].tolist()]
        assert (result.rewards[0], bool(result.terminated[0]), bool(result.truncated[0])) == (
            0.0,
            False,
            True,
        )


class Doomed(Diary):
    """Exits at the second step of every episode, but not where it is checked."""

    def __init__(self, parent: int) -> None:
        super().__init__()
        self.parent = parent

    def step(self, action: Any) -> Any:
        if self.t == 1 and os.getpid() != self.parent:
            os._exit(7)
        return super().step(action)


def test_when_the_restarts_are_used_up_it_is_an_error() -> None:
    parent = os.getpid()
    settings = Settings(env=EnvConfig(backend="async", max_worker_restarts=2))
    with make_vector_env(settings, 1, env=lambda: Doomed(parent)) as envs:
        envs.reset()
        with pytest.warns(RuntimeWarning) as warned:
            walk(envs, 4, seed=0)
        assert ["1 of 2" in str(item.message) for item in warned] == [True, False]
        envs.step(zeros(envs))
        with pytest.raises(EnvError, match=r"env worker 0 .*step\(\) died with exit code 7"):
            envs.step(zeros(envs))
    assert multiprocessing.active_children() == []


class FailsOnce(Diary):
    """Exits in `reset` of its second episode or in the constructor, unless a file says it has done so."""

    def __init__(self, flag: Path, parent: int, where: str) -> None:
        super().__init__()
        self.flag, self.parent, self.where = flag, parent, where
        if where == "make" and os.getpid() != parent and flag.exists() and flag.read_text() == "armed":
            self._exit()

    def _exit(self) -> None:
        self.flag.write_text("done")
        os._exit(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        is_time = self.where == "reset" and seed == episode_seed(7, 0, 1)
        if is_time and os.getpid() != self.parent and not self.flag.exists():
            self._exit()
        return super().reset(seed=seed, options=options)


def test_a_worker_that_breaks_in_reset_is_replaced_and_resets(tmp_path: Path) -> None:
    parent = os.getpid()
    settings = Settings(env=EnvConfig(backend="async", max_worker_restarts=1))
    with make_vector_env(settings, 2, env=lambda: FailsOnce(tmp_path / "flag", parent, "reset")) as envs:
        envs.reset()
        with pytest.warns(RuntimeWarning, match=r"reset\(\) died with exit code 3"):
            walk(envs, 3 + episode_seed(7, 0, 0) % 5, seed=0)
        assert np.array(envs.observations())[0].tolist() == [episode_seed(7, 0, 1), 0, -1]
        envs.step(zeros(envs))


def test_a_worker_that_breaks_while_it_is_remade_costs_a_restart(tmp_path: Path) -> None:
    parent, flag = os.getpid(), tmp_path / "flag"
    settings = Settings(env=EnvConfig(backend="async", max_worker_restarts=2))
    with make_vector_env(settings, 2, env=lambda: FailsOnce(flag, parent, "make")) as envs:
        envs.reset()
        flag.write_text("armed")
        os.kill(worker(0), signal.SIGKILL)
        with pytest.warns(RuntimeWarning) as warned:
            result = envs.step(zeros(envs))
        first, second = (str(item.message) for item in warned)
        assert "step() was killed by SIGKILL" in first
        assert "make() died with exit code 3" in second
        assert envs.state_dict()["worker_restarts"] == 2
        assert result.truncated.tolist() == [True, False]


@pytest.mark.parametrize("second", ["sync", "async"])
def test_a_resume_after_a_restart_is_exact_and_keeps_the_count(second: str) -> None:
    with (
        make_vector_env(fragile("die", 3, 1), 3) as one,
        make_vector_env(fragile("none", 0, 1), 3, seed=99, backend=second) as two,
    ):
        one.reset()
        assert "restart" not in one.resume_grade[1]
        with pytest.warns(RuntimeWarning):
            walk(one, 9, seed=1)
        grade, reason = one.resume_grade
        assert (grade, "1 worker restarts cut episodes short" in reason) == ("exact", True)
        state = through_storage(one.state_dict())
        assert state["worker_restarts"] == 1
        assert two.load_state_dict(state)[0] == "exact"
        assert walk(one, 60, seed=2) == walk(two, 60, seed=2)
        assert two.state_dict()["worker_restarts"] == 1
        if second == "async":  # none is left, in the resumed run either
            one.close()
            os.kill(worker(2), signal.SIGKILL)
            with pytest.raises(EnvError, match="was killed by SIGKILL"):
                walk(two, 3, seed=3)


def test_a_worker_that_breaks_in_a_replay_begins_a_new_episode() -> None:
    with (
        make_vector_env(fragile("none", 0, 1), 3) as one,
        make_vector_env(fragile("die", 3, 1), 3) as two,
    ):
        one.reset()
        walk(one, 9, seed=1)
        with pytest.warns(RuntimeWarning, match="died with exit code 7"):
            grade, reason = two.load_state_dict(one.state_dict())
        assert (grade, "env 1: its replayed episode ended after 3 of 9 steps" in reason) == ("episode", True)
        assert two.state_dict()["lengths"].tolist() == [9, 0, 9]
        walk(two, 9, seed=2)


def test_saving_the_state_of_a_dead_worker_waits_for_its_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "DIRECT_STEPS", 5)
    config = EnvConfig(backend="async", max_worker_restarts=1)
    with make_vector_env(Settings("Pendulum-v1", env=config), 2) as envs:
        envs.reset()
        walk(envs, 20, seed=1)
        os.kill(worker(1), signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=r"env worker 1 .*capture\(\) was killed by SIGKILL"):
            state = envs.state_dict()
        assert list(state["direct"]) == ["0"]
        with pytest.warns(RuntimeWarning, match="restart 1 of 1"):
            (_, episodes), *_ = walk(envs, 5, seed=2)
        assert [(episode.env_index, episode.length) for episode in episodes] == [(1, 21)]
        grade, reason = envs.load_state_dict(state)
        assert grade == "episode"
        assert "env 1: its episode is 20 steps long" in reason


class Big(gymnasium.Env[Any, Any]):
    """Renders more than fits into a pipe."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((2000, 2000, 3), np.uint8)


def test_a_worker_that_stops_in_the_middle_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(env=EnvConfig(backend="async", worker_timeout=4.0))
    with make_vector_env(settings, 1, env=Big) as envs:
        envs.reset()
        assert envs.render()[0].shape == (2000, 2000, 3)
        backend: Any = envs._backend
        answers = backend._answers

        def late(indices: Any) -> Any:
            time.sleep(0.2)  # by now the answer has begun, and fills the pipe
            os.kill(worker(0), signal.SIGSTOP)
            return answers(indices)

        monkeypatch.setattr(backend, "_answers", late)
        start = time.monotonic()
        with pytest.raises(EnvError, match="did not answer within 4 s"):
            envs.render()
        assert time.monotonic() - start < 20.0
