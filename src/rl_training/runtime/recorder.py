"""Every step of the episodes of an evaluation, for those who want more than their returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from rl_training.policies.obs import to_tensor
from rl_training.runtime.evaluator import Moment, shares
from rl_training.types import Array, Episode, Obs, TensorObs


@dataclass(slots=True)
class Steps:
    """An episode step by step. It shows one observation more than it has actions: the true final one."""

    observations: list[TensorObs] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    """Also where a life was lost and the game went on."""
    truncations: list[bool] = field(default_factory=list)

    def stacked(self) -> Obs:
        """The observations `[steps + 1, …]`."""
        first = self.observations[0]
        if isinstance(first, dict):
            return {key: np.stack([_array(obs, key) for obs in self.observations]) for key in first}
        return np.stack([_array(obs) for obs in self.observations])


class Recorder:
    """Takes down what it is shown; to be the `on_step` of an evaluation of `num_episodes` in `num_envs`."""

    def __init__(self, num_episodes: int, num_envs: int) -> None:
        self._share = shares(num_episodes, num_envs)
        self._open = [Steps() for _ in range(num_envs)]
        self._finished: list[list[tuple[Episode, Steps]]] = [[] for _ in range(num_envs)]

    def __call__(self, moment: Moment) -> None:
        """One step of all envs."""
        result = moment.result
        for env, steps in enumerate(self._open):
            if len(self._finished[env]) == self._share[env]:
                continue  # what it plays on is nobody's
            steps.observations.append(_row(moment.obs, env))
            steps.actions.append(moment.actions[env].copy())
            steps.rewards.append(float(result.rewards[env]))
            steps.terminations.append(bool(result.terminated[env]))
            steps.truncations.append(bool(result.truncated[env]))
        if result.final_obs is None:
            return
        final = to_tensor(result.final_obs)
        for row, (env, episode) in enumerate(zip(result.ended.tolist(), result.episodes, strict=True)):
            if len(self._finished[env]) < self._share[env]:
                self._open[env].observations.append(_row(final, row))
                self._finished[env].append((episode, self._open[env]))
                self._open[env] = Steps()

    @property
    def episodes(self) -> list[tuple[Episode, Steps]]:
        """What has been finished, in the order of the evaluation's own results: env by env."""
        return [pair for column in self._finished for pair in column]


def _row(obs: TensorObs, row: int) -> TensorObs:
    return {key: value[row].cpu() for key, value in obs.items()} if isinstance(obs, dict) else obs[row].cpu()


def _array(obs: TensorObs, key: str = "") -> Array:
    leaf = obs[key] if isinstance(obs, dict) else obs
    assert isinstance(leaf, Tensor)
    array: Array = leaf.numpy()
    return array
