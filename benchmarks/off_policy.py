"""Gradient steps a second of off-policy algorithms here and in Stable-Baselines3, and what priorities cost.

    python benchmarks/off_policy.py -o benchmarks/results/off_policy.json

A gradient step is all that happens between two of them: a batch is drawn from a full replay buffer, the
update is made, target networks follow. Same network, batch, buffer and thread count for both; they take turns
so that a noisy machine is noisy for both; medians and their ratio are reported. Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from record import write_record
from rl_training import registry
from rl_training.algorithms.base import Context
from rl_training.data.layout import rollout_layout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import PrioritizedSampler, UniformSampler
from rl_training.policies.config import NetworkConfig
from rl_training.types import Spec, StepResult

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One algorithm in both libraries."""

    algo: str
    env_id: str
    hidden: tuple[int, ...]
    batch_size: int
    peer: str
    """The class in stable_baselines3."""
    hyperparams: dict[str, Any] = field(default_factory=dict)
    peer_options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "dqn": Case("dqn", "CartPole-v1", (64, 64), 128, "DQN"),
    "sac": Case("sac", "Pendulum-v1", (256, 256), 256, "SAC"),
    "td3": Case("td3", "Pendulum-v1", (256, 256), 256, "TD3"),
}


def fill(spec: Spec, transitions: int, num_envs: int = 1) -> ReplayBuffer:
    """A buffer full of random transitions in episodes of about a hundred steps."""
    buffer = ReplayBuffer(transitions, num_envs, rollout_layout(spec))
    random = np.random.default_rng(0)
    shape = (num_envs, *(spec.observation_space.shape or ()))
    draw = lambda: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    discrete = isinstance(spec.action_space, gym.spaces.Discrete)
    nothing = np.zeros(num_envs, bool)
    everyone = np.arange(num_envs)
    buffer.begin(draw())
    for _ in range(transitions // num_envs):
        over = random.random() < 0.01
        ended = everyone if over else everyone[:0]
        actions = (
            torch.from_numpy(random.integers(int(spec.action_space.n), size=num_envs))  # type: ignore[attr-defined]
            if discrete
            else torch.rand(num_envs, *(spec.action_space.shape or ())) * 2 - 1
        )
        rewards = np.ones(num_envs, np.float32)
        buffer.add(
            actions, StepResult(draw(), rewards, nothing | over, nothing, ended, draw() if over else None)
        )
    return buffer


def ours(case: Case, transitions: int) -> Callable[[int], float]:
    """A function that makes some gradient steps of this package and says how many it made a second."""
    env = gym.make(case.env_id)
    spec = Spec(env.observation_space, env.action_space)
    entry = registry.algorithm(case.algo)
    hyperparams = entry.cls.Hyperparams(
        **entry.hyperparams({"batch_size": case.batch_size, **case.hyperparams})
    )
    algorithm = entry.cls.from_context(Context(spec, hyperparams, NetworkConfig(hidden=case.hidden), CPU))
    sampler = UniformSampler(fill(spec, transitions), gamma=0.99)
    generator = torch.Generator().manual_seed(0)

    def measure(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            algorithm.update(sampler.sample(case.batch_size, generator))
        return steps / (time.perf_counter() - begin)

    return measure


def stable_baselines3(case: Case, transitions: int) -> Callable[[int], float]:
    """The same for Stable-Baselines3: its own `train`, on a buffer filled through its own `add`."""
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    model = getattr(stable_baselines3, case.peer)(
        "MlpPolicy",
        gym.make(case.env_id),
        batch_size=case.batch_size,
        buffer_size=transitions,
        policy_kwargs={"net_arch": list(case.hidden)},
        device="cpu",
        seed=0,
        **case.peer_options,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    random = np.random.default_rng(0)
    shape, space = model.observation_space.shape, model.action_space
    for _ in range(transitions):
        obs, following = random.standard_normal((2, 1, *shape)).astype(np.float32)
        done = np.array([random.random() < 0.01])
        model.replay_buffer.add(obs, following, np.array([space.sample()]), np.ones(1), done, [{}])

    def measure(steps: int) -> float:
        begin = time.perf_counter()
        model.train(gradient_steps=steps, batch_size=case.batch_size)
        return steps / (time.perf_counter() - begin)

    return measure


def compare(name: str, steps: int, repeats: int, transitions: int) -> dict[str, Any]:
    """Medians of both over `repeats` turns, and their ratio."""
    case = CASES[name]
    contenders = {
        "axiomrl": ours(case, transitions),
        "stable-baselines3": stable_baselines3(case, transitions),
    }
    rates: dict[str, list[float]] = {contender: [] for contender in contenders}
    for measure in contenders.values():
        measure(steps // 5)  # warm-up
    for _ in range(repeats):
        for contender, measure in contenders.items():
            rates[contender].append(measure(steps))
    medians = {contender: statistics.median(values) for contender, values in rates.items()}
    ratios = [a / b for a, b in zip(rates["axiomrl"], rates["stable-baselines3"], strict=True)]
    ratio = medians["axiomrl"] / medians["stable-baselines3"]
    widths = "x".join(map(str, case.hidden))
    print(
        f"{name:6s} {widths}, batch {case.batch_size}: axiomrl {medians['axiomrl']:7,.0f}  stable-baselines3 "
        f"{medians['stable-baselines3']:7,.0f} gradient steps/s  ratio {ratio:.2f} "
        f"(turns: {', '.join(f'{r:.2f}' for r in ratios)})",
        flush=True,
    )
    return {
        "algo": name,
        "hidden": case.hidden,
        "batch_size": case.batch_size,
        "gradient_steps_per_second": medians,
        "ratio_of_medians": ratio,
        "ratios": ratios,
        "all": rates,
    }


def priorities(sizes: list[int], repeats: int, batch_size: int = 256) -> list[dict[str, Any]]:
    """Drawing by priority and giving new priorities back, against drawing uniformly."""
    spec = Spec(gym.spaces.Box(-np.inf, np.inf, (4,)), gym.spaces.Discrete(2))
    results = []
    for size in sizes:
        buffer = fill(spec, size, num_envs=max(1, size // 10_000))
        uniform, prioritized = UniformSampler(buffer, gamma=0.99), PrioritizedSampler(buffer, gamma=0.99)
        started = buffer.starts.flatten().nonzero().flatten().numpy()
        prioritized.tree.set(started, np.random.default_rng(0).random(len(started)))
        generator = torch.Generator().manual_seed(0)

        def draw_uniform(sampler: UniformSampler = uniform, g: torch.Generator = generator) -> None:
            sampler.sample(batch_size, g)

        def draw_and_update(sampler: UniformSampler = prioritized, g: torch.Generator = generator) -> None:
            batch = sampler.sample(batch_size, g)
            sampler.update_priorities(batch.index, batch.rewards)

        times: dict[str, list[float]] = {"uniform": [], "prioritized": []}
        for _ in range(repeats):
            for name, call in (("uniform", draw_uniform), ("prioritized", draw_and_update)):
                begin = time.perf_counter()
                for _ in range(50):
                    call()
                times[name].append((time.perf_counter() - begin) / 50 * 1e6)
        medians = {name: statistics.median(values) for name, values in times.items()}
        ratio = medians["prioritized"] / medians["uniform"]
        print(
            f"replay of {size:9,d}, batch {batch_size}: uniform {medians['uniform']:6.0f} µs  "
            f"prioritised, sample and update {medians['prioritized']:6.0f} µs  ratio {ratio:.2f}",
            flush=True,
        )
        results.append(
            {"transitions": size, "batch_size": batch_size, "microseconds": medians, "ratio": ratio}
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algos", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--steps", type=int, default=500, help="gradient steps a turn")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--transitions", type=int, default=10_000, help="in the replay buffer")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [compare(name, args.steps, args.repeats, args.transitions) for name in args.algos]
    replay = priorities(args.sizes, args.repeats)
    if args.output is not None:
        settings = {"threads": 1, "steps": args.steps, "transitions": args.transitions}
        figures = {"settings": settings, "results": results, "replay": replay}
        write_record(args.output, "off_policy", figures, peers=["stable-baselines3"])


if __name__ == "__main__":
    main()
