"""PPO on CartPole: environment steps a second beside Stable-Baselines3, same settings, in turns.

    python benchmarks/ppo_cartpole.py [--cases 8:sync 64:native] [--iterations 40] [--repeats 5] [-o FILE]

Both run 128 steps an iteration, 4 epochs, 4 minibatches, a 64x64 tanh actor and critic, Adam, one thread. The
two take turns so that a noisy machine is noisy for both; medians and their ratio are reported. Needs the
`bench` extra.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import rl_training
from record import write_record

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4


class Clock(rl_training.Callback):
    """Times the loop itself: from the first update to the last, without start-up."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.last: tuple[float, int] = (0.0, 0)

    def on_update(self, trainer: Any) -> None:
        now = (time.perf_counter(), trainer.global_step)
        self.first = self.first or now
        self.last = now

    @property
    def rate(self) -> float:
        assert self.first is not None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def ours(num_envs: int, iterations: int, backend: str) -> float:
    """Steps a second of this package."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        rl_training.train(
            algo="ppo",
            env_id="CartPole-v1",
            num_envs=num_envs,
            total_timesteps=STEPS * num_envs * (iterations + 1),
            output_dir=folder,
            threads=1,
            env={"backend": backend},
            hyperparams={"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
            evaluation={"every_steps": 0},
            checkpoint={"every_steps": 0},
            logging={"every_steps": 10_000, "tensorboard": False},
            callbacks=[clock],
        )
    return clock.rate


def stable_baselines3(num_envs: int, iterations: int) -> float:
    """Steps a second of Stable-Baselines3's PPO with the same settings."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Marks(BaseCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def _on_rollout_start(self) -> None:
            self.times.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * num_envs)
    batch = STEPS * num_envs // MINIBATCHES
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=STEPS,
        batch_size=batch,
        n_epochs=EPOCHS,
        clip_range_vf=0.2,
        device="cpu",
        seed=0,
    )
    marks = Marks()
    model.learn(STEPS * num_envs * (iterations + 1), callback=marks)
    # Rollout k begins when iteration k - 1 is over: the first interval holds the start-up.
    return STEPS * num_envs * (len(marks.times) - 2) / (marks.times[-1] - marks.times[1])


def compare(num_envs: int, iterations: int, repeats: int, backend: str) -> dict[str, Any]:
    """Medians of both over `repeats` turns, and their ratio."""
    contenders: dict[str, Callable[[], float]] = {
        "axiomrl": lambda: ours(num_envs, iterations, backend),
        "stable-baselines3": lambda: stable_baselines3(num_envs, iterations),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, measure in contenders.items():
            rates[name].append(measure())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = [a / b for a, b in zip(rates["axiomrl"], rates["stable-baselines3"], strict=True)]
    result = {
        "num_envs": num_envs,
        "backend": backend,
        "steps_per_second": medians,
        "ratio_of_medians": medians["axiomrl"] / medians["stable-baselines3"],
        "ratios": ratios,
        "all": rates,
    }
    print(
        f"{num_envs:5d} envs ({backend:6s})  axiomrl {medians['axiomrl']:9,.0f}  "
        f"stable-baselines3 {medians['stable-baselines3']:9,.0f}  ratio {result['ratio_of_medians']:.2f} "
        f"(turns: {', '.join(f'{r:.2f}' for r in ratios)})",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cases = ["8:sync", "64:native", "64:sync"]
    parser.add_argument("--cases", nargs="+", default=cases, help="number of envs : our backend")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    results = [
        compare(int(num_envs), args.iterations, args.repeats, backend)
        for num_envs, _, backend in (case.partition(":") for case in args.cases)
    ]
    if args.output is not None:
        settings = {"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES, "threads": 1}
        figures = {"settings": settings, "results": results}
        write_record(args.output, "ppo_cartpole", figures, peers=["stable-baselines3"])


if __name__ == "__main__":
    main()
