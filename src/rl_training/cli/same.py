"""Are the settings of a run those that a command asks for? What may differ is said in `zoo/configs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig, to_dict
from rl_training.experiment.drift import Change, config_changes
from rl_training.experiment.layers import Layer, Resolved, file_layers, preset_layers, resolve_layers
from rl_training.experiment.metadata import read_metadata
from rl_training.experiment.runs import CONFIG
from rl_training.zoo.configs import is_free
from rl_training.zoo.jobs import Job

ADVICE = "give another --output-dir, or remove those runs"


def require_same(job: Job, resolved: Resolved) -> None:
    """A run that is there must be one that this command would make."""
    run = job.run_dir()
    if run is None or not (run / CONFIG).is_file():
        return
    there = _config_of(run / CONFIG)
    chosen = {"backend": there.env.backend} if resolved.config.env.backend == "auto" else {}
    fixed = Layer("the runner", {"seed": job.seed, "env": chosen})
    asked = resolve_layers([Layer("asked for", to_dict(resolved.config)), fixed])
    different = [f"another {c.key}: {c.old!r}, not {c.new!r}" for c in _settings(there, asked)]
    different += _other_weights(_command_of(run), job.arguments)
    if different:
        raise ConfigError([*(f"{run}: made with {words}" for words in different), ADVICE])


def require_label(preset: str, resolved: Resolved) -> None:
    """Results of other settings must not take the place of the preset's own."""
    own = resolve_layers(preset_layers(preset)).config
    if changes := _settings(own, resolved):
        keys = ", ".join(change.key for change in changes)
        raise ConfigError(
            f"command line: --results: these are not results of {preset}, whose file they would replace "
            f"(other {keys}); give the file another name by --label"
        )


def _settings(there: TrainConfig, asked: Resolved) -> list[Change]:
    """What makes it another experiment: all but what a run may choose."""
    changes = config_changes(there, asked)
    return [change for change in changes if change.effect == "drift" or not is_free(change.key)]


def _config_of(path: Path) -> TrainConfig:
    try:
        return resolve_layers(file_layers(path)).config
    except ConfigError as error:
        problems = [text if text.startswith(str(path)) else f"{path}: {text}" for text in error.problems]
        raise ConfigError([*problems, ADVICE]) from None


def _other_weights(then: Sequence[Any], now: Sequence[Any]) -> list[str]:
    """Are the weights that it begins with others? Paths count as they are written, or where they lead."""
    old, new = _init_from(then), _init_from(now)
    same = old == new or (old is not None and new is not None and Path(old).resolve() == Path(new).resolve())
    return [] if same else [f"--init-from {old or 'nothing'}, not {new or 'nothing'}"]


def _command_of(run: Path) -> Sequence[Any]:
    """The command that began the run, as it is recorded."""
    try:
        return list(read_metadata(run).get("command") or ())
    except CheckpointError:
        return ()


def _init_from(words: Sequence[Any]) -> str | None:
    return next((str(after) for word, after in pairwise(words) if word == "--init-from"), None)
