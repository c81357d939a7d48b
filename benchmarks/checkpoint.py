"""What a checkpoint with a large replay buffer costs: the first one, and those 1,000 transitions later.

    python benchmarks/checkpoint.py [--transitions 1000000] [--repeats 5] [-o FILE]

Only the segments of the buffer that changed are written again; the others are hard links to the checkpoint
before. HalfCheetah's shapes: 17 numbers an observation, 6 an action.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from record import write_record
from rl_training import TrainConfig
from rl_training.data.layout import rollout_layout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.checkpoint import write_checkpoint
from rl_training.types import Spec, StepResult

NUM_ENVS, LATER = 8, 1000


def advance(buffer: ReplayBuffer, transitions: int) -> None:
    """Fill the buffer with noise; an episode lasts a thousand steps."""
    rng = np.random.default_rng(0)
    nobody, everybody = np.array([], np.int64), np.arange(NUM_ENVS)
    for step in range(1, transitions // NUM_ENVS + 1):
        obs = rng.standard_normal((NUM_ENVS, 17), np.float32)
        cut = np.full(NUM_ENVS, step % 1000 == 0)
        result = StepResult(
            obs, np.ones(NUM_ENVS), np.zeros(NUM_ENVS, bool), cut, everybody if cut[0] else nobody, obs
        )
        buffer.add(torch.zeros(NUM_ENVS, 6), result)


def measure(transitions: int) -> tuple[float, float]:
    """Seconds of the first save and of the second, 1,000 transitions later."""
    spec = Spec(spaces.Box(-1.0, 1.0, (17,)), spaces.Box(-1.0, 1.0, (6,)))
    buffer = ReplayBuffer(transitions, NUM_ENVS, rollout_layout(spec))
    buffer.begin(np.zeros((NUM_ENVS, 17), np.float32))
    advance(buffer, transitions)
    config = TrainConfig(algo="ppo", env_id="HalfCheetah-v5")
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        previous: Path | None = None
        for step in (1, 2):
            begin = time.perf_counter()
            state = {"buffer": buffer.state_dict()}
            path = Path(folder) / f"step_{step}"
            previous = write_checkpoint(path, state, config=config, spec=spec, step=step, previous=previous)
            seconds.append(time.perf_counter() - begin)
            advance(buffer, LATER)
    return seconds[0], seconds[1]


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    pairs = [measure(args.transitions) for _ in range(args.repeats)]
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"first save {first:.3f} s, {LATER} transitions later {second:.3f} s: ratio {second / first:.3f}")
    if args.output is not None:
        figures = {
            "transitions": args.transitions,
            "seconds": {"first": first, "second": second, "all": pairs},
            "ratio": second / first,
        }
        write_record(args.output, "checkpoint", figures)


if __name__ == "__main__":
    main()
