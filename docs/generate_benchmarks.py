"""Writes what is generated of `docs/benchmarks.md` from the files in `benchmarks`, and the scorecard's count.

python docs/generate_benchmarks.py            rewrite what is generated
python docs/generate_benchmarks.py --check    exit 1 if it is out of date
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generated import bring_up_to_date, with_generated
from measured import RESULTS, commit_text, result_of, size_text, success_text, worst_text

from rl_training.experiment import yaml
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.zoo.bands import Band, band_text, verdict
from rl_training.zoo.statistics import Estimate, estimate, mean
from rl_training.zoo.suites import load_suite, suite_names

PAGE = Path(__file__).with_name("benchmarks.md")
SCORECARD = PAGE.with_name("scorecard.md")
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Of Student's t with 1, 2, … degrees of freedom, at 97.5 %: how many standard errors a mean may be off."""
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

    @property
    def least(self) -> float:
        """The least that is rounded to it."""
        digits = 1 if self.mean % 1 else 0
        return self.mean - 0.5 * 10.0**-digits

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
        return estimate([self.scores], mean, seed=0) if self.scores else None

    @property
    def scores(self) -> list[float]:
        """The mean return of each seed."""
        return [run["return_mean"] for run in self.result["runs"]] if self.result else []

    @property
    def most(self) -> float:
        """The most that the mean over ever more seeds might be: the upper end of a 95 % t-interval."""
        scores = self.scores
        if len(scores) < 2:
            return math.inf
        off = T_QUANTILES[min(len(scores) - 1, len(T_QUANTILES)) - 1]
        return statistics.fmean(scores) + off * statistics.stdev(scores) / math.sqrt(len(scores))

    def cells(self) -> list[str]:
        """As a line of the table."""
        assert self.result is not None
        assert self.score is not None
        low, high = self.score.bounds
        # One seed tells nothing of the spread.
        interval = f" ({low:,.1f} to {high:,.1f})" if len(self.scores) > 1 else ""
        judged = verdict(self.score.value, self.band)
        return [
            f"`{self.preset}`",
            short(self.steps),
            f"{self.score.value:,.1f}{interval}{success_text(self.result)}",
            worst_text(self.result),
            size_text(self.result),
            band_text(self.band),
            "" if judged == "no band" else judged,
            "<br>".join(map(str, self.figures)),
            commit_text(self.result),
        ]


def rows_of(suite: str) -> list[Row]:
    """The presets of a suite, in its order."""
    found = load_suite(suite).entries.items()
    return [Row(name, e.steps, e.band, result_of(name, e.steps), figures_of(name)) for name, e in found]


@cache
def published() -> dict[str, Any]:
    """The figures of others."""
    return yaml.load_file(RESULTS.with_name("published.yaml")).data


def figures_of(preset: str) -> list[Figure]:
    """What others publish for the algorithm and env of a preset."""
    data, config = published(), load_preset(preset).data
    by_source = data["figures"].get(config["env_id"], {})
    return [
        Figure(data["sources"][source]["name"], *numbers[config["algo"]])
        for source, numbers in by_source.items()
        if config["algo"] in numbers
    ]


def shortfalls(row: Row) -> Iterator[str]:
    """In what a preset is below what is expected of it, or below what others publish, beyond noise."""
    if row.result is None or row.score is None:
        return
    low = [run for run in row.result["runs"] if verdict(run["return_mean"], row.band) == "below"]
    if verdict(row.score.value, row.band) == "below":
        yield f"below its band ({band_text(row.band)})"
    elif low:
        seeds = ", ".join(f"{run['return_mean']:,.1f} (seed {run['seed']})" for run in low)
        yield f"{len(low)} of {len(row.scores)} seeds below the band: {seeds}"
    for figure in row.figures:
        if row.most < figure.least:
            more = f", after {short(row.steps)} steps here" if figure.steps != row.steps else ""
            yield f"less than {figure}{more}"


def explained(rows: list[Row]) -> list[str]:
    """Every shortfall with its cause. One without a cause is a mistake, and so is a cause of nothing."""
    causes = dict(published().get("causes") or {})
    short_of = {row.preset: (row, found) for row in rows if (found := list(shortfalls(row)))}
    if set(causes) != set(short_of):
        missing, idle = sorted(set(short_of) - set(causes)), sorted(set(causes) - set(short_of))
        raise SystemExit(f"published.yaml: causes: missing: {missing}, of nothing: {idle}")
    return [
        f"- `{preset}`, {row.score.value:,.1f}: {'; '.join(found)}. {causes[preset].strip()}"
        for preset, (row, found) in short_of.items()
        if row.score is not None
    ]


def others() -> Iterator[str]:
    """Files of other measurements: of presets with other settings or cut short, and of speed and memory."""
    presets = {f"{name.replace('/', '-')}.json" for name in preset_names()}
    for path in sorted(RESULTS.iterdir()):
        if path.is_dir():
            yield f"| `{path.name}/` | {folder_title(path)} |"
        if path.suffix != ".json" or path.name in presets:
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        if "summary" in data and "runs" in data:
            steps = sorted(run["global_step"] for run in data["runs"])
            span = " to ".join(dict.fromkeys([short(steps[0]), short(steps[-1])]))
            what = f"`{data['preset']}`, {len(steps)} seeds, {span} steps: "
            yield f"| `{path.name}` | {what}mean {data['summary']['mean']:,.1f} |"
        else:
            what = f": {data['what']}" if "what" in data else ""
            yield f"| `{path.name}` | {data.get('benchmark', 'speed or memory')}{what} |"


def folder_title(folder: Path) -> str:
    """The title of a folder's own page, or the preset that it is about."""
    if (page := folder / "README.md").is_file():
        return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    return f"`{json.loads((folder / 'about.json').read_text(encoding='utf-8'))['preset']}`, one run"


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
    missed = explained(everything)
    count = sum(row.result is not None for row in everything)
    lines += ["## Shortfalls", ""]
    lines += missed or ["None of the scores above."]
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
