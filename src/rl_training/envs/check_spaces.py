"""The part of `check` that only looks at spaces, and the report that findings are collected in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.envs.backends import Env
from rl_training.envs.spaces import ARRAY_SPACES, Space, mask_size
from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from rl_training.envs.batched.env import BatchedEnv


@dataclass
class Report:
    """Findings, each starting with `error: ` or `warning: `, and whether `info` carries an action mask."""

    findings: list[str] = field(default_factory=list)
    masked: bool = False

    def error(self, text: str) -> None:
        """Something that makes training impossible or wrong."""
        self._add(f"error: {text}")

    def warning(self, text: str) -> None:
        """Something that may be meant, but often is a mistake."""
        self._add(f"warning: {text}")

    def _add(self, finding: str) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    @property
    def errors(self) -> list[str]:
        """The findings that forbid training, without their mark."""
        return [text.removeprefix("error: ") for text in self.findings if text.startswith("error: ")]


def check_spaces(env: Env | BatchedEnv, report: Report) -> None:
    """Whether both spaces are there and of a supported kind."""
    observation_space = getattr(env, "observation_space", None)
    action_space = getattr(env, "action_space", None)
    if not isinstance(observation_space, gymnasium.Space):
        report.error(f"observation_space is {observation_space!r}, not a gymnasium Space")
    else:
        _check_observation_space(observation_space, report)
    if not isinstance(action_space, gymnasium.Space):
        report.error(f"action_space is {action_space!r}, not a gymnasium Space")
    else:
        _check_action_space(action_space, report)
        if isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces:
            shape, size = observation_space[ACTION_MASK].shape, mask_size(action_space)
            if shape != (size,):
                report.error(
                    f"observation_space['{ACTION_MASK}'] has shape {shape}; {action_space} needs ({size},)"
                )


def _check_observation_space(space: Space, report: Report) -> None:
    if not isinstance(space, spaces.Dict):
        _check_array_space(space, "observation_space", report)
        return
    for key, inner in space.items():
        if isinstance(inner, spaces.Dict):
            report.warning(
                f"observation_space[{key!r}] is a nested Dict; it is flattened to keys like '{key}/…'"
            )
        else:
            _check_array_space(inner, f"observation_space[{key!r}]", report)
    if not len(space.spaces):
        report.error("observation_space is an empty Dict")


def _check_array_space(space: Space, name: str, report: Report) -> None:
    if not isinstance(space, ARRAY_SPACES):
        report.error(
            f"{name} is a {type(space).__name__} space; "
            "supported are Box, Discrete, MultiDiscrete, MultiBinary and Dict"
        )
    elif isinstance(space, spaces.Box) and 0 in space.shape:
        report.error(f"{name} has an empty shape {space.shape}")


def _check_action_space(space: Space, report: Report) -> None:
    if not isinstance(space, ARRAY_SPACES):
        report.error(
            f"action_space is a {type(space).__name__} space; "
            "supported are Discrete, MultiDiscrete, MultiBinary and Box"
        )
    elif isinstance(space, spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            report.error(
                f"action_space is a Box of {space.dtype}; use floats, or MultiDiscrete for whole numbers"
            )
        elif not space.is_bounded("both"):
            report.warning("action_space is an unbounded Box; bounds (best -1 to 1) make actions comparable")
    elif not isinstance(space, spaces.Discrete) and len(space.shape or ()) != 1:
        report.error(f"action_space has shape {space.shape}; only vectors of discrete choices are supported")
