"""Writes the table of `docs/presets.md` from the presets and from what was measured of them.

python docs/generate_presets.py            rewrite the generated part of the page
python docs/generate_presets.py --check    exit 1 if the page is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated import bring_up_to_date, with_generated
from measured import commit_text, result_of, size_text, success_text, worst_text

from rl_training.cli.extras import extra_of
from rl_training.experiment.layers import preset_layers, resolve_layers
from rl_training.experiment.presets import preset_names

PAGE = Path(__file__).with_name("presets.md")


def generated() -> str:
    """One row a preset, by algorithm."""
    lines = [
        "| preset | env | steps | extra | mean return | worst seed | seeds x episodes | commit |",
        "|---|---|--:|---|--:|--:|--:|---|",
    ]
    for name in preset_names():
        config = resolve_layers(preset_layers(name)).config
        extra = extra_of(config.env_id)
        cells = [f"`{name}`", config.env_id, f"{config.total_timesteps:,}", f"`{extra}`" if extra else ""]
        lines.append("| " + " | ".join([*cells, *_measured(name, config.total_timesteps)]) + " |")
    return "\n".join(lines)


def _measured(preset: str, steps: int) -> list[str]:
    """What the results say of a preset."""
    result = result_of(preset, steps)
    if result is None:
        return [""] * 4
    score = f"{result['summary']['mean']:,.1f}{success_text(result)}"
    return [score, worst_text(result), size_text(result), commit_text(result)]


def render(page: str) -> str:
    """The page with its generated part replaced."""
    return with_generated(page, generated())


if __name__ == "__main__":
    sys.exit(bring_up_to_date(PAGE, render))
