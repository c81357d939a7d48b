"""PPO on Pong: environment steps a second beside Stable-Baselines3, same settings, in turns.

    python benchmarks/atari.py [--iterations 6] [--repeats 3] [--threads 2] [--precision fp32] [-o FILE]

Both play 8 games for 128 steps an iteration, then make 4 epochs of 4 minibatches with the Nature CNN.
Stable-Baselines3 steps `make_atari_env` and `VecFrameStack`, this package its `ppo/pong` preset.
Every measurement is a process of its own; they take turns, so that a noisy machine is noisy for both, and
medians and their ratio are reported. Needs the extras `atari` and `bench`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NUM_ENVS, STEPS, EPOCHS, MINIBATCHES = 8, 128, 4, 4
CONTENDERS = ("axiomrl", "stable-baselines3")


def ours(iterations: int, threads: int, precision: str) -> float:
    """Steps a second of this package, from the first update to the last."""
    import rl_training

    class Clock(rl_training.Callback):
        def __init__(self) -> None:
            self.marks: list[tuple[float, int]] = []

        def on_update(self, trainer: Any) -> None:
            self.marks.append((time.perf_counter(), trainer.global_step))

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
    (begin, first), (end, last) = clock.marks[0], clock.marks[-1]
    return (last - first) / (end - begin)


def stable_baselines3(iterations: int, threads: int) -> float:
    """Steps a second of Stable-Baselines3's PPO with the same settings."""
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
            self.times: list[float] = []

        def _on_rollout_start(self) -> None:
            self.times.append(time.perf_counter())

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
    return STEPS * NUM_ENVS * (len(marks.times) - 2) / (marks.times[-1] - marks.times[1])


def measure(name: str, args: argparse.Namespace) -> float:
    """One measurement in a process of its own."""
    options = ["--iterations", str(args.iterations), "--threads", str(args.threads)]
    command = [sys.executable, __file__, "--contender", name, *options, "--precision", args.precision]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return float(done.stdout.strip().splitlines()[-1])


def report(rates: dict[str, list[float]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians and ratios, with what they were measured on."""
    from importlib.metadata import version

    from rl_training.experiment.metadata import hardware, versions

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    names = ("ale-py", "opencv-python-headless", "stable-baselines3")
    return {
        "benchmark": "atari",
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
        "python": platform.python_version(),
        "versions": {**versions(), **{name: version(name) for name in names}},
        "hardware": hardware(),
        "commit": commit.stdout.strip() or None,
        "steps_per_second": medians,
        "ratio_of_medians": medians["axiomrl"] / medians["stable-baselines3"],
        "ratios": [a / b for a, b in zip(*rates.values(), strict=True)],
        "all": rates,
    }


def main() -> None:
    """Measure in turns and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of torch, for both, and of our games")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of this package")
    parser.add_argument("--contender", choices=CONTENDERS, help="measure one of them, in this process")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.contender == "axiomrl":
        print(ours(args.iterations, args.threads, args.precision))
        return
    if args.contender is not None:
        print(stable_baselines3(args.iterations, args.threads))
        return
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for turn in range(args.repeats):
        for name in CONTENDERS:
            rates[name].append(measure(name, args))
        print(f"turn {turn + 1}: " + "  ".join(f"{n} {v[-1]:,.0f}" for n, v in rates.items()), flush=True)
    result = report(rates, args)
    print(f"medians {result['steps_per_second']}  ratio {result['ratio_of_medians']:.2f}")
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
