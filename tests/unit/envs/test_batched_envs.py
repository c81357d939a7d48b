"""Envs as tensors: Gymnasium's physics, episodes that follow from their seeds, and no look at any value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import Settings, random_actions, through_storage
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.envs import EnvConfig, choose_backend, evaluation_backend, findings, make_vector_env, probe
from rl_training.envs.batched import BatchedEnv, BatchedVectorEnv, State, Uniform, fork, register_batched_env
from rl_training.envs.batched.env import find_batched
from rl_training.envs.batched.make import make_batched, make_batched_vector_env
from rl_training.envs.batched.random import env_keys, mix
from rl_training.errors import EnvError

CLASSIC = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
CPU = torch.device("cpu")


def batched(env_id: str, num_envs: int, **kwargs: Any) -> BatchedVectorEnv:
    return make_batched_vector_env(env_id, kwargs, num_envs, seed=7, device="cpu")


def swing(obs: Any, space: gymnasium.Space[Any]) -> Any:
    """Push where things move already: it gets a car out of its valley and a chain of links up."""
    if isinstance(space, gymnasium.spaces.Box):
        return np.array([np.sign(obs[-1])], np.float32)
    return int(obs[-1] > 0) * (int(space.n) - 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [*((env_id, {}) for env_id in CLASSIC), ("CartPole-v1", {"sutton_barto_reward": True}),
     ("Pendulum-v1", {"g": 9.81}), ("MountainCarContinuous-v0", {"goal_velocity": 0.02})],
)  # fmt: skip
def test_the_physics_are_gymnasiums(env_id: str, kwargs: dict[str, Any]) -> None:
    """Long walks of two envs, one at random and one that gets somewhere; episodes start from its states."""
    steps = 300 if kwargs else 1_200
    rng = np.random.default_rng(0)
    twins = [gymnasium.make(env_id, **kwargs).unwrapped for _ in range(2)]
    with batched(env_id, 2, **kwargs) as envs:
        assert envs.spec.observation_space == twins[0].observation_space
        assert envs.spec.action_space == twins[0].action_space
        assert envs.time_limit == gymnasium.spec(env_id).max_episode_steps
        obs, ages, ends = envs.reset(), [0, 0], {"terminated": 0, "truncated": 0}
        for twin in twins:
            twin.reset(seed=0)
        for _ in range(steps):
            for i in range(2):
                if ages[i] == 0:
                    twins[i].reset(seed=0)
                    twins[i].state = envs.state_dict()["batched"]["physics"][i]  # type: ignore[attr-defined]
            actions = random_actions(envs, rng)
            actions[1] = swing(obs[1], envs.spec.action_space)  # type: ignore[index]
            result = envs.step(actions)
            obs = np.array(result.obs)
            reached = obs.copy()
            if result.final_obs is not None:
                reached[result.ended] = result.final_obs
            for i, twin in enumerate(twins):
                expected, reward, terminated, _, _ = twin.step(actions[i])
                ages[i] += 1
                truncated = ages[i] == envs.time_limit and not terminated
                np.testing.assert_allclose(reached[i], expected, rtol=0, atol=1e-5)
                assert result.rewards[i] == pytest.approx(reward, abs=1e-5)
                assert (result.terminated[i], result.truncated[i]) == (terminated, truncated)
                assert (i in result.ended) == (terminated or truncated)
                if terminated or truncated:
                    ages[i] = 0
                    ends["terminated" if terminated else "truncated"] += 1
    if not kwargs:
        assert (ends["terminated"] > 0) == (env_id != "Pendulum-v1")
        assert (ends["truncated"] > 0) == (env_id != "CartPole-v1")


def test_numbers_that_follow_from_seeds_look_random() -> None:
    draws = Uniform([-1.0, 0.0, 5.0], [1.0, 1.0, 5.0], CPU)
    keys = env_keys(3, 64, CPU)
    rows = draws((keys[:, None] + torch.arange(500)).flatten())  # 500 episodes of 64 envs
    assert rows.dtype == torch.float64
    assert rows[:, 2].tolist() == [5.0] * len(rows)
    assert (rows[:, :2].amin(0) >= torch.tensor([-1.0, 0.0])).all()
    assert (rows[:, :2].amax(0) < 1.0).all()
    first, second = (rows[:, 0] + 1) / 2, rows[:, 1]
    for values in (first, second):
        counts = torch.histc(values, 20, 0.0, 1.0)
        assert float(((counts - 1600) ** 2 / 1600).sum()) < 43.8  # χ² with 19 degrees, one in a thousand
    table = first.view(64, 500)
    pairs = [(first, second), (table[:, 1:].flatten(), table[:, :-1].flatten()), (table[1:], table[:-1])]
    for a, b in pairs:  # across numbers, episodes and envs
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.02
    assert len(rows[:, 0].unique()) == len(rows)


def test_seeds_depend_on_nothing_but_their_address() -> None:
    assert env_keys(5, 3, CPU).tolist() == env_keys(5, 9, CPU)[:3].tolist()
    assert not set(env_keys(5, 100, CPU).tolist()) & set(env_keys(6, 100, CPU).tolist())
    assert env_keys(2**63 - 1, 2, CPU).max() < 2**62
    seeds = torch.tensor([1, 2, 2])
    forks = fork(seeds, torch.tensor([0, 0, 1]))
    assert len(set(forks.tolist())) == 3
    assert forks[0] == fork(seeds, 0)[0] == mix(seeds[:1] + (0xD1342543DE82EF95 - 2**64))[0]
    assert (forks >= 0).all()


def test_forks_by_a_number_are_those_by_a_tensor() -> None:
    seeds = torch.cat([env_keys(1, 3, CPU), torch.tensor([0, 1, 2**62 - 1])])
    for index in (*range(1001), -1, -2, 2**31, 2**62, 2**63 - 1):
        assert torch.equal(fork(seeds, index), fork(seeds, torch.tensor(index)))
    assert torch.equal(fork(seeds, np.int64(7)), fork(seeds, 7))  # type: ignore[arg-type]
    small = torch.arange(6, dtype=torch.int32)  # a counter of another type counts the same
    assert torch.equal(fork(seeds, small), fork(seeds, small.long()))


def test_any_episode_can_be_played_again_from_its_seed() -> None:
    with batched("CartPole-v1", 3) as envs:
        first = np.array(envs.reset())
        plays: dict[int, tuple[Any, list[int]]] = {i: (first[i], []) for i in range(3)}
        seeds = envs.episode_seeds.tolist()
        rng, seen = np.random.default_rng(1), 0
        for _ in range(120):
            actions = random_actions(envs, rng)
            result = envs.step(actions)
            for i in range(3):
                plays[i][1].append(int(actions[i]))
            for row, episode in enumerate(result.episodes):
                i = episode.env_index
                start, played = plays[i]
                assert episode.seed == seeds[i]
                env = make_batched(find_batched("CartPole-v1"), {}, CPU)
                state = env.start(torch.tensor([episode.seed]))
                assert env.observe(state)[0].tolist() == start.tolist()  # type: ignore[index]
                for action in played:
                    state, _, terminated = env.step(state, torch.tensor([action]))
                assert bool(terminated)
                assert len(played) == episode.length == episode.total_reward
                assert env.observe(state)[0].tolist() == result.final_obs[row].tolist()  # type: ignore[index]
                assert episode.episode == seen // 3 or len(result.episodes) < 3
                plays[i] = (np.array(result.obs)[i], [])
                seeds[i] = int(envs.episode_seeds[i])
                assert seeds[i] == episode.seed + 1
            seen += len(result.episodes)
        assert seen > 10


@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_step_reads_no_value(env_id: str) -> None:
    """Tensors without contents: whatever had to look at one, or to shape itself by one, would raise."""
    env = make_batched(find_batched(env_id), {}, torch.device("meta"))
    envs = BatchedVectorEnv(env, 5, seed=0, time_limit=10)
    envs.reset_tensors()
    shape = envs.spec.action_space.shape or ()
    actions = torch.zeros((5, *shape), dtype=torch.float32 if shape else torch.int64, device="meta")
    state = dict(envs._state)
    result = envs.step_tensors(actions)
    assert isinstance(result.obs, Tensor)
    assert result.obs.shape == (5, *envs.spec.observation_space.shape)  # type: ignore[misc]
    assert result.rewards.shape == result.ended.shape == result.lengths.shape == (5,)
    assert all(envs._state[key] is rows for key, rows in state.items())  # what goes on is written in place


@pytest.mark.parametrize("env_id", CLASSIC)
def test_going_on_equals_never_having_stopped(env_id: str) -> None:
    def walk(envs: BatchedVectorEnv, steps: int, seed: int) -> list[Any]:
        rng, trace = np.random.default_rng(seed), []
        for _ in range(steps):
            r = envs.step(random_actions(envs, rng))
            arrays = [r.obs, r.rewards, r.terminated, r.truncated, r.ended, r.final_obs]
            trace.append(([None if a is None else np.array(a).tobytes() for a in arrays], r.episodes))
        return trace

    limit = 30
    with make_batched_vector_env(env_id, {}, 3, limit, seed=1, device="cpu") as one:
        one.reset()
        walk(one, 50, seed=2)
        saved = through_storage(one.state_dict())
        assert one.resume_grade[0] == "exact"
        expected = walk(one, 80, seed=3)
    with make_batched_vector_env(env_id, {}, 3, limit, seed=99, device="cpu") as two:
        assert two.load_state_dict(saved) == ("exact", "every env is where it was")
        np.testing.assert_array_equal(two.episode_seeds, saved["seeds"])
        assert walk(two, 80, seed=3) == expected


def test_what_does_not_fit_begins_new_episodes_and_says_why() -> None:
    with batched("CartPole-v1", 2) as envs:
        envs.reset()
        saved = envs.state_dict()
        with batched("CartPole-v1", 3) as more:
            assert more.load_state_dict(saved) == ("episode", "saved with 2 envs, restored with 3")
            assert (more.state_dict()["episodes"] == 1).all()
        with batched("Pendulum-v1", 2) as other:
            grade, reason = other.load_state_dict(saved)
            assert (grade, reason) == ("episode", "the saved state of the batched envs is of another kind")
        with make_vector_env(Settings(), 2) as sync:
            assert "saved by the batched backend" in sync.load_state_dict(saved)[1]
            sync.reset()
            assert "saved by the sync backend" in envs.load_state_dict(sync.state_dict())[1]


class Walk(BatchedEnv):
    """Keeps what its seed said, shows it beside its place, and hands its own state out as it is."""

    def __init__(self, device: torch.device, *, flaw: str = "") -> None:
        super().__init__(device)
        self.flaw = flaw
        self.observation_space = gymnasium.spaces.Dict(
            {"place": gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32),
             "goal": gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)}
        )  # fmt: skip
        self.action_space = gymnasium.spaces.Discrete(2)
        self._goal = Uniform([0.0], [1.0], device)

    def start(self, seeds: Tensor) -> State:
        if self.flaw == "unseeded":
            return {"place": torch.rand(len(seeds), 1), "goal": self._goal(seeds).float()}
        if self.flaw == "no dict":
            return [torch.zeros(len(seeds), 1)]  # type: ignore[return-value]
        if self.flaw == "state of lists":
            return {"place": [0.0] * len(seeds), "goal": self._goal(seeds)}  # type: ignore[dict-item]
        self.kept = torch.zeros(len(seeds), 1)
        self.noise = self._goal(seeds).float()
        if self.flaw == "one row":
            return {"place": torch.zeros(1), "goal": self._goal(seeds).float()}
        return {"place": torch.zeros(len(seeds), 1, device=self.device), "goal": self._goal(seeds).float()}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        place = state["place"] + (actions * 2 - 1).unsqueeze(1)
        if self.flaw == "in place":
            state["place"].copy_(place)
        if self.flaw == "integers":
            place = place.long()
        if self.flaw == "global noise":
            place = place + torch.rand_like(place)
        if self.flaw == "own state":
            self.kept += 1
            place = place + self.kept
        if self.flaw == "own place":
            self.kept += 1
            place = self.kept
        if self.flaw == "from the start":
            place = place + self.noise
        if self.flaw == "neighbours":
            place = place - place.mean()
        if self.flaw == "fixed size":
            place = place.view(3, 1)
        if self.flaw == "alone another dtype":
            place = place if len(place) > 1 else place.double()
        done = place.squeeze(1) >= 3
        rewards = actions if self.flaw == "whole rewards" else state["goal"].squeeze(1)
        if self.flaw == "a float":
            rewards = 1.0  # type: ignore[assignment]
        if self.flaw == "no numbers":
            rewards = rewards * torch.nan
        if self.flaw == "late infinity":
            rewards = torch.where(place.squeeze(1).abs() == 2, torch.inf, rewards)
        if self.flaw == "random rewards":
            rewards = rewards + torch.randn(len(rewards))
        flags = done.float() if self.flaw == "float flags" else done
        if self.flaw == "five parts":
            return {"place": place, "goal": state["goal"]}, rewards, flags, flags, {}  # type: ignore[return-value]
        self.last = place
        if self.flaw == "forgets":
            return {"place": place}, rewards, flags
        if self.flaw == "adds":
            return {"place": place, "goal": state["goal"], "more": place}, rewards, flags
        return {"place": place, "goal": state["goal"]}, rewards, flags

    def observe(self, state: State) -> Any:
        if self.flaw == "no goal":
            return {"place": state["place"]}
        if self.flaw == "doubles":
            return {"place": state["place"].double(), "goal": state["goal"]}
        if self.flaw == "arrays":
            return {key: rows.numpy() for key, rows in state.items()}
        if self.flaw == "no parts":
            return state["place"]
        if self.flaw == "noisy eyes":
            return {**state, "goal": state["goal"] + torch.rand_like(state["goal"])}
        if self.flaw == "own memory":
            return {**state, "place": getattr(self, "last", state["place"])}
        if self.flaw == "shared eyes":
            return {**state, "goal": state["goal"] - state["goal"].max()}
        if self.flaw == "raises":
            raise RuntimeError("on purpose")
        return dict(state)


register_batched_env("test/Walk-v0", max_episode_steps=5)(Walk)


@register_batched_env("test/Any-v0", max_episode_steps=5)
class AnyWalk(Walk):
    """Hands on whatever it is given."""

    def __init__(self, device: torch.device, **options: Any) -> None:
        super().__init__(device, **options)


def test_arguments_may_pass_through_an_open_signature() -> None:
    with batched("test/Any-v0", 2, flaw="none that is known") as envs:
        assert isinstance(envs.env, Walk)
        assert envs.env.flaw == "none that is known"


@pytest.mark.parametrize("given", [[], ["cpu"]], ids=["not called", "called with a name"])
def test_a_constructor_that_does_not_pass_its_device_on_is_told_to(given: list[Any]) -> None:
    class NoSuper(Walk):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            del self.device
            if given:
                BatchedEnv.__init__(self, *given)

    register_batched_env("test/NoSuper-v0", max_episode_steps=5)(NoSuper)
    words = r"the batched env test/NoSuper-v0 has no device: NoSuper.__init__ must call super\(\).__init__\("
    with pytest.raises(EnvError, match=words):
        batched("test/NoSuper-v0", 2)
    with pytest.raises(EnvError, match=words):
        findings(Settings("test/NoSuper-v0"))


def test_an_env_may_hand_out_its_own_tensors() -> None:
    """Rewards and last observations are of the episode that ended, though the step resets its state too."""
    with batched("test/Walk-v0", 2) as envs:
        obs: Any = envs.reset()
        goals = obs["goal"][:, 0].copy()
        for _ in range(3):
            result: Any = envs.step(np.array([1, 0]))
        assert result.ended.tolist() == [0]
        assert result.rewards.tolist() == goals.tolist()
        assert result.final_obs["goal"][0, 0] == goals[0]
        assert result.final_obs["place"].tolist() == [[3.0]]
        assert result.obs["place"].tolist() == [[0.0], [-3.0]]
        assert result.obs["goal"][0, 0] != goals[0]
        assert result.obs["goal"][1, 0] == goals[1]
        assert result.episodes[0].total_reward == pytest.approx(3 * goals[0])


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("unseeded", r"start\(\) gives another state\['place'\] for the same seed"),
        ("one row", r"state\['place'\] of shape \(1,\) for 3 copies"),
        ("in place", r"step\(\) changes the state\['place'\] it is given"),
        ("integers", r"step\(\) gives a state of .*int64 \(3, 1\).* start\(\) one of .*float32 \(3, 1\)"),
        ("whole rewards", r"rewards of int64 \(3,\): floats"),
        ("float flags", r"terminated of float32 \(3,\): booleans"),
        ("no goal", r"observe\(\) gives \['place'\], the observation space has \['goal', 'place'\]"),
        (
            "doubles",
            r"observe\(\)\['place'\] gives float64 \(3, 1\), .* needs float32 of shape \(3, 1\)",
        ),
        ("no dict", r"start\(\) gives list as the state: a dict of tensors is needed"),
        ("state of lists", r"start\(\) gives a state of other things than tensors: state\['place'\] is list"),
        ("a float", r"step\(\) gives rewards of float: floats, one a copy, are needed"),
        (
            "five parts",
            r"step\(\) gives tuple of length 5: the next state, rewards and terminated are needed",
        ),
        ("no numbers", r"step\(\) gives rewards that are NaN or infinite$"),
        ("late infinity", r"step\(\) gives rewards that are NaN or infinite$"),
        (
            "forgets",
            r"step\(\) gives a state of \{'place': [^}]*\}, start\(\) one of [^}]*'goal': [^}]*\}: "
            r"they must be the same$",
        ),
        ("adds", r"step\(\) gives a state of [^}]*'more': .*, start\(\) one of .*: they must be the same$"),
        ("arrays", r"observe\(\)\['goal'\] gives a NumPy array of float32 \(3, 1\): a tensor is needed"),
        ("no parts", r"observe\(\) gives Tensor, the observation space has \['goal', 'place'\]"),
        (
            "global noise",
            r"state\['place'\] of step\(\) differs when the same is asked again: only the state",
        ),
        ("own state", r"state\['place'\] of step\(\) differs when the same is asked again: .*kept in self"),
        ("own place", r"state\['place'\] of step\(\) differs when the same is asked again"),
        ("from the start", r"state\['place'\] of step\(\) differs when the same is asked again"),
        ("random rewards", r"rewards of step\(\) differs when the same is asked again"),
        ("noisy eyes", r"observe\(\)\['goal'\] differs when the same is asked again"),
        ("own memory", r"observe\(\)\['place'\] differs when the same is asked again"),
        (
            "neighbours",
            r"state\['place'\] of step\(\) differs for a copy alone .*: rows must not know of each",
        ),
        ("shared eyes", r"observe\(\)\['goal'\] differs for a copy alone"),
        ("fixed size", r"a step of one copy alone raised RuntimeError: .*: rows must not know of each other"),
        ("alone another dtype", r"state\['place'\] of step\(\) differs for a copy alone"),
        ("raises", r"playing a step raised RuntimeError: on purpose \(.*test_batched_envs.py"),
    ],
)
def test_what_is_wrong_with_an_env_is_said_before_the_first_step(flaw: str, message: str) -> None:
    with pytest.raises(EnvError, match=rf"(?s)test/Walk-v0 cannot be trained on:.*{message}"):
        batched("test/Walk-v0", 4, flaw=flaw)


@pytest.mark.parametrize("call", ["start", "step", "observe"])
def test_an_env_that_fails_while_it_is_played_is_named_with_the_line(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("boom")

    words = (
        rf"^the batched env test/Walk-v0: {call}\(\) raised RuntimeError: boom "
        r"\(.*test_batched_envs.py:\d+ in broken\)$"
    )
    with batched("test/Walk-v0", 2) as envs:
        envs.reset()
        envs.step(np.array([1, 0]))
        monkeypatch.setattr(envs.env, call, broken)
        with pytest.raises(EnvError, match=words) as caught:
            envs.step(np.array([1, 0]))
        assert isinstance(caught.value.__cause__, RuntimeError)
        if call != "step":
            with pytest.raises(EnvError, match=words):
                envs.reset()


def test_what_stops_a_capture_is_not_taken_for_a_mistake_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    with batched("test/Walk-v0", 2) as envs:
        envs.reset()
        monkeypatch.setattr(envs.env, "step", refused)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        for capturing, kind in ((True, RuntimeError), (False, EnvError)):
            monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)  # noqa: B023
            with pytest.raises(kind, match="operation not permitted"):
                envs.step_tensors(torch.tensor([1, 0]))


def test_what_stops_a_recording_is_not_taken_for_a_mistake_of_the_env() -> None:
    """Whoever records has to see its own exceptions."""

    class RefusedError(Exception):
        pass

    class Refuses(TorchDispatchMode):
        """Stops at what only the env asks for: `zeros` when it starts, `sub` when it steps."""

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if function in (torch.ops.aten.zeros.default, torch.ops.aten.sub.Tensor):
                raise RefusedError(str(function))
            return function(*args, **(kwargs or {}))

    with batched("test/Walk-v0", 2) as envs:
        envs.reset()
        with pytest.raises(RefusedError, match=r"^aten.sub.Tensor$"), Refuses():  # type: ignore[no-untyped-call]
            envs.step_tensors(torch.tensor([1, 0]))
        with pytest.raises(RefusedError, match=r"^aten.zeros.default$"), Refuses():  # type: ignore[no-untyped-call]
            envs.reset_tensors()


def test_configuration_errors_name_what_there_is() -> None:
    config = EnvConfig(backend="batched")
    with pytest.raises(
        EnvError, match=r"LunarLander-v3 has no batched version.*Acrobot-v1, CartPole-v0, Cart"
    ):
        make_vector_env(Settings("LunarLander-v3", env=config), 2)
    with pytest.raises(EnvError, match=r"CartPol-v1 has no batched version \(did you mean 'CartPole-v1'\?\)"):
        probe(Settings("CartPol-v1", env=config))
    with pytest.raises(EnvError, match=r"env_kwargs.gravity: the batched Pendulum-v1 takes no .*it takes: g"):
        make_vector_env(Settings("Pendulum-v1", {"gravity": 1.0}, env=config), 2)
    with pytest.raises(EnvError, match=r"env_kwargs.device: the batched Pendulum-v1 takes no .*it takes: g"):
        make_vector_env(Settings("Pendulum-v1", {"device": "cpu"}, env=config), 2)
    with pytest.raises(EnvError, match=r"env_kwargs.speed: the batched test/Any-v0 .*it takes: \*\*options"):
        make_vector_env(Settings("test/Any-v0", {"speed": 1.0}, env=config), 2)
    with pytest.raises(EnvError, match=r"'batched' cannot be combined with env.frame_stack"):
        make_vector_env(Settings(env=EnvConfig(backend="batched", frame_stack=2)), 2)
    with pytest.raises(EnvError, match=r"'batched' cannot be combined with an env of your own"):
        make_vector_env(Settings(env=config), 2, env=lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(EnvError, match="exists as tensors, which cannot be rendered"):
        make_vector_env(Settings(env=config), 2, render_mode="rgb_array")
    with pytest.raises(EnvError, match="two batched envs are called 'CartPole-v1'"):
        register_batched_env("CartPole-v1")(Walk)


def test_an_env_is_not_taken_for_another_of_the_same_class_name() -> None:
    mine = type("CartPole", (Walk,), {"__module__": __name__, "__qualname__": "CartPole"})
    with pytest.raises(
        EnvError, match=r"'CartPole-v1', rl_training.*classic.CartPole and test_batched_envs.CartPole: give"
    ):
        register_batched_env("CartPole-v1")(mine)
    assert find_batched("CartPole-v1").make.__module__ == "rl_training.envs.batched.classic"
    register_batched_env("test/Again-v0")(Walk)
    again = type("Walk", (Walk,), {"__module__": __name__, "__qualname__": "Walk"})  # its module, reloaded
    register_batched_env("test/Again-v0")(again)
    assert find_batched("test/Again-v0").make is again


def test_what_ships_is_known_before_anything_of_a_user() -> None:
    code = """
