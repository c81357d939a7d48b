"""What every benchmark writes beside its figures: software, hardware, the commit and if it was changed."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rl_training.experiment.metadata import git_state, hardware, versions


def write_record(path: Path, benchmark: str, figures: dict[str, Any], *, peers: Sequence[str] = ()) -> None:
    """Write the figures of a benchmark, and what they were measured with; `peers` are other packages."""
    record = {
        "benchmark": benchmark,
        **figures,
        "python": platform.python_version(),
        "versions": {**versions(), **{name: version(name) for name in peers}},
        "hardware": hardware(),
        "git": git_state(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
