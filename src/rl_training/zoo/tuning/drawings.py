"""The charts of a study: its history, slices through the space, values on the way, all parameters at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rl_training.zoo import formatting as fmt
from rl_training.zoo.charts import SPAN, Line, Mark, chart
from rl_training.zoo.configs import shown
from rl_training.zoo.tuning.record import StudyRecord, TrialRecord
from rl_training.zoo.tuning.report import best_so_far
from rl_training.zoo.tuning.summary import param, short_names

MAX_LINES = 200
LEGEND = (
    '<div class="legend"><span><i class="key-mark"></i>completed</span>'
    '<span><i class="key-mark pruned"></i>pruned, at its last evaluation</span>'
    '<span><i class="key-mark top"></i>the best</span></div>'
)


def history(record: StudyRecord) -> str:
    """Every trial as a dot, the best so far as a line of steps."""
    points: list[tuple[float, float]] = []
    for trial, best in zip(record.trials, best_so_far(record.trials), strict=True):
        if best is not None:
            corner = [(float(trial.number), points[-1][1])] if points and points[-1][1] != best else []
            points += [*corner, (float(trial.number), best)]
    marks = [_mark(record, trial, float(trial.number)) for trial in _shown(record)]
    return chart(
        [Line("best so far", points)], marks, title="Scores over trials", y_label="score", x_label="trial",
        x_name="trial", x_end=max(1.0, record.trials[-1].number + 0.5), x_start=-0.5, kind="tall",
        x_axis=[(tick, fmt.compact(tick)) for tick in _whole_ticks(record.trials[-1].number)],
    )  # fmt: skip


def slice_of(record: StudyRecord, key: str) -> str:
    """Score over one parameter."""
    axis = Axis(record.space[key])
    marks = [
        _mark(record, trial, axis.at(trial.params[key], trial.number))
        for trial in _shown(record)
        if key in trial.params
    ]
    return chart(
        [], marks, title=f"Score over {key}", x_start=axis.start, x_end=axis.end, x_axis=axis.ticks(),
        y_ticks=5,
    )  # fmt: skip


def on_the_way(record: StudyRecord) -> str:
    """What trials reported while they were running."""
    best = record.best
    trials = [t for t in record.trials if len(t.reported) > 1][-MAX_LINES:]
    if not trials:
        return ""
    lines = [Line(f"trial {t.number}", _curve(t), "faint") for t in trials if t is not best]
    if best is not None and len(best.reported) > 1:
        lines.append(Line(f"trial {best.number}", _curve(best), "g1"))
    last = max(len(trial.reported) for trial in trials)
    return chart(
        lines, title="Values on the way", y_label="value", x_label="evaluation", x_start=1.0, kind="tall",
        hints=False, x_axis=[(tick, fmt.compact(tick)) for tick in _whole_ticks(last) if tick >= 1],
    )  # fmt: skip


def parallel(record: StudyRecord) -> str:
    """Every completed trial as a line through its parameters and its score; the best tenth stands out."""
    whole = [trial for trial in record.of("completed") if record.space.keys() <= trial.params.keys()]
    done = sorted(whole, key=lambda trial: trial.value or 0.0)[-MAX_LINES:]
    if len(done) < 2 or len(record.space) < 2:
        return ""
    low, high = done[0].value or 0.0, done[-1].value or 0.0
    axes = {key: Axis(dimension) for key, dimension in record.space.items()}
    gap = 100 / len(axes)
    stand_out = max(1, math.ceil(len(done) / 10))
    paths = []
    for place, trial in enumerate(done):
        ys = [axis.share(trial.params[key], trial.number) for key, axis in axes.items()]
        ys.append(0.5 if high == low else ((trial.value or 0.0) - low) / (high - low))
        corners = [f"{SPAN / 100 * gap * i:.1f} {SPAN * (1 - y):.1f}" for i, y in enumerate(ys)]
        kind = "g1" if place >= len(done) - stand_out else "faint"
        paths.append(f'<path class="line {kind}" d="M{"L".join(corners)}"/>')
    names = [*short_names(axes).values(), "score"]
    ends = [*((axis.words(0), axis.words(1)) for axis in axes.values()), (fmt.number(low), fmt.number(high))]
    rules = "".join(f"M{SPAN / 100 * gap * i:.1f} 0V{SPAN}" for i in range(len(names)))
    labels = "".join(
        f'<span class="x" style="left:{gap * i:.2f}%">{escape(bottom)}<b>{escape(name)}</b></span>'
        f'<span class="top" style="left:{gap * i:.2f}%">{escape(top)}</span>'
        for i, (name, (bottom, top)) in enumerate(zip(names, ends, strict=True))
    )
    svg = f'<svg viewBox="0 0 {SPAN} {SPAN}" preserveAspectRatio="none" aria-hidden="true">'
    return (
        '<div class="scroll"><figure class="chart tall parallel" role="img" '
        'aria-label="All parameters of all completed trials">'
        f'<div class="plot">{svg}<path class="grid" d="{rules}"/>{"".join(paths)}</svg>{labels}</div>'
        "</figure></div>"
    )


class Axis:
    """Where the values of a parameter stand."""

    def __init__(self, dimension: Mapping[str, Any]) -> None:
        self.choices = [shown(choice) for choice in dimension.get("choices") or ()]
        self.low, self.high = float(dimension.get("low", 0.0)), float(dimension.get("high", 1.0))
        self.whole = dimension.get("kind") == "int"
        self.log = bool(dimension.get("log")) and self.low > 0
        if self.choices:
            self.start, self.end = -0.5, len(self.choices) - 0.5
        else:
            first, last = self._position(self.low), self._position(self.high)
            self.start, self.end = first - 0.04 * (last - first), last + 0.04 * (last - first)

    def at(self, value: Any, number: int = 0) -> float:
        """The position of a value; of choices, a little beside it, so that trials do not hide one another."""
        if not self.choices:
            return self._position(float(value))
        shift = 0.4 * (number * 0.618034 % 1.0 - 0.5)
        return self.choices.index(shown(value)) + shift if shown(value) in self.choices else -0.5

    def share(self, value: Any, number: int) -> float:
        """The position from 0 to 1."""
        return (self.at(value, number) - self.start) / (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions with labels."""
        if self.choices:
            return list(enumerate(self.choices))
        if not self.log:
            apart = math.ceil((self.high - self.low) / 4)
            numbers = (
                [float(n) for n in range(int(self.low), int(self.high) + 1, apart)] if self.whole else []
            )
            at = numbers or [x for x in fmt.ticks(self.low, self.high, 5) if self.low <= x <= self.high]
            return [(x, f"{x:g}") for x in at]
        decades = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
        at = [10.0**power for power in decades]
        if len(at) < 2:
            at = [self.low, math.sqrt(self.low * self.high), self.high]
        return [(self._position(value), f"{value:.3g}") for value in at]

    def words(self, end: int) -> str:
        """What stands at one end."""
        return self.choices[-end] if self.choices else param(self.high if end else self.low)

    def _position(self, value: float) -> float:
        return math.log10(value) if self.log and value > 0 else value


def _mark(record: StudyRecord, trial: TrialRecord, x: float) -> Mark:
    value, names = trial.value or 0.0, short_names(record.space)
    lines = [f"trial {trial.number}: {fmt.number(value)}{', pruned' * (trial.state == 'pruned')}"]
    lines += [f"{names.get(key, key)} {param(given)}" for key, given in trial.params.items()]
    kind = "pruned" if trial.state == "pruned" else "top" if trial is record.best else "done"
    return Mark(x, value, value, value, "\n".join(lines), kind)


def _shown(record: StudyRecord) -> Sequence[TrialRecord]:
    return record.of("completed", "pruned")


def _curve(trial: TrialRecord) -> list[tuple[float, float]]:
    return [(float(place), value) for place, value in enumerate(trial.reported, 1)]


def _whole_ticks(last: int) -> list[float]:
    return [tick for tick in fmt.ticks(0.0, max(1.0, float(last)), 8) if tick.is_integer() and tick <= last]
