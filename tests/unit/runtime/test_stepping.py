"""Envs that are tensors, in the loop that all others use: the same rollouts, and nothing read meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from runtime_helpers import Reader
from torch import Tensor

from rl_training.data.layout import rollout_layout
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.batched import BatchedEnv, BatchedVectorEnv, State, Uniform
from rl_training.errors import NonFiniteError
from rl_training.runtime.collector import Collector
from rl_training.runtime.profiler import Profiler
from rl_training.runtime.rewards import RewardSettings, RewardTransform


class Steps(BatchedEnv):
    """Shows [steps, end] and pays the steps taken; a seed decides at which step it terminates."""

    def __init__(self, device: torch.device, broken: str = "") -> None:
        super().__init__(device)
        self.broken = broken
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._end = Uniform([3.0], [24.0], device)

    def start(self, seeds: Tensor) -> State:
        zeros = torch.zeros(len(seeds), 1, dtype=torch.float64, device=self.device)
        return {"rows": torch.cat([zeros, self._end(seeds).floor()], dim=1)}

    def step(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor]:
        rows = state["rows"] + torch.tensor([1.0, 0.0], dtype=torch.float64, device=self.device)
        taken, end = rows.unbind(1)
        rewards = torch.where(taken == 4, torch.nan, taken) if self.broken == "reward" else taken.clone()
        return {"rows": rows}, rewards, taken >= end

    def observe(self, state: State) -> Tensor:
        rows = state["rows"].float()
        return torch.where(rows == 4, torch.inf, rows) if self.broken == "observation" else rows


class Remote(RolloutBuffer):
    """Behaves as if its tensors were on an accelerator."""

    on_host = False


class Aged(Reader):
    """Values depend on how long the state says that the episode lasts: which state was used can be seen."""

    def values(self, obs: Any, state: Any = None) -> Tensor:
        return obs[:, 0] * 10.0 + (0.0 if state is None else state["age"] * 0.25)


def steps_envs(num_envs: int = 5, limit: int | None = 6, broken: str = "") -> BatchedVectorEnv:
    return BatchedVectorEnv(Steps(torch.device("cpu"), broken), num_envs, seed=3, time_limit=limit)


def collected(
    tensors: bool,
    kind: type[RolloutBuffer],
    rollouts: int = 2,
    settings: RewardSettings | None = None,
    **env: Any,
) -> tuple[RolloutBuffer, Collector, list[Tensor]]:
    envs, policy = steps_envs(**env), Aged(stateful=True)
    rewards = RewardTransform(settings or RewardSettings(), envs.num_envs)
    generator = torch.Generator().manual_seed(0)
    collector = Collector(envs, policy, rewards, generator, torch.device("cpu"), Profiler(), tensors=tensors)
    assert collector.stepping.tensors == tensors
    collector.stepping.endings = []
    buffer = kind(16, envs.num_envs, **rollout_layout(envs.spec), tensor_steps=tensors)
    collector.start()
    last = []
    for _ in range(rollouts):
        last.append(collector.collect(buffer))
        buffer.compute_returns_and_advantages(last[-1], 0.9, 0.8)
    return buffer, collector, last


@pytest.mark.parametrize("limit", [3, 6, 16, 40, None])
@pytest.mark.parametrize("kind", [RolloutBuffer, Remote])
def test_tensors_make_the_same_rollouts_as_arrays(kind: type[RolloutBuffer], limit: int | None) -> None:
    """Limits that cut an env several times a rollout, hardly ever, never."""
    settings = RewardSettings(scale=0.5, normalize=True, clip=3.0, gamma=0.9)
    one, by_arrays, last = collected(False, RolloutBuffer, settings=settings, limit=limit)
    two, by_tensors, again = collected(True, kind, settings=settings, limit=limit)
    for a, b in zip(last, again, strict=True):
        assert torch.equal(a, b)
    first, second = one.state_dict(), two.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-6, atol=1e-6, equal_nan=True)
    for name in ("obs", "actions", "dones", "truncated", "final_values", "values"):
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(one.truncated != 0, one.final_values.isfinite())
    if limit != 16:
        assert bool(one.truncated.any()) == (limit in (3, 6))
    assert by_tensors.statistics.state_dict() == by_arrays.statistics.state_dict()
    assert by_tensors.statistics.count > 3
    assert torch.equal(by_tensors.state["age"], by_arrays.state["age"])  # type: ignore[index]
    ends = [
        [(e.step, e.envs.tolist(), np.asarray(e.final_obs).tolist()) for e in c.stepping.endings or ()]
        for c in (by_arrays, by_tensors)
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) > 1


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_a_broken_number_is_found_after_the_rollout(what: str) -> None:
    with pytest.raises(
        NonFiniteError, match=rf"the {what} of env \d at step \d+ of the rollout is NaN or inf"
    ):
        collected(True, Remote, broken=what)


def test_a_rollout_of_tensors_is_never_read() -> None:
    """All tensors are without contents: a value that was looked at, or sent to the host, would raise."""
    device = torch.device("meta")
    envs = BatchedVectorEnv(Steps(device), 5, seed=3, time_limit=6)

    class Nowhere(Aged):
        def act(self, obs: Any, state: Any = None, **_: Any) -> Any:
            output = super().act(obs, None, deterministic=True)
            actions = torch.zeros(len(obs), dtype=torch.int64, device=device)
            return type(output)(actions, output.values, output.values, {"age": state["age"] + 1})

        def initial_state(self, num_envs: int) -> Any:
            return {"age": torch.zeros(num_envs, device=device)}

    rewards = RewardTransform(RewardSettings(normalize=True, clip=1.0), 5)
    collector = Collector(envs, Nowhere(), rewards, torch.Generator(), device, Profiler(), tensors=True)
    buffer = RolloutBuffer(16, 5, **rollout_layout(envs.spec), device=device, tensor_steps=True)
    collector.start()
    with torch.inference_mode():
        last = collector.rollout(buffer)
        rewards.apply(buffer.steps("rewards"), buffer.steps("dones"))
        buffer.compute_returns_and_advantages(last, 0.99, 0.95)
    assert last.shape == (5,)
    assert buffer.full


def test_rewards_in_tensors_are_transformed_like_arrays_and_stay_where_they_are() -> None:
    rng = np.random.default_rng(0)
    settings = RewardSettings(scale=2.0, normalize=True, clip=1.5, gamma=0.9)
    arrays, tensors = RewardTransform(settings, 3), RewardTransform(settings, 3)
    for block in range(3):
        rewards = rng.normal(1.0, 4.0, (8, 3)).astype(np.float32)
        dones = (rng.random((8, 3)) < 0.3).astype(np.float32)
        given = torch.from_numpy(rewards.copy())
        arrays.apply(rewards, dones)
        tensors.apply(given, torch.from_numpy(dones))
        np.testing.assert_allclose(given.numpy(), rewards, rtol=1e-6)
        if block == 1:  # a save in the middle
            again = RewardTransform(settings, 3)
            again.load_state_dict(tensors.state_dict())
            tensors = again
    assert all(
        isinstance(x, Tensor) for x in (tensors.returns, tensors.mean, tensors.variance, tensors.count)
    )
    saved, expected = tensors.state_dict(), arrays.state_dict()
    np.testing.assert_allclose(saved["moments"], expected["moments"], rtol=1e-12)
    np.testing.assert_allclose(saved["returns"].numpy(), expected["returns"], rtol=1e-12)
    before = saved["returns"].clone()
    tensors.apply(torch.ones(2, 3), torch.zeros(2, 3))
    assert torch.equal(saved["returns"], before)  # what was saved does not go on changing
