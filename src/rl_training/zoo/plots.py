"""Learning curves as pictures, for papers and READMEs: PNG, SVG or PDF by the file's ending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import AxiomError
from rl_training.zoo.formatting import compact
from rl_training.zoo.records import RETURN, STEPS, Point, RunRecord, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAIN, EVALUATE, INK, GRID = "#2a6fd1", "#d9571e", "#565a63", "#ebebe8"
GRID_POINTS = 200
ENDINGS = (".png", ".svg", ".pdf")


def learning_curve(runs: str | Path | Sequence[str | Path], output: str | Path) -> Path:
    """Draw one run, or several of one kind (seeds): each thin, their mean thick, evaluations as points."""
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    records = [read_run(path) for path in paths]
    output = drawable(output)
    if not any(record.series(RETURN) or record.evaluations for record in records):
        named = ", ".join(map(str, paths)) or "no run"
        raise AxiomError(f"nothing to draw: no return has been recorded in {named}")
    return save(_figure(records), output)


def drawable(output: str | Path) -> Path:
    """A file that a picture can be written to."""
    output = Path(output)
    if output.suffix.lower() not in ENDINGS:
        raise AxiomError(f"{output}: the name must end in one of {', '.join(ENDINGS)}")
    return output


def save(figure: Figure, output: Path) -> Path:
    """Write a picture; the same runs give the same file."""
    import matplotlib

    undated = {".svg": "Date", ".png": "Software", ".pdf": "CreationDate"}[output.suffix.lower()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "axiomrl"}):
            figure.savefig(output, dpi=160, metadata={undated: None})
    except OSError as error:
        raise AxiomError(f"{output}: cannot be written: {error.strerror}") from None
    return output


def mean_curve(curves: Sequence[Sequence[Point]], num_points: int = GRID_POINTS) -> list[Point]:
    """The mean of curves where all of them have values, on a common grid of steps."""
    import numpy as np

    curves = [curve for curve in curves if curve]
    if not curves:
        return []
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if last < first:
        return []
    steps = np.linspace(first, last, num_points)
    values = [np.interp(steps, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    return list(zip(steps.tolist(), np.mean(values, axis=0).tolist(), strict=True))


def pooled_evaluations(runs: Sequence[RunRecord]) -> dict[int, list[float]]:
    """All episodes of all runs' evaluations, by step."""
    pooled: dict[int, list[float]] = {}
    for run in runs:
        for evaluation in run.evaluations:
            pooled.setdefault(evaluation.step, []).extend(evaluation.returns or [evaluation.mean])
    return dict(sorted(pooled.items()))


def _figure(runs: Sequence[RunRecord]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    _training(axes, [run.series(RETURN) for run in runs])
    _evaluations(axes, pooled_evaluations(runs))
    titles = ", ".join(dict.fromkeys(run.title for run in runs))
    seeds = "seeds" if len({run.seed for run in runs}) == len(runs) else "runs"
    which = f"seed {runs[0].seed}" if len(runs) == 1 else f"{len(runs)} {seeds}"
    axes.set_title(f"{titles} · {which}", loc="left", fontsize=11, pad=30, parse_math=False)
    dress(axes)
    axes.legend(
        frameon=False, fontsize=9, labelcolor=INK, ncols=2, loc="lower left", bbox_to_anchor=(-0.01, 1)
    )
    return figure


def _training(axes: Axes, curves: Sequence[Sequence[Point]]) -> None:
    several = len(curves) > 1
    for curve in curves:
        if several and curve:
            axes.plot(*zip(*curve, strict=True), color=TRAIN, linewidth=0.8, alpha=0.35)
    mean = mean_curve(curves) if several else curves[0]
    if mean:
        label = "training return, mean of the runs" if several else "training return"
        axes.plot(*zip(*mean, strict=True), color=TRAIN, linewidth=2, label=label)


def _evaluations(axes: Axes, pooled: dict[int, list[float]]) -> None:
    if not pooled:
        return
    steps = list(pooled)
    means = [sum(returns) / len(returns) for returns in pooled.values()]
    lows, highs = [min(r) for r in pooled.values()], [max(r) for r in pooled.values()]
    axes.vlines(steps, lows, highs, color=EVALUATE, linewidth=1.6, alpha=0.5, zorder=3)
    label = "evaluation mean, lowest to highest episode"
    axes.plot(steps, means, "o", color=EVALUATE, markersize=6, markeredgecolor="white", zorder=4, label=label,
              clip_on=False)  # fmt: skip


def dress(axes: Axes) -> None:
    """Light axes that do not compete with the lines."""
    axes.set_xlabel(STEPS, color=INK)
    axes.set_ylabel("return", color=INK)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: compact(value))
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
