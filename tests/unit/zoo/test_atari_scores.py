"""Human-normalised scores: the scale, and that every game of the table is a game of ALE."""

from __future__ import annotations

import gymnasium
import pytest

from rl_training.errors import UnknownNameError
from rl_training.zoo.atari import human_normalized, reference_scores


def test_random_play_is_zero_a_human_is_one_and_more_is_more() -> None:
    assert human_normalized("ALE/Breakout-v5", 1.7) == 0.0
    assert human_normalized("Breakout", 30.5) == 1.0
    assert human_normalized("ALE/Pong-v5", 21.0) == pytest.approx(41.7 / 35.3)
    assert human_normalized("ALE/Skiing-v5", -4336.9) == 1.0  # negative scores, and higher is still better


def test_there_are_57_games_each_with_room_between_random_and_human() -> None:
    scores = reference_scores()
    assert len(scores) == 57
    assert all(low < high for low, high in scores.values())


def test_an_unknown_game_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Breakout"):
        human_normalized("ALE/Brekout-v5", 1.0)


def test_every_game_is_one_of_ale() -> None:
    ale_py = pytest.importorskip("ale_py", reason="needs the extra: atari")
    gymnasium.register_envs(ale_py)
    assert {f"ALE/{game}-v5" for game in reference_scores()} <= set(gymnasium.registry)
