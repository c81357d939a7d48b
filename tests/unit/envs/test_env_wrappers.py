"""Wrappers, by numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import Settings
from gymnasium import spaces

from rl_training.envs import EnvConfig, make_env, make_vector_env
from rl_training.envs.wrappers import AreaResize, FlattenDict, FrameStack, to_gray
from rl_training.errors import EnvError


class Film(gymnasium.Env[Any, Any]):
    """Frame t is filled with t; ends after `length` frames; the reward is t."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.uint8, length: int = 5) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(2)
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._frame(), float(self.t), self.t == self.length, False, {}

    def _frame(self) -> Any:
        return np.full(self.observation_space.shape, self.t, dtype=self.observation_space.dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "stacked", "axis"),
    [
        ((6, 5), np.uint8, (6, 5, 3), 2),
        ((6, 5, 1), np.uint8, (6, 5, 3), 2),
        ((6, 5, 3), np.uint8, (6, 5, 9), 2),
        ((3, 6, 5), np.uint8, (9, 6, 5), 0),
        ((2,), np.float32, (3, 2), 0),
        ((), np.float32, (3,), 0),
    ],
)
def test_frame_stack_layout(shape: Any, dtype: Any, stacked: Any, axis: int) -> None:
    env = FrameStack(Film(shape, dtype), 3)
    assert env.observation_space.shape == stacked
    channels = stacked[axis] // 3
    for _ in range(2):  # the second episode starts clean
        obs, _ = env.reset(seed=0)
        assert np.unique(obs).tolist() == [0]
        env.step(0)
        obs = env.step(0)[0]
        assert obs.shape == stacked
        assert obs.dtype == dtype
        by_frame = np.moveaxis(obs, axis, 0).reshape(3, channels, -1)
        assert [np.unique(frame).tolist() for frame in by_frame] == [[0], [1], [2]]
        assert env.observation_space.contains(obs)


def test_frame_stack_copies_arrays_that_the_env_reuses() -> None:
    class Reusing(Film):
        def _frame(self) -> Any:
            self.canvas = getattr(self, "canvas", np.zeros(2, np.float32))
            self.canvas[:] = self.t
            return self.canvas

    env = FrameStack(Reusing((2,), np.float32), 2)
    env.reset(seed=0)
    assert env.step(0)[0].tolist() == [[0, 0], [1, 1]]


def test_frame_stack_in_a_dict_leaves_masks_alone() -> None:
    env = make_env(Settings("axiom/DictObs-v0", {"size": 8}, EnvConfig(frame_stack=4)))
    assert {k: s.shape for k, s in env.observation_space.items()} == {"image": (8, 8, 4), "vector": (4, 2)}  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"env.frame_stack does not apply"):
        make_env(Settings("axiom/Identity-v0", {}, EnvConfig(frame_stack=4)))


def test_frame_skip_sums_rewards_and_stops_at_the_end() -> None:
    env = make_env(Settings(env=EnvConfig(frame_skip=3)), env=lambda: Film((2,), np.float32, length=5))
    env.reset(seed=0)
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs.tolist(), reward, terminated) == ([3, 3], 6.0, False)
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs.tolist(), reward, terminated) == ([5, 5], 9.0, True)


def test_gray_is_the_luma_of_bt601() -> None:
    image = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], dtype=np.uint8)
    assert to_gray(image)[0, :, 0].tolist() == [76, 150, 29, 255]
    assert to_gray(image).dtype == np.uint8


def test_resize_averages_areas() -> None:
    image = np.arange(16, dtype=np.float32).reshape(4, 4, 1)
    assert AreaResize((2, 2))(image)[:, :, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    row = np.array([0.0, 30.0, 90.0], dtype=np.float32).reshape(1, 3, 1)
    np.testing.assert_allclose(AreaResize((1, 2))(row)[0, :, 0], [10.0, 70.0], rtol=1e-6)
    assert AreaResize((2, 2))(np.full((1, 1, 3), 9, np.uint8)).tolist() == [[[9] * 3] * 2] * 2
    big = np.random.default_rng(0).integers(0, 256, (210, 160, 3)).astype(np.uint8)
    small = AreaResize((84, 84))(big)
    assert small.shape == (84, 84, 3)
    assert abs(float(small.mean()) - float(big.mean())) < 0.1


def test_gray_resize_and_stack_together() -> None:
    config = EnvConfig(grayscale=True, resize=(4, 3), frame_stack=2)
    env = make_env(Settings(env=config), env=lambda: Film((8, 6, 3)))
    assert env.observation_space == spaces.Box(0, 255, (4, 3, 2), np.uint8)
    env.reset(seed=0)
    obs = env.step(0)[0]
    assert obs[..., 0].tolist() == [[0] * 3] * 4
    assert obs[..., 1].tolist() == [[1] * 3] * 4


def test_image_options_need_images() -> None:
    with pytest.raises(EnvError, match=r"env.grayscale does not apply"):
        make_env(Settings(env=EnvConfig(grayscale=True)))
    with pytest.raises(EnvError, match=r"env.resize does not apply"):
        make_env(Settings(env=EnvConfig(resize=(8, 8))))


class Nested(Film):
    def __init__(self) -> None:
        super().__init__((2,), np.float32)
        box = self.observation_space
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            {"a": box, "b": spaces.Dict({"c": box, "d": spaces.Dict({"e": box})})}
        )

    def _frame(self) -> Any:
        frame = np.full(2, self.t, np.float32)
        return {"a": frame, "b": {"c": frame + 1, "d": {"e": frame + 2}}}


