"""Groups as lines of a picture: what each is called and which colour it has, the same in every chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.zoo import formatting as fmt
from rl_training.zoo.groups import Group

MAX_SERIES = 8


@dataclass(frozen=True, slots=True)
class Series:
    """A group with its short name and the number of its colour."""

    group: Group
    label: str
    color: int

    @property
    def kind(self) -> str:
        """Its class in the style sheet."""
        return f"g{self.color}"


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn together: the groups of one env, the best first, and how many had no room."""

    title: str
    series: tuple[Series, ...]
    left_out: int = 0


def panels(groups: Sequence[Group]) -> list[Panel]:
    """One panel an env; groups that mix envs share one panel of their own."""
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        if group.score is not None:
            by_env.setdefault(group.envs[0] if len(group.envs) == 1 else "several envs", []).append(group)
    colors: dict[str, int] = {}
    found = []
    for env, members in sorted(by_env.items()):
        members.sort(key=lambda g: -(g.score.value if g.score else 0.0))
        names = labels(members)
        shown = [
            Series(group, name, colors.setdefault(name, len(colors) % MAX_SERIES))
            for group, name in zip(members[:MAX_SERIES], names, strict=False)
        ]
        found.append(Panel(env, tuple(shown), len(members) - len(shown)))
    return found


def labels(groups: Sequence[Group]) -> list[str]:
    """The shortest names that tell the groups of one env apart: the algorithm alone, if that is enough."""
    short = [_without(group, ("env", "preset")) for group in groups]
    if all(short) and max(Counter(short).values(), default=1) == 1:
        return short
    return [_without(group, ("env",)) or group.label for group in groups]


def _without(group: Group, keys: Sequence[str]) -> str:
    parts = [
        value if key in ("algo", "preset", "run", "status", "tags") else f"{key.rpartition('.')[2]} {value}"
        for key, value in zip(group.keys, group.values, strict=True)
        if key not in keys and value != fmt.NONE
    ]
    return " · ".join(parts)
