"""SIGKILL at any moment, then resume: the run ends where it would have ended, bit for bit.

The kills of these tests follow the clock, so no two executions are the same; every one of them must pass.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kill_harness import Figures, KilledRun, Server, differences

import rl_training
from rl_training import registry
from rl_training.algorithms import base
from rl_training.algorithms.base import Algorithm
from rl_training.experiment import yaml
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.metadata import read_metadata, write_metadata

MOST_KILLS = 5
SEEDS = 4
ENV_OF_ACTIONS = {
    "Discrete": "CartPole-v1",
    "Box": "Pendulum-v1",
    "MultiDiscrete": "axiom/MultiDiscrete-v0",
    "MultiBinary": "axiom/MultiBinary-v0",
}
SMALL: dict[str, Any] = {
    "num_steps": 32, "num_minibatches": 2, "update_epochs": 2, "batch_size": 16, "learning_starts": 96,
    "train_every": 8, "gradient_steps": 2, "policy_delay": 2, "target_update_every": 16, "buffer_size": 256,
    "sequence_length": 16,
}  # fmt: skip
"""Small values for hyperparameters; an algorithm takes those it has. Replay buffers are full twice over."""
STEPS = {"on-policy": 2048, "off-policy": 640}
FAMILY_NAMES = {
    "PolicyGradient": "policy gradient family",
    "TRPO": "policy gradient family",
    "DQN": "DQN family",
    "OffPolicyActorCritic": "actor-critic family",
}
"""Rows of the page by the class at the root of a family; others are called by it."""


def _families() -> dict[str, list[str]]:
    """Ids by what they share their state with: the class below the trainer's own. Contrib adds state."""
    families: dict[str, list[str]] = {}
    for entry in registry.algorithms().values():
        line = [c for c in entry.cls.__mro__ if issubclass(c, Algorithm) and c.__module__ != base.__name__]
        root = entry.cls if entry.tier == "contrib" else line[-1]
        families.setdefault(FAMILY_NAMES.get(root.__name__, root.__name__), []).append(entry.id)
    return families


