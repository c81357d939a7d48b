"""How long `axiomrl report` takes over ten thousand runs, the first time and the second, and how much memory.

    python benchmarks/report_scan.py [--runs 10000] [-o benchmarks/results/report-scan.json]

Makes synthetic run directories with the files of real ones (config, metadata, 50 log lines, 20 evaluations of
10 episodes), nested three deep, and times the command in a process of its own, start of Python included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from record import write_record

ALGOS = ("ppo", "dqn", "sac", "td3", "a2c")
ENVS = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3")
PARTS = ("env", "inference", "learn", "evaluate", "save", "other")
LOSSES = ("loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction", "grad_norm")


def make_run(folder: Path, number: int, rng: random.Random) -> None:
    """One run directory with plausible contents."""
    algo, env, seed = ALGOS[number % 5], ENVS[number // 5 % 4], number // 20
    path = folder / env / algo / f"{algo}__{env}__seed{seed}__20260101T000000Z"
    (path / "checkpoints" / "step_100000").mkdir(parents=True)
    config: dict[str, Any] = {
        "algo": algo, "env_id": env, "seed": seed, "total_timesteps": 100_000, "num_envs": 8,
        "output_dir": str(path.parent), "device": "auto", "threads": 1, "deterministic": "auto", "tags": [],
        "env_kwargs": {}, "env": {"backend": "auto", "frame_skip": 1, "normalize_obs": False},
        "network": {"encoder": "auto", "hidden": [64, 64], "activation": "tanh"},
        "hyperparams": {"learning_rate": rng.choice((1e-3, 3e-4)), "gamma": 0.99, "gae_lambda": 0.95},
        "evaluation": {"every_steps": 5000, "episodes": 10, "num_envs": 4, "deterministic": True},
        "checkpoint": {"every_steps": 50_000, "keep_last": 3}, "logging": {"every_steps": 2000},
        "stopping": {"target_return": None},
    }  # fmt: skip
    metadata = {
        "schema_version": 1, "status": "completed", "created_at_utc": "2026-01-01T00:00:00+00:00",
        "command": ["axiomrl", "train"], "preset": None, "tags": [], "versions": {"axiomrl": "0.1.0"},
        "latest_checkpoint": "checkpoints/step_100000", "resumes": [],
    }  # fmt: skip
    top = rng.gauss(200, 30)
    metrics, evaluations = [], []
    for step in range(2000, 100_001, 2000):
        row = {"global_step": step, "elapsed_s": step / 4000 + rng.random(), "steps_per_second": 4000.0}
        row |= {f"time/{part}": rng.random() for part in PARTS} | {f"train/{n}": rng.random() for n in LOSSES}
        metrics.append(row | {"rollout/return_mean": top * step / 1e5, "rollout/length_mean": 20.0})
    for step in range(5000, 100_001, 5000):
        returns = [top * step / 1e5 + rng.gauss(0, 10) for _ in range(10)]
        evaluations.append({
            "global_step": step, "elapsed_s": step / 4000, "return_mean": sum(returns) / 10,
            "return_std": 10.0, "num_episodes": 10, "returns": returns, "lengths": [100] * 10,
            "seeds": [rng.randrange(2**31) for _ in range(10)],
        })  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, default_flow_style=None))
    (path / "metadata.json").write_text(json.dumps(metadata, indent=2))
    for name, rows in (("metrics", metrics), ("evaluations", evaluations)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def timed(folder: Path, cache: Path) -> dict[str, float]:
    """Seconds on the clock and of the processor, and peak memory (MB), of the command."""
    code = (
        "import resource, sys; from rl_training.cli import main; main(['report', sys.argv[1]]);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment, check=True
    )
    seconds = time.perf_counter() - begin
    processor, memory = done.stderr.split()[-2:]
    return {"seconds": seconds, "cpu_seconds": float(processor), "peak_mb": int(memory) / 1024}


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and use those that are there")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "runs"
        if not folder.exists():
            for number in range(args.runs):
                make_run(folder, number, rng)
            time.sleep(3)  # what was written this second is not indexed
        looks = {name: timed(folder, Path(scratch) / "cache") for name in ("first", "second")}
    load = os.getloadavg()[0]
    for name, used in looks.items():
        clock, processor = used["seconds"], used["cpu_seconds"]
        print(
            f"{args.runs} runs, {name} look: {clock:.2f} s ({processor:.2f} s of processor), "
            f"peak {used['peak_mb']:.0f} MB"
        )
    print(f"load of the machine: {load:.1f} on {os.cpu_count()} cores")
    if args.output is not None:
        write_record(args.output, "report-scan", {"runs": args.runs, **looks, "load_average": load})


if __name__ == "__main__":
    main()
