"""How long it takes to start: the command line, the import, and training until its first step.

    python benchmarks/startup.py [--repeats 7] [-o FILE]

Every measurement is a process from its beginning to its end; they take turns, medians are reported. Training
has eight envs; the last of them ends the process at its first step. Needs `make bench-env`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from turns import HERE, OURS, PEERS, Contender, arguments, before, earlier, packages, parser, surroundings

CLI = "import sys; from rl_training.cli import main; sys.exit(main())"
TRAIN = ["-c", CLI, "train", "--algo", "ppo", "--env-id", "first_step:FirstStep-v0", "--device", "cpu",
         "--num-envs", "8"]  # fmt: skip
PEER_TRAIN = """
import {module}, gymnasium
from stable_baselines3.common.vec_env import DummyVecEnv
envs = DummyVecEnv([lambda: gymnasium.make("first_step:FirstStep-v0")] * 8)
{module}.PPO("MlpPolicy", envs, n_steps=128, batch_size=256, n_epochs=4, device="cpu").learn(10_000)
"""
MODULES = {OURS: "rl_training", "stable-baselines3": "stable_baselines3", "sbx": "sbx"}


def commands(ours: list[str], peers: list[str]) -> dict[str, dict[str, list[str]]]:
    """What is measured of whom, as arguments of Python."""
    training = {peer: ["-c", PEER_TRAIN.format(module=MODULES[peer])] for peer in peers}
    return {
        "python": {OURS: ["-c", "pass"]},
        "axiomrl --version": {name: ["-c", CLI, "--version"] for name in ours},
        "import": {name: ["-c", f"import {MODULES.get(name, MODULES[OURS])}"] for name in [*ours, *peers]},
        "first training step": {**dict.fromkeys(ours, TRAIN), **training},
    }


def seconds_of(contender: Contender, arguments_of_python: list[str]) -> float:
    """From the start of a process to its end."""
    environ = surroundings(contender)
    environ["PYTHONPATH"] = os.pathsep.join([str(HERE), environ["PYTHONPATH"]])
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files of installed packages are there anyway
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *arguments_of_python], capture_output=True, text=True, env=environ, cwd=folder
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{contender.name}, {arguments_of_python} failed:\n{done.stderr}")
    return seconds


def main() -> None:
    args = arguments(parser(__doc__, repeats=7, seconds=None, variants=False))
    peers = [peer for peer in PEERS if peer in args.peers]
    ours = Contender(OURS, "")
    contenders = {who.name: who for who in (ours, *before(ours, args), *(Contender(p, "") for p in peers))}
    wanted = commands([name for name in contenders if name not in peers], peers)
    measured: dict[str, dict[str, list[float]]] = {
        what: {who: [] for who in by} for what, by in wanted.items()
    }
    for _ in range(args.repeats + 1):  # the first fills the caches of files
        for what, by in wanted.items():
            for who, command in by.items():
                measured[what][who].append(seconds_of(contenders[who], command))
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

        figures = {"repeats": args.repeats, "results": results, **earlier(args)}
        write_record(args.output, "startup", figures, peers=packages(peers))


if __name__ == "__main__":
    main()
