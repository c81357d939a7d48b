"""Is the best really better? Best and base trained anew on seeds that no trial has seen, and compared."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment import yaml
from rl_training.experiment.config import to_dict
from rl_training.experiment.files import replace_atomically
from rl_training.experiment.sections import merged, nested
from rl_training.zoo.compare import Samples, comparison_data, judge
from rl_training.zoo.configs import value_at
from rl_training.zoo.manifest import Plan
from rl_training.zoo.statistics import estimate
from rl_training.zoo.tuning.record import PRESET
from rl_training.zoo.tuning.study import Design
from rl_training.zoo.tuning.trials import make_jobs

FOLDER = "validation"
NOT_IN_A_PRESET = ("seed", "output_dir", "tags", "threads")


def validation_plan(
    design: Design, folder: Path, number: int, values: Mapping[str, Any], imports: Sequence[str],
    command: Sequence[str],
) -> Plan:  # fmt: skip
    """The runs of base and best on the held-out seeds."""
    study, best = design.study, f"trial {number}"
    where, seeds = folder / FOLDER, design.study.held_out
    jobs = [
        *make_jobs("base", design.base, design, where / "base", seeds, imports),
        *make_jobs(best, design.resolve(values), design, where / f"trial-{number:04d}", seeds, imports),
    ]
    return Plan(f"{study.name}: held-out seeds", where, command, jobs, study.evaluation)


def verdict_of(design: Design, number: int, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """What came out, once every run is there; A is the base and B the best."""
    runs = manifest["runs"]
    if not runs or any(run["status"] != "completed" for run in runs):
        return None
    base, best = (
        [run["return_mean"] for run in runs if run["name"] == name] for name in ("base", f"trial {number}")
    )
    task = f"{design.base.config.algo} · {design.base.config.env_id}"
    compared = judge("return", [Samples(task, base, best, "runs")])
    return {
        "trial": number,
        "seeds": list(design.study.held_out),
        "base": {"scores": base, **_estimate(base)},
        "best": {"scores": best, **_estimate(best)},
        **comparison_data(compared)["tasks"][0],
    }


def write_preset(design: Design, folder: Path, values: Mapping[str, Any], remarks: Sequence[str]) -> Path:
    """The best configuration with all that was not left to defaults, to be given to `train`."""
    resolved = design.preset(values)
    data: dict[str, Any] = {}
    everything = to_dict(resolved.config)
    for path in resolved.origins:
        found = value_at(everything, ".".join(path))
        if path[0] not in NOT_IN_A_PRESET and not isinstance(found, Mapping):  # a section is its fields
            data = merged(data, nested(".".join(path), found))
    ordered = {key: data[key] for key in everything if key in data}
    lines = [f"# {line}" for remark in remarks for line in textwrap.wrap(remark, 100)]
    text = "\n".join([*lines, yaml.dump(ordered)])
    replace_atomically(folder / PRESET, text.encode())
    return folder / PRESET


def _estimate(scores: Sequence[float]) -> dict[str, Any]:
    found = estimate([scores])
    return {"iqm": found.value, "iqm_low": found.low, "iqm_high": found.high}