import sys
from rl_training.envs.batched import BatchedEnv, register_batched_env
assert "rl_training.envs.batched.classic" not in sys.modules
class CartPole(BatchedEnv): ...
try:
    register_batched_env("CartPole-v1")(CartPole)
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("EnvError two batched envs are called 'CartPole-v1'")


@pytest.mark.parametrize("limit", [0, -5, 2.5, True, "100"])
def test_time_limits_are_whole_numbers(limit: Any) -> None:
    with pytest.raises(EnvError, match=r"'test/Timeless-v0': max_episode_steps must be a whole number above"):
        register_batched_env("test/Timeless-v0", max_episode_steps=limit)(Walk)


def test_auto_takes_tensors_where_there_is_nothing_else() -> None:
    assert choose_backend(Settings("test/Walk-v0"), 2) == "batched"
    assert choose_backend(Settings("CartPole-v1"), 2) == "sync"
    assert choose_backend(Settings("test/Walk-v0"), 2, env=lambda: gymnasium.make("CartPole-v1")) == "sync"
    with make_vector_env(Settings("test/Walk-v0"), 2) as envs:
        assert isinstance(envs, BatchedVectorEnv)
        assert probe(Settings("test/Walk-v0")) == envs.spec
    with pytest.raises(EnvError, match=r"'test/Walk-v0' exists as tensors only: set env.backend to batched"):
        make_vector_env(Settings("test/Walk-v0", env=EnvConfig(backend="sync")), 2)
    with pytest.raises(EnvError, match=r"'batched' cannot be combined with env.frame_stack"):
        make_vector_env(Settings("test/Walk-v0", env=EnvConfig(frame_stack=2)), 2)


def test_check_env_knows_envs_that_are_tensors_only() -> None:
    assert findings(Settings("test/Walk-v0")) == []
    assert findings(Settings("test/Walk-v0", {"flaw": "float flags"})) == [
        "error: step() gives terminated of float32 (3,): booleans, one a copy, are needed"
    ]
    register_batched_env("test/Endless-v0")(Walk)
    assert [text[:33] for text in findings(Settings("test/Endless-v0"))] == [
        "warning: no time limit is known; "
    ]


def test_evaluations_are_played_in_gymnasium_where_it_has_the_env() -> None:
    assert evaluation_backend(Settings(env=EnvConfig(backend="batched"))) == "sync"
    assert evaluation_backend(Settings("test/Walk-v0", env=EnvConfig(backend="batched"))) == "batched"
    assert evaluation_backend(Settings(env=EnvConfig(backend="native"))) == "sync"
