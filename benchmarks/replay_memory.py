"""What a replay buffer of Atari's shapes takes of memory, by prediction and by what the system counts.

    python benchmarks/replay_memory.py [--transitions 1000000] [-o FILE]

Fills a buffer with noise of 84 x 84 pixels in stacks of four, episodes of 500 steps that begin with zeros as
ALE's do, looks at the resident memory of the process before and after, and draws batches.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from pace import resident
from record import write_record
from rl_training.data.frame_stacks import frame_stacks
from rl_training.data.layout import rollout_layout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.samplers import UniformSampler
from rl_training.types import Spec, StepResult

NUM_ENVS, STACK, EPISODE = 8, 4, 500
SPEC = Spec(spaces.Box(0, 255, (STACK, 84, 84), np.uint8), spaces.Discrete(6))


def fill(buffer: ReplayBuffer, transitions: int) -> None:
    """As many transitions of noise as asked for, in episodes that all envs begin and end together."""
    rng = np.random.default_rng(0)
    frame = (NUM_ENVS, 84, 84)
    stack = np.zeros((NUM_ENVS, STACK, 84, 84), np.uint8)
    nobody, everybody, no = np.array([], np.int64), np.arange(NUM_ENVS), np.zeros(NUM_ENVS, bool)

    def begin() -> None:
        stack[:, :-1] = 0
        stack[:, -1] = rng.integers(0, 255, frame, np.uint8)

    begin()
    buffer.begin(stack)
    for step in range(1, transitions // NUM_ENVS + 1):
        stack[:, :-1] = stack[:, 1:].copy()
        stack[:, -1] = rng.integers(0, 255, frame, np.uint8)
        over = step % EPISODE == 0
        final = stack.copy() if over else None
        if over:
            begin()
        result = StepResult(stack, np.ones(NUM_ENVS), no | over, no, everybody if over else nobody, final)
        buffer.add(torch.full((NUM_ENVS,), step % 6), result)


def measure(transitions: int) -> dict[str, Any]:
    """Memory by prediction and by the system, and the time of filling and of drawing."""
    layout, stacks = rollout_layout(SPEC), frame_stacks(SPEC.observation_space, STACK)
    before = resident()
    buffer = ReplayBuffer(transitions, NUM_ENVS, layout, stacks=stacks)
    sampler = UniformSampler(buffer, gamma=0.99, n_step=3)
    begin = time.perf_counter()
    fill(buffer, transitions)
    filling = time.perf_counter() - begin
    after = resident()
    generator = torch.Generator().manual_seed(0)
    draws = 200
    begin = time.perf_counter()
    for _ in range(draws):
        sampler.sample(32, generator)
    drawing = (time.perf_counter() - begin) / draws
    return {
        "transitions": transitions,
        "drawable": len(buffer),
        "bytes_per_transition": buffer.bytes_per_transition,
        "predicted_bytes": ReplayBuffer.predict_bytes(transitions, layout, stacks),
        "resident_bytes": {"before": before, "after": after, "buffer": after - before},
        "seconds": {"filling": filling, "batch_of_32": drawing},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = measure(args.transitions)
    resident_bytes = result["resident_bytes"]
    print(
        f"{args.transitions:,} transitions of {result['bytes_per_transition']:,} bytes: "
        f"predicted {result['predicted_bytes'] / 1e9:.3f} GB, "
        f"resident {resident_bytes['buffer'] / 1e9:.3f} GB "
        f"(the whole process {resident_bytes['after'] / 1e9:.3f} GB); "
        f"{result['drawable']:,} can be drawn, "
        f"a batch of 32 in {result['seconds']['batch_of_32'] * 1e3:.2f} ms"
    )
    if args.output is not None:
        write_record(args.output, "replay_memory", result)


if __name__ == "__main__":
    main()
