"""A trial at work: its runs, what they tell on the way, and the score they come to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment import yaml
from rl_training.experiment.config import to_dict
from rl_training.experiment.files import replace_atomically
from rl_training.experiment.layers import Resolved
from rl_training.experiment.runs import CONFIG
from rl_training.zoo.jobs import Job
from rl_training.zoo.statistics import interquartile_mean
from rl_training.zoo.tuning.study import Design


@dataclass(slots=True, eq=False)
class OpenTrial:
    """A trial whose runs are not all done."""

    number: int
    values: Mapping[str, Any]
    jobs: Sequence[Job]
    reported: int
    """How many of its values on the way are in the journal."""

    def unfinished(self) -> list[Job]:
        """Its runs that have not been evaluated, in the order of their seeds."""
        return [job for job in self.jobs if job.stage() != "done"]

    def news(self, design: Design) -> Iterator[tuple[int, float]]:
        """Positions and values that are known and not reported, in order.

        Position k of the first seed is its k-th evaluation; those of the second seed come after all of the
        first, and so on. The value is the interquartile mean, over the seeds up to this one, of what was
        measured at that point of training. So it does not matter which runs are side by side.
        """
        every = design.base.config.evaluation.every_steps
        curves = [self._curve(job, design.evaluations, every) for job in self.jobs]
        for position in range(self.reported, design.positions):
            seed, index = divmod(position, design.evaluations)
            if len(curves[seed]) <= index:
                return
            self.reported = position + 1
            yield self.reported, iqm_of([curve[index] for curve in curves[: seed + 1]])

    def scores(self) -> dict[int, float]:
        """The mean return of each seed that has been evaluated."""
        found = {job.seed: job.evaluation() for job in self.jobs}
        return {seed: result["return_mean"] for seed, result in found.items() if result is not None}

    def seconds(self) -> float:
        """How long its runs have been trained, all together."""
        return sum(job.seconds() for job in self.jobs)

    @staticmethod
    def _curve(job: Job, count: int, every: int) -> list[float]:
        """The first evaluation at or after each multiple; a run that ended early keeps its last one."""
        points = job.curve()
        found = [
            next((mean for step, mean in points if step >= k * every), None) for k in range(1, count + 1)
        ]
        known = [mean for mean in found if mean is not None]
        is_over = len(known) < count and points and job.stage() in ("trained", "done")
        return known + [points[-1][1]] * (count - len(known)) if is_over else known


def iqm_of(values: Sequence[float]) -> float:
    """The interquartile mean of a few numbers; NaN where one of them is missing."""
    return float(interquartile_mean(values)) if all(map(math.isfinite, values)) else math.nan


def open_trial(
    design: Design,
    folder: Path,
    number: int,
    values: Mapping[str, Any],
    reported: int,
    imports: Sequence[str],
) -> OpenTrial:
    """Write the trial's configuration and name its runs; a combination that cannot be trained is an error."""
    resolved = design.resolve(values)
    label = f"trial {number}"
    jobs = make_jobs(label, resolved, design, folder, design.study.seeds, imports)
    return OpenTrial(number, values, jobs, reported)


def make_jobs(
    name: str, resolved: Resolved, design: Design, folder: Path, seeds: Sequence[int], imports: Sequence[str]
) -> list[Job]:
    """The runs of one configuration, a seed each, below `folder`, which gets the configuration as a file."""
    data = {
        key: value for key, value in to_dict(resolved.config).items() if key not in ("seed", "output_dir")
    }
    data["tags"] = [*data["tags"], design.study.name, name.replace(" ", "-")]
    folder.mkdir(parents=True, exist_ok=True)
    replace_atomically(folder / CONFIG, yaml.dump(data).encode())
    words = ("--config", str(folder / CONFIG), *(word for module in imports for word in ("--import", module)))
    facts = {"preset": None, "algo": resolved.config.algo, "env_id": resolved.config.env_id}
    return [
        Job(
            name, seed, words, folder / f"seed{seed}", design.study.steps, design.study.evaluation, facts,
            tuple(imports),
        )
        for seed in seeds
    ]  # fmt: skip
