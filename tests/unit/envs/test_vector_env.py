"""One `StepResult` whatever the backend: no transition crosses an episode, every episode is addressable."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Diary, Settings

from rl_training.envs import EnvConfig, VectorEnv, episode_seed, make_env, make_vector_env, probe
from rl_training.envs.factory import NATIVE_FROM, choose_backend
from rl_training.errors import EnvError

SEED = 7


def random_actions(envs: VectorEnv, steps: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 2, (steps, envs.num_envs))


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_no_transition_crosses_an_episode(backend: str) -> None:
    with make_vector_env(Settings(), 3, env=Diary, backend=backend) as envs:
        obs = np.array(envs.reset())
        episode = [0, 0, 0]
        total = 0
        for actions in np.random.default_rng(0).integers(0, 5, (40, 3)):
            result = envs.step(actions)
            after = np.array(result.obs)
            true_next = after.copy()
            if len(result.ended):
                true_next[result.ended] = result.final_obs
            for i in range(3):
                seed = episode_seed(SEED, i, episode[i])
                t = int(obs[i][1])
                assert obs[i][0] == seed
                assert true_next[i].tolist() == [seed, t + 1, actions[i]]
                assert result.rewards[i] == t + 1
                ended = t + 1 == 3 + seed % 5
                assert (i in result.ended) == ended
                assert result.terminated[i] == (ended and seed % 2 == 0)
                assert result.truncated[i] == (ended and seed % 2 == 1)
                if ended:
                    episode[i] += 1
                    assert after[i].tolist() == [episode_seed(SEED, i, episode[i]), 0, -1]
            for finished in result.episodes:
                i = finished.env_index
                length = 3 + episode_seed(SEED, i, finished.episode) % 5
                assert finished.seed == episode_seed(SEED, i, finished.episode)
                assert finished.length == length
                assert finished.total_reward == length * (length + 1) / 2
                assert finished.terminated == (finished.seed % 2 == 0)
            assert [e.env_index for e in result.episodes] == result.ended.tolist()
            total += len(result.episodes)
            obs = after
        assert total > 15


def test_final_observations_survive_the_reset_of_a_dict_env() -> None:
    with make_vector_env(Settings("axiom/DictObs-v0", {"length": 2}), 2) as envs:
        envs.reset()
        envs.step(np.zeros(2, dtype=np.int64))
        result = envs.step(np.zeros(2, dtype=np.int64))
        assert result.ended.tolist() == [0, 1]
        assert isinstance(result.final_obs, dict)
        assert isinstance(result.obs, dict)
        for i in range(2):
            env = gymnasium.make("axiom/DictObs-v0", length=2)
            env.reset(seed=episode_seed(SEED, i, 0))
            env.step(0)
            last = env.step(0)[0]
            first = env.reset(seed=episode_seed(SEED, i, 1))[0]
            for key in ("image", "vector"):
                np.testing.assert_array_equal(result.final_obs[key][i], last[key])
                np.testing.assert_array_equal(result.obs[key][i], first[key])


def test_termination_wins_over_truncation() -> None:
    with make_vector_env(Settings(), 2, env=lambda: Diary(both=True)) as envs:
        envs.reset()
        ends = 0
        for _ in range(10):
            result = envs.step(np.zeros(2, dtype=np.int64))
            assert not result.truncated.any()
            assert result.terminated[result.ended].all()
            assert all(e.terminated for e in result.episodes)
            ends += len(result.ended)
        assert ends >= 2


@pytest.mark.parametrize("backend", ["sync", "async", "native", "batched"])
def test_cartpole_is_truncated_at_its_registered_limit(backend: str) -> None:
    with make_vector_env(Settings(), 2, backend=backend) as envs:
        obs = np.array(envs.reset())
        for step in range(1, 501):
            lean = obs[:, 2] + 0.5 * obs[:, 3] + 0.02 * obs[:, 0] + 0.1 * obs[:, 1]
            result = envs.step((lean > 0).astype(np.int64))
            obs = np.array(result.obs)
            assert len(result.ended) == (2 if step == 500 else 0)
        assert result.truncated.all()
        assert not result.terminated.any()
        assert [(e.length, e.total_reward, e.terminated) for e in result.episodes] == [
            (500, 500.0, False)
        ] * 2
        assert result.final_obs is not None
        assert not np.allclose(result.final_obs, result.obs)
        ended, final = result.ended.copy(), np.array(result.final_obs)
        for _ in range(20):  # further episodes end, and these arrays stay as they are
            envs.step(np.zeros(2, np.int64))
        np.testing.assert_array_equal(result.ended, ended)
        np.testing.assert_array_equal(result.final_obs, final)


@pytest.mark.parametrize("backend", ["sync", "async", "native", "batched"])
def test_configured_limit_replaces_the_registered_one(backend: str) -> None:
    with make_vector_env(Settings(env=EnvConfig(max_episode_steps=3)), 2, backend=backend) as envs:
        envs.reset()
        lengths = []
        for actions in np.tile([[0, 1], [1, 0]], (5, 1)):
            result = envs.step(actions)
            lengths += [e.length for e in result.episodes]
            assert result.truncated[result.ended].all()
        assert lengths == [3] * 6


def test_limits_of_envs_that_started_apart() -> None:
    """The limit is looked at only when some env may have reached it: it must not be missed for any."""
    settings = Settings("axiom/Chain-v0", {"n": 4}, EnvConfig(max_episode_steps=7))
    with make_vector_env(settings, 2) as envs:
        envs.reset()
        plan = [[1, 0]] * 4 + [[0, 0]] * 7
        ended = [
            (t, e.env_index, e.length) for t, a in enumerate(plan) for e in envs.step(np.array(a)).episodes
        ]
        assert ended == [(3, 0, 4), (6, 1, 7), (10, 0, 7)]


@pytest.mark.parametrize("backend", ["async", "native"])
def test_backends_agree_with_sync(backend: str) -> None:
    with make_vector_env(Settings(), 4) as one, make_vector_env(Settings(), 4, backend=backend) as other:
        assert one.backend == "sync"
        assert other.backend == backend
        np.testing.assert_array_equal(one.reset(), other.reset())
        ends = 0
        for actions in random_actions(one, 200):
            a, b = one.step(actions), other.step(actions)
            np.testing.assert_array_equal(a.obs, b.obs)  # native has the same formulas, in float64
            np.testing.assert_array_equal(a.rewards, b.rewards)
            np.testing.assert_array_equal(a.terminated, b.terminated)
            np.testing.assert_array_equal(a.ended, b.ended)
            assert a.episodes == b.episodes
            if a.final_obs is not None:
                np.testing.assert_array_equal(a.final_obs, b.final_obs)
            ends += len(a.ended)
        assert ends > 10


@pytest.mark.parametrize("backend", ["native", "batched"])
def test_no_reset_is_stored_as_a_step(backend: str) -> None:
    with make_vector_env(Settings(), 8, backend=backend) as envs:
        envs.reset()
        lengths = np.zeros(8)
        for actions in random_actions(envs, 300):
            result = envs.step(actions)
            assert (result.rewards == 1.0).all()
            lengths += 1
            for episode in result.episodes:
                assert episode.length == lengths[episode.env_index] == episode.total_reward
            lengths[result.ended] = 0


@pytest.mark.parametrize("backend", ["native", "batched"])
def test_state_that_is_saved_whole_is_restored_exactly(backend: str) -> None:
    with (
        make_vector_env(Settings(), 3, backend=backend) as one,
        make_vector_env(Settings(), 3, backend=backend) as two,
    ):
        one.reset()
        for actions in random_actions(one, 60):
            one.step(actions)
        assert two.load_state_dict(one.state_dict())[0] == "exact"
        for actions in random_actions(one, 100, seed=1):
            a, b = one.step(actions), two.step(actions)
            np.testing.assert_array_equal(a.obs, b.obs)
            assert a.episodes == b.episodes


def test_auto_is_native_where_that_is_the_same_and_faster() -> None:
    few, many = NATIVE_FROM - 1, NATIVE_FROM
    assert choose_backend(Settings(), many) == "native"
    assert choose_backend(Settings(), few) == "sync"
    assert choose_backend(Settings(), many, env=Diary) == "sync"
    assert choose_backend(Settings("Pendulum-v1"), many) == "sync"
    assert choose_backend(Settings(env=EnvConfig(frame_stack=2)), many) == "sync"
    assert choose_backend(Settings(env=EnvConfig(backend="async")), many) == "async"
    with make_vector_env(Settings(), many) as envs:
        assert envs.backend == "native"


def test_native_is_refused_where_it_cannot_be_right() -> None:
    with pytest.raises(EnvError, match="Pendulum-v1 has no native vector version"):
        make_vector_env(Settings("Pendulum-v1"), 2, backend="native")
    with pytest.raises(EnvError, match=r"native.*frame_skip"):
        make_vector_env(Settings(env=EnvConfig(frame_skip=2)), 2, backend="native")
    with pytest.raises(EnvError, match=r"native.*env of your own"):
        make_vector_env(Settings(), 2, backend="native", env=Diary)


def test_auto_is_sync() -> None:
    with make_vector_env(Settings(), 1) as envs:
        assert envs.backend == "sync"


def test_episode_seeds_depend_on_nothing_but_their_address() -> None:
    with make_vector_env(Settings(), 2) as few, make_vector_env(Settings(), 5) as many:
        few.reset()
        many.reset()
        assert few.episode_seeds.tolist() == many.episode_seeds.tolist()[:2]
        assert few.episode_seeds.tolist() == [episode_seed(7, 0, 0), episode_seed(7, 1, 0)]
        few.reset()
        assert few.episode_seeds.tolist() == [episode_seed(7, 0, 1), episode_seed(7, 1, 1)]
        few.reset(seed=8)
        assert few.episode_seeds.tolist() == [episode_seed(8, 0, 0), episode_seed(8, 1, 0)]


def test_episode_seeds_are_distinct_and_31_bit() -> None:
    seeds = [episode_seed(s, i, e) for s in range(3) for i in range(8) for e in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_any_episode_can_be_played_again() -> None:
    with make_vector_env(Settings(), 2) as envs:
        envs.reset()
        history: list[list[int]] = [[], []]
        for actions in random_actions(envs, 80):
            result = envs.step(actions)
            for i in range(2):
                history[i].append(int(actions[i]))
            for episode in result.episodes:
                played, history[episode.env_index] = history[episode.env_index], []
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=episode.seed)
        outcomes = [env.step(action) for action in played]
        assert [o[2] for o in outcomes] == [False] * (episode.length - 1) + [True]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_masks_move_into_the_observation(backend: str) -> None:
    settings = Settings("axiom/Masked-v0", {"n": 6, "length": 3})
    spec = probe(settings)
    assert spec.observation_space["action_mask"] == gymnasium.spaces.MultiBinary(6)  # type: ignore[index]
    assert spec.observation_space["obs"] == gymnasium.spaces.Discrete(6)  # type: ignore[index]
    with make_vector_env(settings, 2, backend=backend) as envs:
        single = gymnasium.make("axiom/Masked-v0", n=6, length=3)
        obs = envs.reset()
        assert isinstance(obs, dict)
        first, info = single.reset(seed=int(envs.episode_seeds[0]))
        assert obs["obs"][0] == first
        assert obs["action_mask"][0].tolist() == info["action_mask"].tolist()
        for step in range(3):
            allowed = np.array([np.flatnonzero(row)[0] for row in obs["action_mask"]])
            result = envs.step(allowed)
            assert (result.rewards >= 0).all()
            now, _, _, _, info = single.step(allowed[0])
            seen = result.final_obs if step == 2 else result.obs
            assert isinstance(seen, dict)
            assert seen["obs"][0] == now
            assert seen["action_mask"][0].tolist() == info["action_mask"].tolist()
            obs = result.obs


def test_tuple_masks_of_multi_discrete_are_laid_end_to_end() -> None:
    settings = Settings("axiom/MultiDiscrete-v0", {"masked": True, "sizes": (3, 4)})
    env = make_env(settings)
    obs, info = env.reset(seed=3)
    assert obs["action_mask"].tolist() == [*info["action_mask"][0], *info["action_mask"][1]]
    assert env.observation_space["action_mask"] == gymnasium.spaces.MultiBinary(7)  # type: ignore[index]


def test_episode_statistics_count_agent_steps_and_raw_rewards_under_frame_skip() -> None:
    settings = Settings("axiom/Chain-v0", {"n": 5}, EnvConfig(frame_skip=2))
    with make_vector_env(settings, 1) as envs:
        envs.reset()
        rewards = []
        episodes = []
        for _ in range(3):
            result = envs.step(np.ones(1, dtype=np.int64))
            rewards.append(float(result.rewards[0]))
            episodes += result.episodes
        assert rewards == [2.0, 2.0, 1.0]  # the third step stops in the middle: the episode is over
        assert [(e.length, e.total_reward) for e in episodes] == [(3, 5.0)]


def test_an_env_may_keep_the_action_it_got() -> None:
    class Keeper(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
        action_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
        last: Any = None

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            before, self.last = self.last, action
            return np.zeros(1, np.float32) if before is None else before, 0.0, False, False, {}

    with make_vector_env(Settings(), 1, env=Keeper) as envs:
        envs.reset()
        actions = np.full((1, 1), 1.0, dtype=np.float32)
        envs.step(actions)
        actions[:] = 5.0
        assert float(envs.step(actions).obs[0, 0]) == 1.0  # type: ignore[call-overload, index]


@pytest.mark.parametrize("backend", ["sync", "batched"])
def test_misuse_is_explained(backend: str) -> None:
    envs = make_vector_env(Settings(), 2, backend=backend)
    with pytest.raises(EnvError, match="before reset"):
        envs.step(np.zeros(2, dtype=np.int64))
    envs.reset()
    with pytest.raises(EnvError, match=r"shape \(3,\), \(2,\) is needed"):
        envs.step(np.zeros(3, dtype=np.int64))
    envs.close()
    envs.close()
    with pytest.raises(EnvError, match="closed"):
        envs.step(np.zeros(2, dtype=np.int64))


def test_sync_failure_names_env_and_seed() -> None:
    bad = episode_seed(7, 1, 0)
    settings = Settings("axiom/Fragile-v0", {"fault": "raise", "at": 2, "seed": bad})
    with make_vector_env(settings, 2) as envs:
        envs.reset()
        envs.step(np.zeros(2, dtype=np.int64))
        with pytest.raises(
            EnvError, match=rf"env 1 \(axiom/Fragile-v0, episode seed {bad}\).*broken on command"
        ):
            envs.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_rendering(backend: str) -> None:
    with make_vector_env(Settings("axiom/Identity-v0"), 2, render_mode="rgb_array", backend=backend) as envs:
        envs.reset()
        assert [frame.shape for frame in envs.render()] == [(32, 32, 3)] * 2
        assert envs.render_fps == 10
