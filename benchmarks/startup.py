"""How long it takes to start: the command line, the import, and training until its first step.

    python benchmarks/startup.py [--repeats 7] [-o FILE]

Every measurement is a process from its beginning to its end; they take turns, medians are reported. Training
ends the process at the first step of its env, for all libraries the same way. Needs `make bench-env`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from turns import HERE, OURS, PEERS, SOURCE, arguments, packages, parser

CLI = "import sys; from rl_training.cli import main; sys.exit(main(sys.argv[1:]))"
TRAIN = ["-c", CLI, "train", "--algo", "ppo", "--env-id", "first_step:FirstStep-v0", "--device", "cpu"]
PEER_TRAIN = """
import {module}, gymnasium
from stable_baselines3.common.vec_env import DummyVecEnv
envs = DummyVecEnv([lambda: gymnasium.make("first_step:FirstStep-v0")] * 8)
{module}.PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, device="cpu").learn(10_000)
"""
MODULES = {OURS: "rl_training", "stable-baselines3": "stable_baselines3", "sbx": "sbx"}


def commands(peers: list[str]) -> dict[str, dict[str, list[str]]]:
    """What is measured of whom, as arguments of Python."""
    who = [OURS, *peers]
    return {
        "python": {OURS: ["-c", "pass"]},
        "axiomrl --version": {OURS: ["-c", CLI, "--version"]},
        "import": {name: ["-c", f"import {MODULES[name]}"] for name in who},
        "first training step": {
            name: TRAIN if name == OURS else ["-c", PEER_TRAIN.format(module=MODULES[name])] for name in who
        },
    }


def seconds_of(arguments_of_python: list[str]) -> float:
    """From the start of a process to its end."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), SOURCE]),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files of installed packages are there anyway
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments_of_python], capture_output=True, text=True, env=environ, cwd=folder
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{arguments_of_python} failed:\n{done.stderr}")
    return seconds


def main() -> None:
    args = arguments(parser(__doc__, repeats=7, seconds=0.0))
    wanted = commands([peer for peer in PEERS if peer in args.peers])
    measured: dict[str, dict[str, list[float]]] = {
        what: {who: [] for who in by} for what, by in wanted.items()
    }
    for _ in range(args.repeats + 1):  # the first fills the caches of files
        for what, by in wanted.items():
            for who, command in by.items():
                measured[what][who].append(seconds_of(command))
    results: list[dict[str, Any]] = []
    for what, columns in measured.items():
        kept = {who: values[1:] for who, values in columns.items()}
        medians = {who: statistics.median(values) for who, values in kept.items()}
        results.append({"what": what, "seconds": medians, "all": kept})
        print(
            f"{what:22s}" + "  ".join(f"{who} {value:6.3f} s" for who, value in medians.items()), flush=True
        )
    if args.output is not None:
        from record import write_record  # it imports torch

        write_record(args.output, "startup", {"results": results}, peers=packages(args.peers))


if __name__ == "__main__":
    main()
