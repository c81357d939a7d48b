"""What `--autotune` leaves behind: a configuration file that builds on what was profiled."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment import yaml
from rl_training.experiment.files import replace_atomically, saving
from rl_training.experiment.layers import file_layers
from rl_training.experiment.sections import merged
from rl_training.profiling.tuning import Tuned


def require_writable(path: Path, base: Path | None) -> None:
    """Refuse a place for the file before anything is measured; `base` is the configuration profiled."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory")
    if base is not None and path.resolve() == base.resolve():
        raise ConfigError(f"{path}: is the configuration that is profiled; choose another file")
    sources = [] if base is None else file_layers(base)
    if path.resolve() in (Path(layer.origin).resolve() for layer in sources):
        raise ConfigError(f"{path}: is included by the configuration that is profiled; choose another file")
    with saving(path), tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".axiomrl-"):
        pass  # only trying tells whether a file can be made there


def write_overrides(
    path: Path, tuned: Tuned, *, preset: str | None, base: Path | None, given: Mapping[str, Any]
) -> None:
    """Write the settings that were kept, on top of the preset, the file and the overrides profiled."""
    values: dict[str, Any] = {}
    if preset is not None:
        values["preset"] = preset
    if base is not None:
        values["include"] = os.path.relpath(base.resolve(), path.absolute().parent.resolve())
    values = merged(values, given)
    for candidate in tuned.chosen:
        values = merged(values, candidate.changes())
    lines = [*_remark(tuned), *(yaml.dump_line({key: value}) for key, value in values.items())]
    with saving(path):
        replace_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def _remark(tuned: Tuned) -> list[str]:
    if tuned.comparison is None:
        return ["# axiomrl profile --autotune found nothing faster than the settings profiled"]
    found, names = tuned.comparison, ", ".join(candidate.name for candidate in tuned.chosen)
    speeds = f"{found.speed:,.0f} steps/s instead of {found.present_speed:,.0f}"
    return [
        f"# axiomrl profile --autotune: {names}",
        f"# measured in turns: {speeds}; the whole run is {found.gain:.2f} times as fast",
    ]
