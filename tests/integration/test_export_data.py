"""Datasets say what has happened: checked against the env's own equations and against replayed episodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training.cli import main
from rl_training.errors import ConfigError, ExportError, MissingExtraError
from rl_training.export.data import export_data
from rl_training.export.datasets import Column, write_dataset
from rl_training.export.sources import BufferSource

COLUMNS = (
    "observations", "actions", "rewards", "terminations", "truncations", "episode_ids", "episode_starts",
    "next_observations",
)  # fmt: skip
OFF = {
    "num_envs": 2, "total_timesteps": 300, "network": {"hidden": (8,)}, "logging": {"tensorboard": False},
    "evaluation": {"every_steps": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of SAC whose ring of transitions has wrapped around, with episodes of 30 steps."""
    hyperparams = {"buffer_size": 200, "batch_size": 8, "learning_starts": 100, "train_every": 50}
    return rl_training.train(
        {**OFF, "algo": "sac", "env_id": "Pendulum-v1", "hyperparams": hyperparams, "seed": 3},
        output_dir=str(tmp_path_factory.mktemp("pendulum")),
        env={"max_episode_steps": 30, "reward_scale": 0.5},
    ).run_dir


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rl_training.train(
        {**OFF, "algo": "ppo", "env_id": "CartPole-v1", "hyperparams": {"num_steps": 64}},
        output_dir=str(tmp_path_factory.mktemp("cartpole")),
    ).run_dir


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path) as file:  # allow_pickle is off
        columns = dict(file)
    return columns, json.loads(str(columns.pop("metadata")))


