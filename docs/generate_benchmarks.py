"""Writes what is generated of `docs/benchmarks.md` from the files in `benchmarks`, and the scorecard's count.

python docs/generate_benchmarks.py            rewrite what is generated
python docs/generate_benchmarks.py --check    exit 1 if it is out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generated import bring_up_to_date, with_generated

from rl_training.experiment import yaml
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.zoo.bands import Band, band_text, verdict
from rl_training.zoo.statistics import Estimate, estimate, mean
from rl_training.zoo.suites import load_suite, suite_names

PAGE = Path(__file__).with_name("benchmarks.md")
SCORECARD = PAGE.with_name("scorecard.md")
HOME = Path(__file__).parents[1] / "benchmarks"
COLUMNS = (
    "preset", "steps", "mean return (95 % interval)", "worst seed", "seeds x episodes", "band", "",
    "published", "commit",
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """What somebody else publishes."""

    source: str
    mean: float
    std: float | None
    steps: int

    def __str__(self) -> str:
        spread = f" ± {self.std:,g}" if self.std else ""
        return f"{self.mean:,g}{spread} @ {short(self.steps)} ({self.source})"


@dataclass(frozen=True)
class Row:
    """A preset: what it scores, what is expected of it, and what others score."""

    preset: str
    steps: int
    band: Band | None
    result: dict[str, Any] | None
    figures: list[Figure]

    @property
    def score(self) -> Estimate | None:
        """The mean over seeds, with its 95 % interval."""
        if self.result is None:
            return None
        return estimate([[run["return_mean"] for run in self.result["runs"]]], mean, seed=0)

    def cells(self) -> list[str]:
        """As a line of the table."""
        assert self.result is not None
        assert self.score is not None
        runs, score = self.result["runs"], self.score
        low, high = score.bounds
        success = self.result["summary"].get("success_rate")
        reached = "" if success is None else f", success {success:.2f}"
        commit = (self.result["git"] or {}).get("commit") or ""
        judged = verdict(score.value, self.band)
        return [
            f"`{self.preset}`",
            short(self.steps),
            f"{score.value:,.1f} ({low:,.1f} to {high:,.1f}){reached}",
            f"{min(run['return_mean'] for run in runs):,.1f}",
            f"{len(runs)} x {self.result['episodes']}",
            band_text(self.band),
            "" if judged == "no band" else judged,
            "<br>".join(map(str, self.figures)),
            f"`{commit[:7]}`" if commit else "",
        ]


def rows_of(suite: str) -> list[Row]:
    """The presets of a suite, in its order."""
    found = load_suite(suite).entries.items()
    return [Row(name, e.steps, e.band, result_of(name, e.steps), figures_of(name)) for name, e in found]


def result_of(preset: str, steps: int) -> dict[str, Any] | None:
    """What was measured of a preset, if it is of the number of steps that it has now."""
    path = HOME / "results" / f"{preset.replace('/', '-')}.json"
    result: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return None if result is None or any(run["global_step"] < steps for run in result["runs"]) else result


@cache
def published() -> dict[str, Any]:
    """The figures of others."""
    return yaml.load_file(HOME / "published.yaml").data


def figures_of(preset: str) -> list[Figure]:
    """What others publish for the algorithm and env of a preset."""
    data, config = published(), load_preset(preset).data
    by_source = data["figures"].get(config["env_id"], {})
    return [
        Figure(data["sources"][source]["name"], *numbers[config["algo"]])
        for source, numbers in by_source.items()
        if config["algo"] in numbers
    ]


def shortfalls(rows: list[Row]) -> Iterator[str]:
    """Scores below their band, and scores whose interval ends below what somebody else publishes."""
    for row in rows:
        if row.score is None:
            continue
        said, high = f"`{row.preset}` scores {row.score.value:,.1f}", row.score.bounds[1]
        if verdict(row.score.value, row.band) == "below":
            yield f"{said}, below its band ({band_text(row.band)})."
        for figure in row.figures:
            if high < figure.mean:
                more = f", after {short(row.steps)} steps here" if figure.steps != row.steps else ""
                yield f"{said}, less than {figure}{more}."


def others() -> Iterator[str]:
    """Files of other measurements: of presets with other settings or cut short, and of speed and memory."""
    presets = {f"{name.replace('/', '-')}.json" for name in preset_names()}
    for path in sorted((HOME / "results").glob("*.json")):
        if path.name in presets:
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        if "summary" in data and "runs" in data:
            steps = sorted(run["global_step"] for run in data["runs"])
            span = " to ".join(dict.fromkeys([short(steps[0]), short(steps[-1])]))
            what = f"`{data['preset']}`, {len(steps)} seeds, {span} steps: "
            yield f"| `{path.name}` | {what}mean {data['summary']['mean']:,.1f} |"
        else:
            yield f"| `{path.name}` | {data.get('benchmark', 'speed or memory')} |"


def short(steps: int) -> str:
    """A number of steps as people say it."""
    if steps >= 1_000_000:
        return f"{steps / 1e6:.3g}M"
    return f"{steps / 1e3:.3g}k" if steps >= 1000 else str(steps)


def generated() -> str:
    """Tables by suite, then what falls short, then the rest."""
    lines: list[str] = []
    everything: list[Row] = []
    for suite in suite_names():
        rows = rows_of(suite)
        everything += rows
        lines += [f"## {suite}", "", f"{load_suite(suite).description}.", ""]
        measured = [row for row in rows if row.result is not None]
        if measured:
            lines += [f"| {' | '.join(COLUMNS)} |", "|---|--:|--:|--:|--:|--:|---|---|---|"]
            lines += [f"| {' | '.join(row.cells())} |" for row in measured] + [""]
        if left := [f"`{row.preset}`" for row in rows if row.result is None]:
            lines += [f"Not measured yet: {', '.join(left)}.", ""]
    missed = list(shortfalls(everything))
    count = sum(row.result is not None for row in everything)
    lines += ["## Shortfalls", ""]
    lines += [f"- {line}" for line in missed] or ["None of the scores above."]
    lines += ["", f"Measured: {count} of {len(everything)} presets.", "", "## Other files", ""]
    lines += [
        "| file | what it holds |",
        "|---|---|",
        *others(),
        "",
        "## Sources of the published figures",
        "",
    ]
    lines += [f"- {s['name']}, {s['where']}: {s['how']}." for s in published()["sources"].values()]
    return "\n".join(lines)


def render(page: str) -> str:
    """The page with its generated part replaced."""
    return with_generated(page, generated())


def count_on(scorecard: str) -> str:
    """The scorecard with the number of presets that have been measured."""
    counted = re.search(r"^Measured: (.*)\.$", generated(), re.MULTILINE)
    assert counted is not None
    return re.sub(r"\d+ of \d+ presets(?= have been measured)", counted[1], scorecard)


if __name__ == "__main__":
    sys.exit(bring_up_to_date(PAGE, render) | bring_up_to_date(SCORECARD, count_on))
