"""Reference points of envs: what random play, a human and the best published agent score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Literal

from rl_training.experiment import yaml
from rl_training.zoo.atari import reference_scores

Scale = Literal["none", "reference", "human", "board"]
Points = Mapping[str, tuple[float, float]]


@cache
def known_points() -> Mapping[str, Mapping[str, float]]:
    """Env → name of a point → score."""
    source = resources.files("rl_training") / "zoo" / "references.yaml"
    own = yaml.load_text(source.read_text("utf-8"), "references.yaml").data
    games = {
        f"ALE/{game}-v5": {"random": low, "human": high} for game, (low, high) in reference_scores().items()
    }
    return {env: {**games.get(env, {}), **own.get(env, {})} for env in (*games, *own)}


def points_for(scores: Mapping[str, Sequence[float]], scale: Scale) -> Points:
    """For each env the scores that become 0 and 1. `scores` are those of everybody on the board.

    Where the file knows nothing of an env, the lowest and the highest score on the board are taken.
    """
    found: dict[str, tuple[float, float]] = {}
    for env, values in scores.items():
        known = known_points().get(env, {})
        if scale in ("reference", "human") and "random" in known and scale in known:
            found[env] = (known["random"], known[scale])
        else:
            low, high = min(values), max(values)
            found[env] = (low, high) if high > low else (low - 1.0, low)
    return found


def is_known(env: str, scale: Scale) -> bool:
    """Does the file have the two points of this scale?"""
    known = known_points().get(env, {})
    return "random" in known and scale in known
