"""Stacks of frames in a replay buffer: recognised, stored once, and given back as the env showed them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_life import Life

from rl_training.data.frame_stacks import Stack, frame_stacks
from rl_training.data.layout import rollout_layout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import UniformSampler
from rl_training.envs import EnvConfig, make_vector_env
from rl_training.envs.wrappers import FrameStack
from rl_training.errors import AxiomError
from rl_training.types import Spec, StepResult

ATARI = Spec(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))


class Noise(gymnasium.Env[Any, Any]):
    """Shows noise of any shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [
        ((6, 5), np.uint8, 2),
        ((6, 5, 1), np.uint8, 2),
        ((84, 84, 3), np.uint8, 2),
        ((3, 84, 84), np.uint8, 0),
        ((7, 5), np.float32, 0),
        ((2,), np.float32, 0),
        ((), np.float32, 0),
        ((4, 5, 4), np.uint8, None),  # it could be either
    ],
)
def test_what_the_wrapper_stacks_is_recognised_and_taken_apart(shape: Any, dtype: Any, axis: Any) -> None:
    env = FrameStack(Noise(shape, dtype), 4)
    stacks = frame_stacks(env.observation_space, 4)
    assert [stack.axis for stack in stacks.values()] == ([] if axis is None else [axis])
    assert frame_stacks(env.observation_space, 1) == {}
    if axis is None:
        return
    env.reset(seed=0)
    before, after = (env.step(0)[0][None] for _ in range(2))
    frames = stacks[""].split(before)
    np.testing.assert_array_equal(stacks[""].split(after)[:, :-1], frames[:, 1:])
    assert frames.size == 4 * np.prod(shape, dtype=int)
    np.testing.assert_array_equal(stacks[""].join(torch.from_numpy(frames.copy())), before)


def test_only_boxes_of_a_dict_are_stacks_and_masks_never_are() -> None:
    box = spaces.Box(-1.0, 1.0, (3, 2))
    space = spaces.Dict(
        {"a": box, "action_mask": box, "b": spaces.MultiBinary((3, 2)), "c": spaces.Box(0, 1, (2,))}
    )
    assert frame_stacks(space, 3) == {"a": Stack(3, 0, (3, 2))}


def test_an_atari_transition_takes_little_more_than_its_frame() -> None:
    layout, stacks = rollout_layout(ATARI), frame_stacks(ATARI.observation_space, 4)
    buffer = ReplayBuffer(100, 2, layout, stacks=stacks)
    # the frame, 8 bytes of action, 4 of reward, 3 flags, 4 each of generation and age, 1 of history
    assert buffer.bytes_per_transition == 84 * 84 + 8 + 4 + 3 + 8 + 1
    assert sum(t.nbytes for t in buffer.tensors().values()) == buffer.size * buffer.bytes_per_transition
    assert ReplayBuffer.predict_bytes(1_000_000, layout, stacks) <= 7.5e9
    assert ReplayBuffer(100, 2, layout).bytes_per_transition > 4 * 84 * 84


