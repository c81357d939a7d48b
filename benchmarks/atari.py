"""PPO on Pong: environment steps a second beside Stable-Baselines3, same settings, in turns.

    python benchmarks/atari.py [--iterations 6] [--repeats 3] [--threads 2] [--precision fp32] [-o FILE]

Both play 8 games for 128 steps an iteration, then make 4 epochs of 4 minibatches with the Nature CNN.
Stable-Baselines3 steps `make_atari_env` and `VecFrameStack`, this package its `ppo/pong` preset. This package
tells the threads of torch not to wait on busy cores; Stable-Baselines3 is measured as it comes and with the
same advice, and the ratio is taken to the faster of the two. Every measurement is a process of its own; they
take turns, so that a noisy machine is noisy for all, and medians are reported, beside the processor time that
was spent, which depends less on what else the machine does. Needs the extras `atari` and `bench`.
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
from pathlib import Path
from typing import Any

NUM_ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
CONTENDERS: dict[str, dict[str, str]] = {
    "axiomrl": {},
    "stable-baselines3": {},
    "stable-baselines3, short waits": {"GOMP_SPINCOUNT": "1000"},
}
"""Who is measured, and what its process is told besides."""


def mark(steps: int) -> tuple[int, float, float]:
    """How far it is, by the clock and in processor time."""
    return steps, time.perf_counter(), time.process_time()


def between(first: tuple[int, float, float], last: tuple[int, float, float]) -> dict[str, float]:
    """What was done between two marks."""
    steps, seconds, processor = (b - a for a, b in zip(first, last, strict=True))
    return {"steps_per_second": steps / seconds, "cpu_seconds_per_1000_steps": 1000 * processor / steps}


def ours(iterations: int, threads: int, precision: str) -> dict[str, float]:
    """The speed of this package, from the first update to the last."""
    import rl_training

    class Clock(rl_training.Callback):
        def __init__(self) -> None:
            self.marks: list[tuple[int, float, float]] = []

        def on_update(self, trainer: Any) -> None:
            self.marks.append(mark(trainer.global_step))

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        rl_training.train(
            preset="ppo/pong",
            num_envs=NUM_ENVS,
            total_timesteps=STEPS * NUM_ENVS * (iterations + 1),
            output_dir=folder,
            threads=threads,
            precision=precision,
            device="cpu",
            env={"atari": {"threads": threads}},
            hyperparams={"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
            evaluation={"every_steps": 0},
            checkpoint={"every_steps": 0},
            logging={"tensorboard": False},
            callbacks=[clock],
        )
    return between(clock.marks[0], clock.marks[-1])


def stable_baselines3(iterations: int, threads: int) -> dict[str, float]:
    """The speed of Stable-Baselines3's PPO with the same settings."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    class Marks(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.marks: list[tuple[int, float, float]] = []

        def _on_rollout_start(self) -> None:
            self.marks.append(mark(self.num_timesteps))

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(threads)
    gymnasium.register_envs(ale_py)
    games = {"frameskip": 1, "repeat_action_probability": 0.0}
    envs = VecFrameStack(make_atari_env("ALE/Pong-v5", NUM_ENVS, seed=0, env_kwargs=games), 4)
    model = PPO(
        "CnnPolicy",
        envs,
        n_steps=STEPS,
        batch_size=STEPS * NUM_ENVS // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=2.5e-4,
        clip_range=0.1,
        clip_range_vf=0.1,
        ent_coef=0.01,
        device="cpu",
        seed=0,
    )
    marks = Marks()
    model.learn(STEPS * NUM_ENVS * (iterations + 1), callback=marks)
    # Rollout k begins when iteration k - 1 is over: the first interval holds the start-up.
    return between(marks.marks[1], marks.marks[-1])


def measure(name: str, args: argparse.Namespace) -> dict[str, float]:
    """One measurement in a process of its own."""
    options = ["--iterations", str(args.iterations), "--threads", str(args.threads)]
    command = [sys.executable, __file__, "--contender", name, *options, "--precision", args.precision]
    environment = {key: value for key, value in os.environ.items() if key not in WAITING} | CONTENDERS[name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def report(measured: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians and ratios."""
    by_figure = {
        figure: {name: [row[figure] for row in rows] for name, rows in measured.items()}
        for figure in ("steps_per_second", "cpu_seconds_per_1000_steps")
    }
    medians = {
        figure: {name: statistics.median(values) for name, values in columns.items()}
        for figure, columns in by_figure.items()
    }
    rates, turns = medians["steps_per_second"], by_figure["steps_per_second"]
    peers = [name for name in CONTENDERS if name != "axiomrl"]
    return {
        "settings": {
            "env_id": "ALE/Pong-v5",
            "num_envs": NUM_ENVS,
            "num_steps": STEPS,
            "update_epochs": EPOCHS,
            "num_minibatches": MINIBATCHES,
            "threads": args.threads,
            "precision": args.precision,
            "iterations": args.iterations,
        },
        **medians,
        "ratio_of_medians": rates["axiomrl"] / max(rates[name] for name in peers),
        "ratio_to_each": {name: rates["axiomrl"] / rates[name] for name in peers},
        "ratios": [mine / max(theirs) for mine, *theirs in zip(*turns.values(), strict=True)],
        "all": by_figure,
    }


def in_words(row: dict[str, float]) -> str:
    """Both figures of a measurement."""
    rate, processor = row["steps_per_second"], row["cpu_seconds_per_1000_steps"]
    return f"{rate:,.0f} steps/s ({processor:.2f} CPU s a 1000)"


def main() -> None:
    """Measure in turns and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of torch, for both, and of our games")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of this package")
    parser.add_argument("--contender", choices=list(CONTENDERS), help="measure one of them, in this process")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.contender == "axiomrl":
        print(json.dumps(ours(args.iterations, args.threads, args.precision)))
        return
    if args.contender is not None:
        print(json.dumps(stable_baselines3(args.iterations, args.threads)))
        return
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for turn in range(args.repeats):
        for name in CONTENDERS:
            measured[name].append(measure(name, args))
        print(
            f"turn {turn + 1}: " + "; ".join(f"{n} {in_words(v[-1])}" for n, v in measured.items()),
            flush=True,
        )
    result = report(measured, args)
    for name in CONTENDERS:
        row = {figure: result[figure][name] for figure in measured[name][0]}
        print(f"{name:32} {in_words(row)}")
    for name, ratio in result["ratio_to_each"].items():
        print(f"ratio {ratio:.2f} to {name}")
    if args.output is not None:
        from record import write_record  # it imports torch, which the processes that measure set up first

        peers = ("ale-py", "opencv-python-headless", "stable-baselines3")
        write_record(args.output, "atari", result, peers=peers)


if __name__ == "__main__":
    main()
