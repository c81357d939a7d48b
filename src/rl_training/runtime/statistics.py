"""What is remembered of finished episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_training.types import Episode


class EpisodeStatistics:
    """Returns, lengths and successes of the last hundred finished episodes, and how many there were."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.successes: deque[bool] = deque(maxlen=window)
        self.count = 0

    def add(self, episodes: tuple[Episode, ...]) -> None:
        """Book finished episodes."""
        for episode in episodes:
            self.returns.append(episode.total_reward)
            self.lengths.append(episode.length)
            if episode.success is not None:
                self.successes.append(episode.success)
        self.count += len(episodes)

    def extend(
        self,
        returns: Sequence[float],
        lengths: Sequence[int],
        count: int,
        successes: Sequence[bool] = (),
    ) -> None:
        """Book `count` finished episodes, of which no more than the last ones of a window need be known."""
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        self.successes.extend(successes)
        self.count += count

    def take(self) -> dict[str, Any]:
        """What there is, as `extend` books it, and forget it."""
        taken = self.state_dict()
        self.load_state_dict(EpisodeStatistics().state_dict())
        return taken

    def metrics(self) -> dict[str, float]:
        """Means over the window; nothing before the first episode has ended."""
        metrics = {"rollout/episodes": float(self.count)}
        if self.returns:
            metrics["rollout/return_mean"] = float(np.mean(self.returns))
            metrics["rollout/length_mean"] = float(np.mean(self.lengths))
        if self.successes:
            metrics["rollout/success_rate"] = float(np.mean(self.successes))
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The window and the count."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "successes": list(self.successes),
            "count": self.count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.returns.clear()
        self.returns.extend(state["returns"])
        self.lengths.clear()
        self.lengths.extend(state["lengths"])
        self.successes.clear()
        self.successes.extend(state.get("successes", ()))  # older checkpoints have none
        self.count = state["count"]
