"""The recorder: the steps of exactly those episodes that an evaluation counts, with their true last ones."""

from __future__ import annotations

import numpy as np
import torch
from runtime_helpers import Reader, count_envs

from rl_training.runtime.evaluator import evaluate
from rl_training.runtime.recorder import Recorder


def test_steps_are_those_of_the_episodes_that_count() -> None:
    with count_envs(3, lengths=lambda seed: 1 + seed % 5) as envs:
        recorder = Recorder(7, 3)
        result = evaluate(Reader(), envs, 7, device=torch.device("cpu"), on_step=recorder)
    assert tuple(episode.total_reward for episode, _ in recorder.episodes) == result.returns
    assert tuple(episode.seed for episode, _ in recorder.episodes) == result.seeds
    for episode, steps in recorder.episodes:
        observations = steps.stacked()
        assert isinstance(observations, np.ndarray)
        assert len(observations) == episode.length + 1  # with the final one, not the next episode's first
        np.testing.assert_array_equal(observations[:, 0], np.arange(episode.length + 1))
        assert sum(steps.rewards) == episode.total_reward
        assert len(steps.actions) == episode.length
        over = np.logical_or(steps.terminations, steps.truncations)
        assert over.tolist() == [False] * (episode.length - 1) + [True]
