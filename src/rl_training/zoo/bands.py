"""What is expected of a preset's score, and how that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Band = tuple[float | None, float | None]
"""The least and the most that a mean over seeds should be; None: no limit on that side."""


def verdict(mean: float, band: Band | None) -> str:
    """Where a score lies: `inside` its band, `below` or `above` it, or `no band`."""
    low, high = band or (None, None)
    if low is None and high is None:
        return "no band"
    if low is not None and mean < low:
        return "below"
    return "above" if high is not None and mean > high else "inside"


def band_text(band: Sequence[float | None] | None) -> str:
    """A band as people read it."""
    low, high = band or (None, None)
    if low is not None and high is not None:
        return f"{low:,g} to {high:,g}"
    if low is not None:
        return f"at least {low:,g}"
    return f"at most {high:,g}" if high is not None else "-"


def summary_rows(manifest: Mapping[str, Any]) -> list[list[str]]:
    """What came out, a row a preset."""
    rows = [["RUNS", "SEEDS", "MEAN", "WORST", "BEST", "BAND", ""]]
    for name, summary in manifest["summary"].items():
        scores = [f"{summary[key]:,.1f}" if key in summary else "-" for key in ("mean", "min", "max")]
        judged = "" if summary["verdict"] == "no band" else summary["verdict"]
        seeds = f"{summary['completed']} of {summary['seeds']}"
        rows.append([name, seeds, *scores, band_text(summary.get("band")), judged])
    return rows
