"""`axiomrl plot`: learning curves of groups with their bands, one panel an env, as a picture file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import AxiomError
from rl_training.zoo.groups import Group
from rl_training.zoo.plots import INK, drawable, dress, save
from rl_training.zoo.series import Panel, kind_of, panels
from rl_training.zoo.statistics import CONFIDENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TONES = ("#2a6fd1", "#d9571e", "#14925f", "#6b53c4", "#0f8ea3", "#c4408f", "#c28a00", "#c23030")
COLORS = {kind_of(color): tone for color, tone in enumerate(TONES)}


def plot_groups(
    groups: Sequence[Group],
    output: str | Path,
    *,
    title: str = "",
    threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Path:
    """Draw the interquartile mean of each group's evaluations with its interval, and write the picture."""
    from matplotlib.figure import Figure

    output, drawn = drawable(output), [panel for panel in panels(groups) if panel.lines]
    if not drawn:
        raise AxiomError("nothing to draw: no evaluation has been recorded of a run that has a score")
    columns = 1 if len(drawn) == 1 else 2 if len(drawn) <= 4 else 3
    rows = math.ceil(len(drawn) / columns)
    width = 7.2 if columns == 1 else 4.6 * columns
    figure = Figure(
        figsize=(width, 0.4 * bool(title) + (4.0 if columns == 1 else 3.1) * rows), layout="constrained"
    )
    figure.set_facecolor("white")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, own in zip(drawn, axes, strict=False):
        _panel(own, panel, threshold, confidence)
    for empty in axes[len(drawn) :]:
        empty.set_visible(False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", parse_math=False)
    return save(figure, output)


def _panel(axes: Axes, panel: Panel, threshold: float | None, confidence: float) -> None:
    for series in panel.lines:
        curve, color = series.group.curve(confidence), COLORS[series.kind]
        label = f"{series.label} ({series.group.evaluated})"
        single = "o" if len(curve.steps) == 1 else None
        axes.plot(curve.steps, curve.value, color=color, linewidth=1.8, label=label, marker=single)
        if curve.band:
            steps, low, high = zip(*curve.band, strict=True)
            axes.fill_between(steps, low, high, color=color, alpha=0.16, linewidth=0)
    if panel.left_out:
        axes.plot([], [], linestyle="none", label=panel.left_out)
    if threshold is not None:
        axes.axhline(threshold, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    dress(axes)
    axes.locator_params(axis="x", nbins=6)
    axes.set_title(panel.title, loc="left", fontsize=11, parse_math=False)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="best")
