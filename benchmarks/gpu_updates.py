"""Updates a second on a GPU: as they are, captured as CUDA graphs, and compiled before they are captured.

    python benchmarks/gpu_updates.py [--cases ppo dqn sac td3] [--updates 1000] [-o FILE]

Each way of computing starts from the same weights and sees the same batches; before it is timed, its weights
after some updates are compared with those of plain updates. One case that fails does not stop the others.
With `--cpu` the compiled updates are checked and timed on this machine's CPU instead.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training import registry
from rl_training.algorithms.base import Algorithm, Context
from rl_training.experiment.metadata import hardware, versions
from rl_training.policies.config import NetworkConfig
from rl_training.runtime.compilation import Mode, Plan, Updates
from rl_training.types import Batch, RolloutBatch, Spec, TransitionBatch

CHECKED = 20
"""Updates after which weights are compared."""


@dataclass(frozen=True)
class Case:
    """An algorithm, and the shapes it sees."""

    algo: str
    obs: int
    actions: gym.Space[Any]
    hidden: tuple[int, ...]
    batch_size: int
    hyperparams: dict[str, Any] = field(default_factory=dict)


CHEETAH = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
CASES = {
    "ppo": Case("ppo", 4, gym.spaces.Discrete(2), (64, 64), 2048),
    "ppo-small": Case("ppo", 4, gym.spaces.Discrete(2), (64, 64), 256),
    "ppo-large": Case("ppo", 4, gym.spaces.Discrete(2), (64, 64), 131_072),
    "ppo-box": Case("ppo", 17, CHEETAH, (64, 64), 4096),
    "a2c": Case("a2c", 4, gym.spaces.Discrete(2), (64, 64), 40),
    "dqn": Case("dqn", 4, gym.spaces.Discrete(2), (64, 64), 128, {"target_update_every": 10}),
    "rainbow": Case("rainbow", 4, gym.spaces.Discrete(2), (64, 64), 128),
    "iqn": Case("iqn", 4, gym.spaces.Discrete(2), (64, 64), 128),
    "sac": Case("sac", 17, CHEETAH, (256, 256), 256),
    "td3": Case("td3", 17, CHEETAH, (256, 256), 256),
    "redq": Case("redq", 17, CHEETAH, (256, 256), 256),
    "tqc": Case("tqc", 17, CHEETAH, (256, 256), 256),
    "crossq": Case("crossq", 17, CHEETAH, (256, 256), 256),
}


def build(case: Case, device: torch.device) -> Algorithm:
    """The algorithm, always with the same weights."""
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (case.obs,), np.float32), case.actions)
    entry = registry.algorithm(case.algo)
    hyperparams = entry.cls.Hyperparams(**entry.hyperparams(case.hyperparams))
    algorithm: Algorithm = entry.cls.from_context(
        Context(spec, hyperparams, NetworkConfig(hidden=case.hidden), device, seed=1)
    )
    return algorithm


def batches(case: Case, device: torch.device, count: int = 8) -> list[Batch]:
    """Random experience."""
    generator = torch.Generator().manual_seed(0)
    size, discrete = case.batch_size, isinstance(case.actions, gym.spaces.Discrete)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(size, *shape, generator=generator).to(device)

    def actions() -> torch.Tensor:
        if discrete:
            return torch.randint(int(case.actions.n), (size,), generator=generator).to(device)  # type: ignore[attr-defined]
        return normal(*(case.actions.shape or ())).tanh()

    made: list[Batch] = []
    for _ in range(count):
        if registry.algorithm(case.algo).family == "on-policy":
            logprobs = -0.7 * torch.ones(size, device=device)
            made.append(RolloutBatch(normal(case.obs), actions(), logprobs, normal(), normal(), normal()))
        else:
            index = torch.zeros(2, size, dtype=torch.int64, device=device)
            ones = torch.ones(size, device=device)
            made.append(
                TransitionBatch(
                    normal(case.obs), actions(), normal(), normal(case.obs), 0.99 * ones, ones, index
                )
            )
    return made


def weights(algorithm: Algorithm) -> torch.Tensor:
    """All weights in one row."""
    modules = (algorithm.policy, *algorithm.networks.values())
    return torch.cat([p.detach().flatten().double() for m in modules for p in m.parameters()])


def finish(device: torch.device) -> None:
    """Wait for all that has been launched."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(name: str, device: torch.device, modes: list[Mode], updates: int, repeats: int) -> dict[str, Any]:
    """Rates of one case in every mode, in turns, and how far weights are from those of plain updates."""
    case = CASES[name]
    data = batches(case, device)
    plain, start = build(case, device), weights(build(case, device))
    for i in range(CHECKED):
        plain.update(data[i % len(data)])
    expected = weights(plain)
    ways: dict[str, Updates] = {}
    result: dict[str, Any] = {"case": name, "batch_size": case.batch_size, "hidden": case.hidden, "modes": {}}
    for mode in modes:
        try:
            run = Updates(build(case, device), Plan(mode, "benchmark"))
            for i in range(CHECKED):
                last = run(data[i % len(data)])
            finish(device)
            gap, moved = weights(run.algorithm) - expected, expected - start
            error = float(torch.linalg.vector_norm(gap) / torch.linalg.vector_norm(moved))
            finite = all(bool(value.isfinite()) for value in last.metrics.values())
            seconds = run.describe()["seconds"]
            result["modes"][mode] = {
                "largest_difference": float(gap.abs().max()),
                "relative_difference": error,
                "metrics_finite": finite,
                "num_updates": run.algorithm.num_updates,
                "setup_seconds": seconds,
                "problems": run.problems,
            }
            ways[mode] = run
            print(
                f"{name:10s} {mode:22s} after {CHECKED} updates weights are at most "
                f"{float(gap.abs().max()):.2e} apart, {error:.2e} of the way; set up in {seconds:.1f} s; "
                f"problems: {'; '.join(run.problems) or 'none'}",
                flush=True,
            )
        except Exception:
            print(f"{name:10s} {mode:22s} FAILED\n{traceback.format_exc()}", flush=True)
            result["modes"][mode] = {"failed": traceback.format_exc()}
    rates: dict[str, list[float]] = {mode: [] for mode in ways}
    for _ in range(repeats):
        for mode, run in ways.items():
            finish(device)
            begin = time.perf_counter()
            for i in range(updates):
                run(data[i % len(data)])
            finish(device)
            rates[mode].append(updates / (time.perf_counter() - begin))
    for mode, values in rates.items():
        rate = statistics.median(values)
        result["modes"][mode]["updates_per_second"] = rate
        base = statistics.median(rates["eager"]) if "eager" in rates else rate
        print(f"{name:10s} {mode:22s} {rate:9,.0f} updates/s  {rate / base:.2f} x eager", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["ppo", "dqn", "sac", "td3"])
    parser.add_argument("--updates", type=int, default=1000, help="updates a turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="the same without a GPU: compiled against eager")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("always")
    torch.set_num_threads(1)
    device = torch.device("cpu" if args.cpu else "cuda")
    modes: list[Mode] = ["eager", "compiled"] if args.cpu else ["eager", "captured", "compiled and captured"]
    results = []
    for name in args.cases:
        try:
            results.append(measure(name, device, modes, args.updates, args.repeats))
        except Exception:
            print(f"{name:10s} FAILED\n{traceback.format_exc()}", flush=True)
    if args.output is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        report = {
            "benchmark": "gpu_updates",
            "device": device.type,
            "python": platform.python_version(),
            "versions": versions(),
            "hardware": hardware(),
            "commit": commit.stdout.strip() or None,
            "results": results,
        }
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