@pytest.mark.parametrize("capacity", [40, 400])
@pytest.mark.parametrize("n", [1, 3])
def test_batches_hold_the_stacks_that_the_env_showed(capacity: int, n: int) -> None:
    settings = SimpleNamespace(env_id="CartPole-v1", env_kwargs={}, env=EnvConfig(frame_stack=4), seed=3)
    shown: dict[bytes, tuple[Any, int, int]] = {}
    with make_vector_env(settings, 2) as envs:
        space = envs.spec.observation_space
        buffer = ReplayBuffer(capacity, 2, rollout_layout(envs.spec), stacks=frame_stacks(space, 4))
        sampler = UniformSampler(buffer, gamma=0.9, n_step=n)
        rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        obs = envs.reset().copy()
        path: list[list[Any]] = [[(obs[i], False)] for i in range(2)]
        buffer.begin(obs)
        for _ in range(150):
            actions = rng.integers(0, 2, 2)
            result = envs.step(actions)
            buffer.add(torch.from_numpy(actions), result)
            final = dict(
                zip(result.ended.tolist(), [] if result.final_obs is None else result.final_obs, strict=True)
            )
            for i in range(2):
                if i in final:
                    path[i].append((final[i].copy(), True))
                path[i].append((result.obs[i].copy(), False))
        shown = {o.tobytes(): (o, i, t) for i in range(2) for t, (o, _) in enumerate(path[i])}
        batch = sampler.sample(300, generator)
        ends = 0
        for before, after in zip(batch.obs.numpy(), batch.next_obs.numpy(), strict=True):
            _, i, t = shown[before.tobytes()]
            steps = 0
            while steps < n and t + steps + 1 < len(path[i]):
                steps += 1
                if path[i][t + steps][1]:
                    ends += 1
                    break
            np.testing.assert_array_equal(after, path[i][t + steps][0])
        assert ends > 5
        assert buffer.dropped == 0
        assert len(buffer) >= min(300, capacity - 2 * (4 + 1))


def test_the_zeros_before_an_ale_episode_are_kept() -> None:
    vector = pytest.importorskip("ale_py.vector_env", reason="needs the extra 'atari'")
    envs = vector.AtariVectorEnv("pong", num_envs=2, num_threads=1, noop_max=5)
    obs, _ = envs.reset(seed=1)
    shown = [obs.copy()]
    assert not obs[:, :3].any()
    assert obs[:, 3].any()
    buffer = ReplayBuffer(64, 2, rollout_layout(ATARI), stacks=frame_stacks(ATARI.observation_space, 4))
    buffer.begin(obs)
    nothing = np.zeros(2, bool)
    for t in range(12):
        obs = envs.step(np.array([t % 6, 2]))[0]
        shown.append(obs.copy())
        buffer.add(
            torch.tensor([t, t]), StepResult(obs, np.zeros(2), nothing, nothing, np.array([], int), None)
        )
    envs.close()
    batch = UniformSampler(buffer, gamma=0.9).sample(64, torch.Generator().manual_seed(0))
    for i in range(64):
        t, env = int(batch.actions[i]), int(batch.index[0, i]) % 2
        np.testing.assert_array_equal(batch.obs[i], shown[t][env])
        np.testing.assert_array_equal(batch.next_obs[i], shown[t + 1][env])
    assert set(batch.actions.tolist()) == set(range(12))


def test_what_is_no_stack_at_all_is_an_error_and_not_an_empty_buffer() -> None:
    life = Life(2, 0, frames=3)
    buffer = life.buffer(50)
    buffer.begin(life.obs())

    def live() -> None:
        for _ in range(600):
            buffer.add(*life.advance([0, 0], jumps=[True, True]))

    with pytest.raises(AxiomError, match=r"env\.frame_stack: the observations are no stacks of 3 frames"):
        live()


def test_a_buffer_on_disk_holds_the_same_and_leaves_no_file(tmp_path: Path) -> None:
    life = Life(2, 0, frames=3, as_dict=True)
    on_disk, in_memory = life.buffer(30, tmp_path), life.buffer(30)
    on_disk.begin(life.obs())
    in_memory.begin(life.obs())
    for t in range(60):
        step = life.advance([int(t % 8 == 7), 0])
        on_disk.add(*step)
        in_memory.add(*step)
    assert list(tmp_path.iterdir()) == []
    for name, tensor in in_memory.tensors().items():
        assert torch.equal(tensor, on_disk.tensors()[name]), name
    batches = [
        UniformSampler(b, gamma=0.9).sample(20, torch.Generator().manual_seed(1))
        for b in (on_disk, in_memory)
    ]
    for key in ("image", "vector", "note"):
        assert torch.equal(batches[0].obs[key], batches[1].obs[key])
