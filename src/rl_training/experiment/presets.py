"""Presets: tuned configurations that ship with the package, by names like `ppo/cartpole`."""

from __future__ import annotations

import os
from functools import cache
from importlib import resources
from typing import Any

from rl_training.errors import UnknownNameError
from rl_training.experiment import yaml
from rl_training.experiment.sections import merged


@cache
def preset_names() -> tuple[str, ...]:
    """Every packaged preset, sorted."""
    root = resources.files("rl_training") / "zoo" / "presets"
    names = (
        f"{folder.name}/{file.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir() and not folder.name.startswith("_")  # those are parts that presets include
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )
    return tuple(sorted(names))


@cache
def _text(name: str) -> str:
    folder, _, file = name.partition("/")
    return (resources.files("rl_training") / "zoo" / "presets" / folder / f"{file}.yaml").read_text("utf-8")


def load_preset(name: str) -> yaml.Document:
    """The parsed preset, or an error that names the nearest one."""
    names = preset_names()
    if name not in names and os.path.isfile(name):  # which answers no to what cannot be a path
        raise UnknownNameError("preset", name, (), "That is a file: use --config (in a study: `config`).")
    if name not in names:
        raise UnknownNameError("preset", name, names, "`axiomrl list presets` shows all of them.")
    document = yaml.load_text(_text(name), f"preset {name}")
    return yaml.Document(document.source, _with_included(document.data), document.lines)


def _with_included(data: dict[str, Any]) -> dict[str, Any]:
    """What presets have in common stands in a file that they `include`; their own values win."""
    if "include" not in data:
        return data
    own = {key: value for key, value in data.items() if key != "include"}
    part = str(data["include"])
    return merged(_with_included(yaml.load_text(_text(part), f"preset part {part}").data), own)
