"""Groups as lines of a picture: what each is called, and its colour, the same in every chart if possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.zoo import formatting as fmt
from rl_training.zoo.groups import Group

MAX_SERIES = 8
"""As many colours as can be told apart, and so as many lines as a chart has."""


@dataclass(frozen=True, slots=True)
class Series:
    """A group with its short name and the number of its colour; one without is not drawn as a line."""

    group: Group
    label: str
    color: int | None

    @property
    def kind(self) -> str:
        """Its class in the style sheet."""
        return kind_of(self.color)


@dataclass(frozen=True, slots=True)
class Panel:
    """What is shown together: the groups of one env, the best first."""

    title: str
    series: tuple[Series, ...]

    @property
    def lines(self) -> tuple[Series, ...]:
        """Those that have a curve and that a chart has room for."""
        return tuple(series for series in self.series if series.color is not None and series.group.evaluated)

    @property
    def left_out(self) -> str:
        """`7 more not drawn`, if so."""
        return left_out(len(self.series))


def kind_of(color: int | None) -> str:
    """The class of a colour in the style sheet; without one (there are so many), it is grey."""
    return "" if color is None or color >= MAX_SERIES else f"g{color}"


def left_out(count: int) -> str:
    """What a chart of so many lines must say of those it does not have."""
    return f"{count - MAX_SERIES} more not drawn" if count > MAX_SERIES else ""


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
        own = _colors(names[:MAX_SERIES], colors)
        shown = (
            Series(group, name, own.get(place))
            for place, (group, name) in enumerate(zip(members, names, strict=True))
        )
        found.append(Panel(env, tuple(shown)))
    return found


def _colors(names: Sequence[str], remembered: dict[str, int]) -> dict[int, int]:
    """Place → a colour of its own in this panel: the remembered one, or else the free one least in use."""
    own: dict[int, int] = {}
    for place, name in enumerate(names):
        if (color := remembered.get(name)) is not None and color not in own.values():
            own[place] = color
    for place, name in enumerate(names):
        if place not in own:
            in_use = Counter(remembered.values())
            free = [color for color in range(MAX_SERIES) if color not in own.values()]
            own[place] = min(free, key=in_use.__getitem__)
            remembered.setdefault(name, own[place])
    return own


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
