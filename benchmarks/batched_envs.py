"""Envs as tensors: steps a second of the bare envs, and of PPO on them, on the device at hand.

    python benchmarks/batched_envs.py [--device auto] [--num-envs 4096 16384 65536] [--env-id ID] [-o FILE]
    python benchmarks/batched_envs.py --against native [--num-envs 64 1024] [--repeats 5]

Bare: random actions drawn beforehand, resets included; on a GPU also with a stretch of steps captured as one
CUDA graph, which shows the ceiling. PPO: 128 steps an iteration, 4 epochs, 4 minibatches, a 64x64 tanh actor
and critic. `--against` puts PPO on another backend beside it, the two in turns, and reports the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import rl_training
from record import write_record
from rl_training.envs.batched.make import make_batched_vector_env
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.runtime.device import resolve_device

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
STRETCH = 32
"""Steps in a captured graph."""


class Clock(rl_training.Callback):
    """Times the loop from the end of the second iteration: warm, and without start-up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[float, int]] = []

    def on_update(self, trainer: Any) -> None:
        wait_for(self.device)
        self.marks.append((time.perf_counter(), trainer.global_step))

    @property
    def rate(self) -> float:
        (begin, first), (end, last) = self.marks[1], self.marks[-1]
        return (last - first) / (end - begin)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def actions_for(envs: BatchedVectorEnv) -> list[torch.Tensor]:
    """Random actions for a stretch of steps."""
    space, generator = envs.spec.action_space, torch.Generator(envs.device).manual_seed(0)
    if space.shape == ():
        size = int(space.n)  # type: ignore[attr-defined]
        draw = (STRETCH, envs.num_envs)
        return list(torch.randint(0, size, draw, generator=generator, device=envs.device))
    draw = (STRETCH, envs.num_envs, *space.shape)  # type: ignore[misc]
    return list(torch.rand(draw, generator=generator, device=envs.device) * 2 - 1)


def rate_of(stretch: Callable[[], None], device: torch.device, num_envs: int, seconds: float) -> float:
    """Env steps a second, over as many stretches as fit."""
    for _ in range(3):
        stretch()
    wait_for(device)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        stretch()
        count += 1
        wait_for(device)
    return count * STRETCH * num_envs / (time.perf_counter() - begin)


def bare(env_id: str, num_envs: int, device: torch.device, seconds: float) -> dict[str, float]:
    """The envs alone: called from Python, and on a GPU replayed as a graph."""
    envs = make_batched_vector_env(env_id, {}, num_envs, seed=0, device=device)
    actions = actions_for(envs)

    def stretch() -> None:
        for step in actions:
            envs.step_tensors(step)

    with torch.inference_mode():
        envs.reset_tensors()
        rates = {"eager": rate_of(stretch, device, num_envs, seconds)}
        if device.type == "cuda":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                stretch()
            before = envs.state_dict()["episodes"].sum()
            rates["graph"] = rate_of(graph.replay, device, num_envs, seconds)
            if envs.state_dict()["episodes"].sum() <= before:
                raise SystemExit("no episode ended while the graph was replayed: it does not step the envs")
    return rates


def ppo(
    env_id: str,
    num_envs: int,
    device: torch.device,
    iterations: int,
    backend: str = "batched",
    compiled: str = "auto",
) -> float:
    """Env steps a second of training, everything included."""
    clock = Clock(device)
    with tempfile.TemporaryDirectory() as folder:
        rl_training.train(
            algo="ppo",
            env_id=env_id,
            num_envs=num_envs,
            total_timesteps=STEPS * num_envs * (iterations + 2),
            output_dir=folder,
            device=str(device),
            threads=1,
            compile=compiled,
            env={"backend": backend},
            hyperparams={"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
            evaluation={"every_steps": 0},
            checkpoint={"every_steps": 0},
            logging={"every_steps": 10 * STEPS * num_envs, "tensorboard": False},
            callbacks=[clock],
        )
    return clock.rate


def measure(args: argparse.Namespace, device: torch.device, num_envs: int) -> dict[str, Any]:
    """Bare and trained, medians over the repeats."""
    turns = [
        {**bare(args.env_id, num_envs, device, args.seconds),
         "ppo": ppo(args.env_id, num_envs, device, args.iterations, compiled=args.compile)}
        for _ in range(args.repeats)
    ]  # fmt: skip
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    shown = "  ".join(f"{name} {rate:13,.0f}" for name, rate in medians.items())
    print(f"{num_envs:7,d} envs on {device.type}  {shown}", flush=True)
    return {"num_envs": num_envs, "steps_per_second": medians, "all": turns}


def against(args: argparse.Namespace, device: torch.device, num_envs: int) -> dict[str, Any]:
    """PPO on batched envs and on another backend, in turns."""
    pairs = [
        tuple(ppo(args.env_id, num_envs, device, args.iterations, name) for name in ("batched", args.against))
        for _ in range(args.repeats)
    ]
    ratios = [ours / theirs for ours, theirs in pairs]
    medians = {name: statistics.median(column) for name, column in zip(
        ("batched", args.against), zip(*pairs, strict=True), strict=True)}  # fmt: skip
    shown = "  ".join(f"{name} {rate:9,.0f}" for name, rate in medians.items())
    turns = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{num_envs:7,d} envs  {shown}  ratio {statistics.median(ratios):.2f} (turns: {turns})", flush=True)
    return {
        "num_envs": num_envs,
        "steps_per_second": medians,
        "ratio": statistics.median(ratios),
        "all": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, nargs="+", help="default: what suits the device")
    parser.add_argument("--against", metavar="BACKEND", help="compare PPO with PPO on this backend instead")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each bare measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    device = resolve_device(args.device)
    torch.set_num_threads(1)
    default = [64, 1024] if args.against or device.type == "cpu" else [4096, 16384, 65536]
    one = against if args.against else measure
    results = [one(args, device, num_envs) for num_envs in args.num_envs or default]
    if args.output is not None:
        figures = {
            "env_id": args.env_id,
            "device": str(device),
            "against": args.against,
            "compile": args.compile,
            "settings": {"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES},
            "results": results,
        }
        write_record(args.output, "batched_envs", figures)


if __name__ == "__main__":
    main()