def _spread(family: str, ids: list[str], runs: int) -> list[tuple[str, str, str, int, int]]:
    """So many runs over the ids of a family and over both backends, in parts of a minute or so."""
    each = -(-runs // len(ids))
    parts = -(-each // 20)
    return [(family, algo, "both", -(-each // parts), part) for algo in ids for part in range(parts)]


def _richest(ids: list[str]) -> str:
    """The id that fixes most, and so has the most kinds of state to lose."""
    return max(ids, key=lambda name: (len(registry.algorithm(name).fixed), name))


PPO = [(f"ppo/CartPole-v1 {backend}", "ppo", backend) for backend in ("sync", "async")]
OTHERS = {name: rest for name, ids in _families().items() if (rest := [a for a in ids if a != "ppo"])}
QUICK = [
    *((*case, 2, 0) for case in PPO),
    *((name, _richest(ids), "async", 1, 0) for name, ids in OTHERS.items()),
]
FULL = [
    *((*case, 20, part) for case in PPO for part in range(5)),
    *(case for name, ids in OTHERS.items() for case in _spread(name, ids, 100)),
]
EACH = ("case", "algo", "backend", "runs", "part")


def env_of(algo: str) -> str:
    """An env that the algorithm supports, with episodes that are not over after one iteration."""
    actions = registry.algorithm(algo).actions
    return next(env_id for kind, env_id in ENV_OF_ACTIONS.items() if kind in actions)


def config_of(algo: str, env_id: str, backend: str, seed: int) -> dict[str, Any]:
    """A short run that saves, logs and evaluates often; every other seed normalises."""
    entry = registry.algorithm(algo)
    steps = 1024 if entry.tier == "contrib" else STEPS[entry.family]  # a memory is slow to train
    known = {f.name for f in dataclasses.fields(entry.cls.Hyperparams)} - set(entry.fixed)
    normalize = seed % 2 == 1
    return {
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "num_envs": 2 + seed % 3,
        "total_timesteps": steps,
        "device": "cpu",
        "env": {
            "backend": ("sync", "async")[seed // 2 % 2] if backend == "both" else backend,
            "normalize_obs": normalize,
            "normalize_reward": normalize and entry.family == "on-policy",
        },
        "network": {"hidden": [16]},
        "hyperparams": {name: value for name, value in SMALL.items() if name in known},
        "evaluation": {"every_steps": steps // 4, "episodes": 2, "num_envs": 2},
        "checkpoint": {"every_steps": steps // 16, "keep_last": 2},
        "logging": {"every_steps": steps // 12, "tensorboard": False},
        "stopping": {"patience": 1000},
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


class References:
    """Uninterrupted runs, one a seed, made in this process: not a fork of the one that is killed."""

    def __init__(self, folder: Path, algo: str, env_id: str, backend: str) -> None:
        self._folder, self._of = folder, (algo, env_id, backend)
        self._runs: dict[int, Path] = {}

    def __getitem__(self, seed: int) -> Path:
        if seed not in self._runs:
            config = {**config_of(*self._of, seed), "output_dir": str(self._folder)}
            self._runs[seed] = rl_training.train(config).run_dir
        return self._runs[seed]


def final_state(run_dir: Path) -> dict[str, Any]:
    return read_checkpoint(max((run_dir / "checkpoints").iterdir(), key=lambda p: int(p.name[5:]))).state


def kill_and_compare(
    server: Server, algo: str, env_id: str, backend: str, runs: int, folder: Path, part: int = 0
) -> Figures:
    """Kill runs and resume them; a failure is a run that did not end like its uninterrupted twin."""
    figures = Figures(f"{algo}/{env_id} {backend}")
    references = References(folder / "whole", algo, env_id, backend)
    rng = random.Random(f"{figures.case} {part}")
    attempt = 0
    while figures.runs < runs:
        attempt += 1
        seed = attempt % SEEDS
        whole = final_state(references[seed])
        assert any(whole["optimizers"].values()), "nothing is learned: the comparison would be empty"
        config = config_of(algo, env_id, backend, seed)
        run = KilledRun(server, config, folder / f"run_{attempt}", rng)
        run.complete(rng.randint(1, MOST_KILLS), whole["clock"]["elapsed_s"] + 0.1)
        for kill in run.kills:
            figures.kills[kill.aim] += 1
        if not run.problems and run.run_dir is not None:
            run.problems.extend(differences(references[seed], run.run_dir))
        figures.runs += bool(run.kills or run.problems)  # one that was faster than its kills proves nothing
        if run.problems:
            figures.failures.append(run.describe())
        else:
            shutil.rmtree(run.folder)
    return figures


@pytest.mark.parametrize(EACH, QUICK)
def test_killed_runs_end_where_they_would_have_ended(
    case: str, algo: str, backend: str, runs: int, part: int, server: Server, tmp_path: Path
) -> None:
    figures = kill_and_compare(server, algo, env_of(algo), backend, runs, tmp_path, part)
    assert not figures.failures, "\n\n".join(figures.failures)


@pytest.mark.full
@pytest.mark.parametrize(EACH, FULL)
def test_many_killed_runs(
    case: str, algo: str, backend: str, runs: int, part: int, server: Server, tmp_path: Path, report: Any
) -> None:
    figures = kill_and_compare(server, algo, env_of(algo), backend, runs, tmp_path, part)
    share = {algo: figures.runs} if backend == "both" else {}
    report_kills(report, case, figures, **share)
    assert not figures.failures, "\n\n".join(figures.failures)
    if runs >= 20:
        assert figures.kills["any"], figures.kills
        assert figures.kills["save"], figures.kills


def report_kills(report: Any, case: str, figures: Figures, **share: int) -> None:
    kills = sum(figures.kills.values())
    in_files = kills - figures.kills["any"]  # aimed at a save, a publication, an opening or the end
    counts = {"kills": kills, "of them aimed at files": in_files, **share}
    report("sigkill", case, trials=figures.runs, failures=len(figures.failures), **counts)


@pytest.mark.parametrize(
    "runs", [pytest.param(1, id="one"), pytest.param(20, id="twenty", marks=pytest.mark.full)]
)
def test_killed_mujoco_runs(runs: int, server: Server, tmp_path: Path, report: Any) -> None:
    if importlib.util.find_spec("mujoco") is None:
        pytest.skip("needs the extra mujoco: pip install 'axiomrl[mujoco]'")
    figures = kill_and_compare(server, "ppo", "Hopper-v5", "sync", runs, tmp_path)
    if runs > 1:
        report_kills(report, figures.case, figures)
    assert not figures.failures, "\n\n".join(figures.failures)


def test_the_command_line_survives_kills_too(tmp_path: Path) -> None:
    """Real processes, started afresh: other hash seeds, other addresses."""
    config = config_of("ppo", "CartPole-v1", "async", seed=1)
    whole = rl_training.train({**config, "output_dir": str(tmp_path / "whole")}).run_dir
    file, killed = tmp_path / "config.yaml", tmp_path / "killed"
    file.write_text(yaml.dump({**config, "output_dir": str(killed)}))
    command = [sys.executable, "-m", "rl_training.cli"]

    process = subprocess.Popen([*command, "train", "--config", str(file), "--quiet"])
    _wait_for_checkpoint(killed, 1000, process)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    (run_dir,) = killed.iterdir()
    subprocess.run([*command, "resume", "--checkpoint", str(run_dir), "--quiet"], check=True, timeout=120)
    assert not list(differences(whole, run_dir))


def _wait_for_checkpoint(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not any(int(p.name[5:]) >= step for p in folder.glob("*/checkpoints/step_*")):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("stopping", [{}, {"target_return": 1.0}], ids=["all_steps", "early"])
def test_a_run_killed_after_its_last_save_is_not_trained_further(
    stopping: dict[str, Any], tmp_path: Path
) -> None:
    config = {**config_of("ppo", "CartPole-v1", "sync", seed=0), "stopping": stopping}
    whole = rl_training.train({**config, "output_dir": str(tmp_path)}).run_dir
    killed = Path(shutil.copytree(whole, tmp_path / "killed"))
    metadata = read_metadata(killed)
    write_metadata(killed, {**metadata, "status": "running", "stop_reason": None, "ended_at_utc": None})
    (killed / "checkpoints" / ".step_1.old").mkdir()
    resumed = rl_training.resume(killed)
    assert resumed.status == "completed"
    assert resumed.stop_reason == metadata["stop_reason"]
    assert read_metadata(killed)["ended_at_utc"] is not None
    assert not list(differences(whole, killed))
