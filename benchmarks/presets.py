"""Train presets over several seeds, evaluate the last checkpoint of each run, and write the numbers down.

    python benchmarks/presets.py ppo/cartpole ppo/pendulum --seeds 1 2 3 4 5 --episodes 100 --jobs 2

One JSON file a preset: every seed's evaluation, episode by episode, with the commit and the machine. Runs are
ordinary `axiomrl train` and `axiomrl eval` commands, so any of them can be repeated by hand. A control with
other settings gets a file of its own by `--label`:

    python benchmarks/presets.py dqn/bit-flip --label plain --extra --hyperparams.her none
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rl_training.experiment.metadata import git_state, hardware, versions


def axiomrl(*arguments: str) -> dict[str, Any]:
    """Run a command of the package and read the JSON it prints."""
    command = [sys.executable, "-m", "rl_training.cli", *arguments, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def run_seed(preset: str, seed: int, episodes: int, folder: str, extra: list[str]) -> dict[str, Any]:
    """Train one seed and evaluate where it ended."""
    begin = time.perf_counter()
    arguments = ["--preset", preset, "--seed", str(seed), *extra]
    trained = axiomrl("train", *arguments, "--output-dir", folder)
    seconds = time.perf_counter() - begin
    evaluation = axiomrl(
        "eval", "--checkpoint", trained["run_dir"], "--which", "latest", "--num-episodes", str(episodes)
    )
    curve = (Path(trained["run_dir"]) / "evaluations.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in curve]
    outcome = f"{evaluation['return_mean']:.1f} ± {evaluation['return_std']:.1f}"
    success = [name for name in ("success_rate",) if name in evaluation]
    outcome += "".join(f", success rate {evaluation[name]:.2f}" for name in success)
    print(f"{preset} seed {seed}: {outcome} ({seconds:.0f} s)", flush=True)
    return {
        "seed": seed,
        "command": ["axiomrl", "train", *arguments],
        "global_step": trained["global_step"],
        "seconds": seconds,
        "return_mean": evaluation["return_mean"],
        "return_std": evaluation["return_std"],
        **{name: evaluation[name] for name in success},
        "returns": evaluation["returns"],
        "curve": [
            {key: p[key] for key in ("global_step", "elapsed_s", "return_mean", *success)} for p in points
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--label", help="appended to the name of the file, for runs with --extra")
    parser.add_argument("--commit", help="the commit that runs, where there is no repository to ask")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="options passed on to train")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    git = {"commit": args.commit, "is_dirty": False} if args.commit else git_state()
    about = {"versions": versions(), "hardware": hardware(), "git": git}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        jobs = {
            preset: [
                pool.submit(run_seed, preset, seed, args.episodes, folder, args.extra) for seed in args.seeds
            ]
            for preset in args.presets
        }
        for preset, futures in jobs.items():
            runs = [future.result() for future in futures]
            means = [run["return_mean"] for run in runs]
            summary = {"mean": statistics.mean(means), "min": min(means), "max": max(means)}
            if all("success_rate" in run for run in runs):
                summary["success_rate"] = statistics.mean(run["success_rate"] for run in runs)
            report = {"preset": preset, "episodes": args.episodes, **about, "summary": summary, "runs": runs}
            label = f"-{args.label}" if args.label else ""
            path = args.output / f"{preset.replace('/', '-')}{label}.json"
            path.write_text(json.dumps(report, indent=1) + "\n")
            print(
                f"{preset}: mean {summary['mean']:.1f}, worst seed {summary['min']:.1f} -> {path}", flush=True
            )


if __name__ == "__main__":
    main()
