"""Presets: tuned configurations that ship with the package, by names like `ppo/cartpole`."""

from __future__ import annotations

from functools import cache
from importlib import resources

from rl_training.errors import UnknownNameError
from rl_training.experiment import yaml


def preset_names() -> list[str]:
    """Every packaged preset, sorted."""
    root = resources.files("rl_training") / "zoo" / "presets"
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )


@cache
def _text(name: str) -> str:
    folder, _, file = name.partition("/")
    return (resources.files("rl_training") / "zoo" / "presets" / folder / f"{file}.yaml").read_text("utf-8")


def load_preset(name: str) -> yaml.Document:
    """The parsed preset, or an error that names the nearest one."""
    names = preset_names()
    if name not in names:
        raise UnknownNameError("preset", name, names, "`axiomrl list presets` shows all of them.")
    return yaml.load_text(_text(name), f"preset {name}")
