"""Training on a GPU, everything included: steps a second, and how soon CartPole is solved.

    python benchmarks/gpu_training.py [--cases sac td3 ppo-pong ...] [--repeat 3] [-o FILE]

The rate is that of the second half of a short run, when everything is compiled, captured and warm; how long
that took is recorded beside it, and what could not be compiled or captured. Cases take turns; of the runs of
a case the one in the middle is told. `ppo-cartpole` trains on envs that are tensors, with ever more of them.
`solve` trains until the policy brings 475 in Gymnasium's own env (20 episodes; looked at whenever the last
hundred episodes of training average 475, and the time of looking does not count).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import rl_training
from record import write_record

CHEETAH = {"hyperparams": {"learning_starts": 2000}, "total_timesteps": 22_000, "compile": "on"}
ON_DEVICE = {"algo": "ppo", "env_id": "CartPole-v1", "env": {"backend": "batched"}}
LARGE = {"num_steps": 128, "update_epochs": 4, "num_minibatches": 4}
CASES: dict[str, dict[str, Any]] = {
    "sac": {"preset": "sac/halfcheetah", **CHEETAH},
    "td3": {"preset": "td3/halfcheetah", **CHEETAH},
    "dqn-pong": {
        "preset": "dqn/pong",
        "hyperparams": {"learning_starts": 4000, "buffer_size": 100_000},
        "total_timesteps": 30_000,
    },
    "ppo-pong": {
        "preset": "ppo/pong",
        "num_envs": 256,
        "env": {"atari": {"threads": 16}},
        "hyperparams": {"num_minibatches": 8, "num_steps": 64},
        "total_timesteps": 400_000,
    },
    **{
        f"ppo-cartpole-{num_envs}": {
            **ON_DEVICE,
            "num_envs": num_envs,
            "hyperparams": LARGE,
            "total_timesteps": 128 * num_envs * 40,
            "compile": "on",
        }
        for num_envs in (1024, 4096, 16384, 65536)
    },
    "ppo-cartpole-65536-tf32": {
        **ON_DEVICE,
        "num_envs": 65536,
        "hyperparams": LARGE,
        "total_timesteps": 128 * 65536 * 40,
        "compile": "on",
        "precision": "tf32",
    },
    "solve": {
        **ON_DEVICE,
        "num_envs": 1024,
        "hyperparams": {
            "num_steps": 32, "update_epochs": 4, "num_minibatches": 8, "learning_rate": 1e-3,
            "learning_rate_schedule": "linear", "gae_lambda": 0.95, "gamma": 0.99,
        },
        "total_timesteps": 32 * 1024 * 80,
    },
}  # fmt: skip


class Clock(rl_training.Callback):
    """Times the second half of a run; ends it early once it is solved, if that is asked for."""

    def __init__(self, half: int, solved_at: float | None) -> None:
        self.half, self.solved_at = half, solved_at
        self.begin = 0.0
        self.marks: list[tuple[float, int]] = []
        self.solved: float | None = None
        self.evaluation: float | None = None
        self.looking = 0.0

    def on_train_start(self, trainer: Any) -> None:
        self.begin = time.perf_counter()

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= self.half and not self.marks:
            self.mark(trainer)
        statistics = trainer.collector.statistics.metrics()
        if self.solved_at is not None and statistics.get("rollout/return_mean", 0.0) >= self.solved_at:
            torch.cuda.synchronize()
            before = time.perf_counter()
            self.evaluation = fmean(trainer.evaluate().returns)
            if self.evaluation >= self.solved_at:
                self.solved = before - self.begin - self.looking
                trainer.stop("solved")
            self.looking += time.perf_counter() - before

    def on_train_end(self, trainer: Any) -> None:
        self.mark(trainer)

    def mark(self, trainer: Any) -> None:
        torch.cuda.synchronize()
        self.marks.append((time.perf_counter(), trainer.global_step))


def measure(name: str) -> dict[str, Any]:
    """One case, in a folder that is thrown away."""
    case, solving = CASES[name], name == "solve"
    clock = Clock(case["total_timesteps"] // 2, 475.0 if solving else None)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        begin = time.perf_counter()
        trained = rl_training.train(
            **case,
            device="cuda",
            output_dir=folder,
            evaluation={"every_steps": 0, "episodes": 20, "num_envs": 20},
            checkpoint={"every_steps": 0},
            logging={"every_steps": case["total_timesteps"] // 4, "tensorboard": False},
            callbacks=[clock],
        )
        compilation = json.loads((trained.run_dir / "metadata.json").read_text())["compilation"]
    (first, before), (last, after) = clock.marks[0], clock.marks[-1]
    found = {
        "case": name,
        "settings": case,
        "steps_per_second": (after - before) / (last - first) if after > before else None,
        "seconds_until_half": first - begin,
        "steps": after,
        "solved_after_seconds": clock.solved,
        "evaluation": clock.evaluation,
        "compilation": compilation,
        "warnings": sorted({str(w.message)[:300] for w in said if "updates are not all" in str(w.message)}),
    }
    rate = f"{found['steps_per_second']:14,.0f} steps/s" if found["steps_per_second"] else ""
    solved = f" solved after {clock.solved or -1:.1f} s, evaluation {clock.evaluation}" if solving else ""
    print(f"{name:20s} {rate}{solved} {'; '.join(found['warnings'])}", flush=True)
    return found


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run in the middle, slower of two, and the figures of all; one that failed counts as slowest."""
    solving = runs[0]["case"] == "solve"
    figure = "solved_after_seconds" if solving else "steps_per_second"

    def quickness(run: dict[str, Any]) -> float:
        value = run.get(figure)
        return float("-inf") if value is None else -value if solving else value

    chosen = sorted(runs, key=quickness)[(len(runs) - 1) // 2]
    return {**chosen, "runs": [run.get(figure) for run in runs]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case (default: 1)")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in args.cases * args.repeat:
        try:
            found = measure(name)
        except Exception as error:  # one case that fails does not stop the others
            print(f"{name:20s} FAILED: {error}", flush=True)
            found = {"case": name, "failed": str(error)}
        runs.setdefault(name, []).append(found)
        if args.output is not None:  # each time, so that what is stopped has not been for nothing
            write_record(args.output, "gpu_training", {"results": [middle(those) for those in runs.values()]})


if __name__ == "__main__":
    main()
