"""Atari scores on the scale of the literature: 0 is random play, 1 a human tester."""

from __future__ import annotations

from functools import cache
from importlib import resources

from rl_training.errors import UnknownNameError
from rl_training.experiment import yaml


@cache
def reference_scores() -> dict[str, tuple[float, float]]:
    """What random play and a human scored, by the name of the game (`Pong`)."""
    text = (resources.files("rl_training") / "zoo" / "assets" / "atari_scores.yaml").read_text("utf-8")
    return {game: (low, high) for game, (low, high) in yaml.load_text(text, "atari_scores.yaml").data.items()}


def human_normalized(env_id: str, score: float) -> float:
    """A raw score as a share of the way from random play to the human; `env_id`: `ALE/Pong-v5` or `Pong`."""
    game = env_id.rpartition("/")[2].partition("-v")[0]
    if game not in reference_scores():
        raise UnknownNameError("Atari game", game, reference_scores(), "Scores are known for 57 games.")
    low, high = reference_scores()[game]
    return (score - low) / (high - low)