def test_a_replay_buffer_obeys_the_equations_of_the_env(
    pendulum: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.export.sources.PIECE", 64)  # several pieces
    export = export_data(pendulum, tmp_path / "data.npz")
    data, metadata = read(export.path)
    assert tuple(data) == export.columns == COLUMNS
    assert metadata == json.loads(json.dumps(export.metadata))
    count = len(data["rewards"])
    assert 180 <= count == metadata["num_transitions"] <= 202
    assert {len(column) for column in data.values()} == {count}

    cos, sin, speed = data["observations"].astype(np.float64).T
    torque = data["actions"][:, 0].astype(np.float64)
    assert np.abs(torque).max() > 1.0  # the env's actions, not the policy's
    angle = np.arctan2(sin, cos)
    expected = -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
    np.testing.assert_allclose(data["rewards"], 0.5 * expected, atol=1e-3)
    assert metadata["rewards"] == {"reward_scale": 0.5, "clip_reward": None}
    faster = np.clip(speed + (15.0 * sin + 3.0 * torque) * 0.05, -8, 8)
    after = angle + faster * 0.05  # also at the end of an episode: its own last state, not a new start
    np.testing.assert_allclose(
        data["next_observations"], np.stack([np.cos(after), np.sin(after), faster], 1), atol=1e-3
    )

    ids, ends = data["episode_ids"], data["truncations"]
    assert not data["terminations"].any()
    assert ends.sum() >= 4
    same = ids[1:] == ids[:-1]
    np.testing.assert_array_equal(data["next_observations"][:-1][same], data["observations"][1:][same])
    assert not (same & ends[:-1]).any()
    lengths = np.bincount(ids)
    complete = [i for i in range(ids[-1] + 1) if data["episode_starts"][ids == i][0] and ends[ids == i][-1]]
    assert complete
    assert (lengths[complete] == 30).all()
    assert data["episode_starts"].sum() < ids[-1] + 1  # the ring has eaten the beginning of some


def test_metadata_say_where_it_comes_from(pendulum: Path, tmp_path: Path) -> None:
    about = export_data(pendulum, tmp_path / "data.npz").metadata
    assert (about["algo"], about["env_id"], about["seed"], about["step"]) == ("sac", "Pendulum-v1", 3, 300)
    assert (about["source"], about["run_name"], about["checkpoint"]) == (
        "replay_buffer",
        pendulum.name,
        "step_300",
    )
    assert about["env"] == {"max_episode_steps": 30}
    assert about["action_space"] == {
        "type": "Box", "shape": [1], "dtype": "float32", "low": -2.0, "high": 2.0
    }  # fmt: skip
    assert about["axiomrl_version"] == rl_training.__version__
    assert about["gamma"] == 0.99
    assert len(about["fingerprint"]["weights"]) == 64


def test_hdf5_holds_the_same_and_npz_is_the_same_every_time(pendulum: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra hdf5")
    first, second = (export_data(pendulum, tmp_path / f"{i}.npz").path for i in range(2))
    assert first.read_bytes() == second.read_bytes()
    columns, metadata = read(first)
    export_data(pendulum, tmp_path / "data.hdf5")
    with h5py.File(tmp_path / "data.hdf5") as file:
        assert json.loads(file.attrs["metadata"]) == metadata
        assert set(file) == set(columns)
        for name, column in columns.items():
            assert file[name].dtype == column.dtype
            np.testing.assert_array_equal(file[name][:], column)


def test_episodes_can_be_played_again(cartpole: Path, tmp_path: Path) -> None:
    export = export_data(cartpole, tmp_path / "data.npz", episodes=3, deterministic=False, seed=5)
    data, metadata = read(export.path)
    evaluation = rl_training.evaluate(cartpole, num_episodes=3, deterministic=False, seed=5)
    assert [e["return"] for e in metadata["episodes"]] == evaluation["returns"]
    assert metadata["source"] == "episodes"
    assert data["episode_starts"].sum() == 3
    env = gym.make("CartPole-v1")
    for number, about in enumerate(metadata["episodes"]):
        rows = np.flatnonzero(data["episode_ids"] == number)
        assert len(rows) == about["length"]
        obs, _ = env.reset(seed=about["seed"])
        for row in rows:
            np.testing.assert_array_equal(data["observations"][row], obs)
            obs, reward, terminated, truncated, _ = env.step(data["actions"][row])
            np.testing.assert_array_equal(data["next_observations"][row], obs)
            assert (data["rewards"][row], data["terminations"][row], data["truncations"][row]) == (
                reward,
                terminated,
                truncated,
            )
        assert terminated or truncated


def test_dict_observations_have_a_column_a_key(tmp_path: Path) -> None:
    agent = rl_training.PPO(**OFF, env_id="axiom/DictObs-v0")  # type: ignore[arg-type]
    export = export_data(agent, tmp_path / "data.npz", episodes=2)
    data, metadata = read(export.path)
    for key, space in agent.session.spec.observation_space.items():
        for name in ("observations", "next_observations"):
            assert data[f"{name}/{key}"].dtype == space.dtype
            assert data[f"{name}/{key}"].shape == (metadata["num_transitions"], *space.shape)


def test_stacked_frames_are_whole_again(tmp_path: Path) -> None:
    hyperparams = {"buffer_size": 100, "batch_size": 4, "learning_starts": 100}
    run = rl_training.train(
        {**OFF, "total_timesteps": 60, "algo": "dqn", "env_id": "axiom/Image-v0", "hyperparams": hyperparams},
        env={"frame_stack": 3},
        output_dir=str(tmp_path),
    ).run_dir
    data, _ = read(export_data(run, tmp_path / "data.npz").path)
    before, after = data["observations"], data["next_observations"]
    assert before.shape[-1] % 3 == 0  # frames lie along the channels, the oldest first
    size = before.shape[-1] // 3
    np.testing.assert_array_equal(after[..., :-size], before[..., size:])
    assert (after[..., -size:] != before[..., -size:]).any()
    assert len(np.unique(before)) > 1


def test_the_command_prints_what_it_wrote(
    cartpole: Path, pendulum: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "data.npz")
    assert main(["export-data", str(pendulum), "-o", file]) == 0
    shown = capsys.readouterr().out
    assert "source       the replay buffer, step_300 of sac on Pendulum-v1" in shown
    assert main(["export-data", str(cartpole), "-o", file, "--episodes", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["file"] == file
    assert answer["columns"] == list(COLUMNS)
    assert answer["metadata"]["num_episodes"] == 2


def test_mistakes_are_explained(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"unknown ending of a dataset '\.npy'; did you mean '\.npz'\?"):
        export_data(cartpole, tmp_path / "data.npy")
    with pytest.raises(
        ExportError, match=r"has no replay buffer to export; let the agent play .*--episodes N"
    ):
        export_data(cartpole, tmp_path / "data.npz")
    assert main(["export-data", str(cartpole), "-o", str(tmp_path / "x.npz"), "--seed", "1"]) == 2
    assert "give --episodes N" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="episodes: must be at least 1, got 0"):
        export_data(cartpole, tmp_path / "data.npz", episodes=0)
    agent = rl_training.DQN(**OFF, env_id="CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(ExportError, match="dqn: has no replay buffer"):
        export_data(agent, tmp_path / "data.npz")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r'writing HDF5 needs .* pip install "axiomrl\[hdf5\]"'):
        export_data(cartpole, tmp_path / "data.h5", episodes=1)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_a_write_that_fails_leaves_what_was_there(ending: str, tmp_path: Path) -> None:
    def broken() -> Any:
        yield np.zeros(2, np.float32)
        raise OSError(28, "No space left on device")

    path = tmp_path / f"data.{ending}"
    path.write_bytes(b"before")
    with pytest.raises(ExportError, match=r"data\.\w+: cannot be written: No space left on device"):
        write_dataset(path, 4, {"x": Column((), np.dtype(np.float32), broken)}, "{}")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_buffer_without_transitions_is_refused(tmp_path: Path) -> None:
    agent = rl_training.DQN(**OFF, env_id="CartPole-v1", buffer_size=100)  # type: ignore[arg-type]
    from rl_training.data.replay_buffer import ReplayBuffer
    from rl_training.runtime.off_policy import replay_layout

    layout, _ = replay_layout(agent.session.spec, agent.hyperparams, 1)
    buffer = ReplayBuffer(100, 2, layout)
    buffer.begin(np.zeros((2, 4), np.float32))
    agent.session.state = {"buffer": buffer.state_dict()}
    with pytest.raises(ExportError, match="its replay buffer is empty"):
        BufferSource(agent, agent.session)