def test_nested_dicts_become_flat() -> None:
    with make_vector_env(Settings(), 1, env=Nested) as envs:
        assert list(envs.spec.observation_space) == ["a", "b/c", "b/d/e"]  # type: ignore[call-overload]
        envs.reset()
        obs = envs.step(np.zeros(1, dtype=np.int64)).obs
        assert isinstance(obs, dict)
        assert {key: rows[0].tolist() for key, rows in obs.items()} == {
            "a": [1.0, 1.0],
            "b/c": [2.0, 2.0],
            "b/d/e": [3.0, 3.0],
        }


def test_flat_names_must_not_collide() -> None:
    env = Film((2,), np.float32)
    box = env.observation_space
    env.observation_space = spaces.Dict({"a/b": box, "a": spaces.Dict({"b": box})})  # type: ignore[assignment]
    with pytest.raises(EnvError, match="two entries of one name"):
        FlattenDict(env)


class Camera(Film):
    """A film whose observations say nothing: frame t is only to be seen in its picture."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "rgb_array", picture: Any = None) -> None:
        super().__init__((2,), np.float32, length=9)
        self.render_mode, self.picture = render_mode, picture
        self.drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        return np.full((8, 10, 3), 10 * self.t, np.uint8) if self.picture is None else self.picture


def test_pixels_are_what_the_env_renders_once_a_step() -> None:
    camera = Camera()
    config = EnvConfig(pixels=True, frame_skip=2, grayscale=True, resize=(4, 5), frame_stack=3)
    with make_vector_env(Settings("camera", env=config), 1, env=camera) as envs:
        assert envs.spec.observation_space == spaces.Box(0, 255, (4, 5, 3), np.uint8)
        envs.reset()
        before = camera.drawn
        rewards = [float(envs.step(np.zeros(1, np.int64)).rewards[0]) for _ in range(2)]
        last = envs.step(np.zeros(1, np.int64))
        assert camera.drawn == before + 3
        np.testing.assert_array_equal(last.obs[0, 0, 0], [20, 40, 60])
        assert [*rewards, float(last.rewards[0])] == [1 + 2, 3 + 4, 5 + 6]


def test_registered_envs_are_made_so_that_they_render() -> None:
    with make_vector_env(Settings("axiom/Spot-v0", {"pixels": 12}, EnvConfig(pixels=True)), 2) as envs:
        obs = envs.reset()
        assert obs.shape == (2, 12, 12, 3)
        assert (obs == 255).sum(axis=(1, 2, 3)).tolist() == [12, 12]  # a spot of 2 x 2 in three colours
        assert (obs[0] != obs[1]).any()


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        (Camera(render_mode=None), "needs an env with render_mode 'rgb_array', not None"),
        (Camera(picture=np.zeros((8, 10), np.uint8)), "gives no picture of bytes"),
        (Camera(picture=np.zeros((8, 10, 3))), "gives no picture of bytes"),
        (Camera(picture=[]), "gives no picture of bytes"),
    ],
)
def test_pixels_need_pictures(camera: Camera, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_env(Settings("camera", env=EnvConfig(pixels=True)), env=camera)


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes:UserWarning")
def test_pixels_need_an_env_that_renders() -> None:
    with pytest.raises(EnvError, match=r"env\.pixels: rendering axiom/Chain-v0"):
        make_env(Settings("axiom/Chain-v0", env=EnvConfig(pixels=True)))
    with pytest.raises(EnvError, match=r"'native' cannot be combined with env\.pixels"):
        make_vector_env(Settings("CartPole-v1", env=EnvConfig(pixels=True)), 2, backend="native")
    assert EnvConfig(pixels=True).problems("CartPole-v1") == []
    both = EnvConfig(pixels=True, atari={"preprocess": True})  # type: ignore[arg-type]
    assert any("env.pixels" in problem for problem in both.problems("ALE/Pong-v5"))
