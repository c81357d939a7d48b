"""`export_data`: transitions as a dataset, from a replay buffer or from episodes that are played for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rl_training import __version__
from rl_training.envs.spaces import Space, leaf_spaces
from rl_training.errors import ConfigError
from rl_training.experiment.files import to_json
from rl_training.experiment.find import Which
from rl_training.experiment.spaces import spec_to_json
from rl_training.export.datasets import Column, require_ending, write_dataset
from rl_training.export.origin import Agent, about_run, env_section, open_agent
from rl_training.export.sources import BufferSource, EpisodesSource, Source
from rl_training.types import Spec

FORMAT, FORMAT_VERSION = "axiomrl-transitions", 1
VALUES = {
    "rewards": np.float32,
    "terminations": np.bool_,
    "truncations": np.bool_,
    "episode_ids": np.int64,
    "episode_starts": np.bool_,
}


@dataclass(frozen=True, slots=True)
class DataExport:
    """What `export_data` has written."""

    path: Path
    columns: tuple[str, ...]
    metadata: dict[str, Any]


def export_data(
    agent: Agent,
    output: str | PathLike[str],
    *,
    episodes: int | None = None,
    which: Which | None = None,
    seed: int | None = None,
    deterministic: bool = True,
    env: Any = None,
) -> DataExport:
    """Write transitions of a run, checkpoint or agent as the dataset `output` (.npz, .hdf5).

    They are what its replay buffer holds (`which` of a run: by default the latest), or with `episodes` so
    many that the agent plays now (the best), chosen by `seed` as in an evaluation.
    """
    path = Path(output)
    require_ending(path)
    if episodes is not None and episodes < 1:
        raise ConfigError(f"episodes: must be at least 1, got {episodes}")
    algorithm, session = open_agent(agent, env, which or ("latest" if episodes is None else "best"))
    source: Source
    if episodes is None:
        source = BufferSource(algorithm, session)
    else:
        source = EpisodesSource(algorithm, session, episodes, seed, deterministic)
    spaces = spec_to_json(session.spec)
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **about_run(session),
        **source.about,
        "num_transitions": source.length,
        "observation_space": spaces["observation"],
        "action_space": spaces["action"],
        "env": env_section(session.config),
        "gamma": getattr(session.config.hyperparams, "gamma", None),
        "axiomrl_version": __version__,
    }
    columns = _columns(session.spec, source)
    write_dataset(path, source.length, columns, to_json(metadata))
    return DataExport(path, tuple(columns), metadata)


def _columns(spec: Spec, source: Source) -> dict[str, Column]:
    """The columns every dataset has, whatever it is made from."""
    leaves, actions = leaf_spaces(spec.observation_space), spec.action_space

    def observations(name: str, after: int) -> dict[str, Column]:
        return {
            f"{name}/{key}" if key else name: _column(leaf, partial(source.observations, key, after))
            for key, leaf in leaves.items()
        }

    return {
        **observations("observations", 0),
        "actions": _column(actions, partial(source.values, "actions")),
        **{name: Column((), np.dtype(kind), partial(source.values, name)) for name, kind in VALUES.items()},
        **observations("next_observations", 1),
    }


def _column(space: Space, pieces: Any) -> Column:
    """Entries of a space: as they come, but floats in single precision, as policies read and write them."""
    dtype = np.dtype(space.dtype)
    return Column(tuple(space.shape or ()), np.dtype(np.float32) if dtype.kind == "f" else dtype, pieces)
