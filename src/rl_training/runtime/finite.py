"""Refuses experience with anything that is no number before anything learns from it, and says whose it is."""

from __future__ import annotations

from math import isfinite

import numpy as np
import torch

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import NonFiniteError
from rl_training.types import Array, Obs, StepResult


def require_finite_rollout(buffer: RolloutBuffer) -> None:
    """Refuse a rollout with anything that is no number, before anything learns from it: one look for all."""
    obs = buffer.obs.items() if isinstance(buffer.obs, dict) else [("", buffer.obs)]
    parts = [("action", buffer.actions), *((f"observation {key}".strip(), values) for key, values in obs)]
    parts = [(what, values) for what, values in parts if values.is_floating_point()]
    parts.append(("reward", torch.as_tensor(buffer.steps("rewards"))))
    # Final observations are not kept, only their values: the env's fault where the policy could value others.
    cut = torch.as_tensor(buffer.steps("truncated")).to(buffer.device, torch.bool) & buffer.values.isfinite()
    parts.append(("final observation", torch.where(cut, buffer.final_values, 0.0)))
    finite = torch.stack([values.isfinite().all().to(buffer.device) for _, values in parts])
    if not bool(finite.all()):
        for what, values in parts:
            broken = "policy" if what == "action" else "env"
            require_finite(what, values.numpy(force=True), broken=broken)


def require_finite_step(result: StepResult) -> None:
    """Refuse a broken step before it is stored."""
    _require_finite_parts("reward", result.rewards)
    _require_finite_parts("observation", result.obs)
    if result.final_obs is not None:
        _require_finite_parts("final observation", result.final_obs, result.ended)


def _require_finite_parts(what: str, values: Obs, envs: Array | None = None) -> None:
    """Refuse one row an env, or several by name, with anything that is no number."""
    if isinstance(values, dict):
        for key, part in values.items():
            _require_finite_parts(f"{what} {key}", part, envs)
    elif not finite(values):
        require_finite(what, values[None], envs)


def finite(values: Array) -> bool:
    """Whether all are numbers: their squares have a sum unless they are huge, and that is quick to say."""
    if values.dtype.kind != "f":
        return True
    return isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def require_finite(what: str, values: Array, envs: Array | None = None, broken: str = "env") -> None:
    """Refuse what is not a number, naming its place in `[step, env, …]`; `envs` says whose the rows are."""
    if not np.isfinite(values).all():
        step, row, *_ = np.argwhere(~np.isfinite(values))[0]
        env = row if envs is None else envs[row]
        where = f"the {what} of env {env} at step {step} of the rollout"
        raise NonFiniteError(f"{where} is NaN or infinite: the {broken} is broken")
