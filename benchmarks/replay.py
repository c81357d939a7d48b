"""Replay buffers of ever more transitions: what a step in and a batch out take, and the memory of it.

    python benchmarks/replay.py [--sizes 10000 100000 1000000 10000000] [-o FILE]

CartPole's shapes, 64 envs, batches of 256, the buffers full. This package draws uniformly and by priority
(new priorities included); Stable-Baselines3's buffer, which SBX uses too, uniformly. In turns, each in a
process of its own, one thread. Needs `make bench-env`. Memory with Atari's shapes: `replay_memory.py`.
"""

from __future__ import annotations

from typing import Any

from pace import Job
from turns import OURS, Contender, arguments, before, compare, earlier, packages, parser

CONTENDERS = {
    OURS: Contender(OURS, "ours:replay"),
    "prioritised": Contender(f"{OURS}, prioritised", "ours:prioritized_replay"),
    "stable-baselines3": Contender("stable-baselines3", "peers:sb3_replay"),
}


def show(size: int, result: dict[str, Any]) -> None:
    """One line a contender."""
    for name in result["steps_per_second"]:
        add, draw = (1e6 / result[f"{part}_steps_per_second"][name] for part in ("collection", "update"))
        memory = result["buffer_bytes"][name] / size
        times = f"add {add:6.1f} µs  sample {draw:7.1f} µs"
        print(f"{size:12,d} {name:22s} {times}  {memory:6.1f} bytes a transition", flush=True)


def main() -> None:
    made = parser(__doc__, repeats=5, seconds=0.5, variants=False)
    made.add_argument("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    args = arguments(made)
    if args.quick:
        args.sizes, args.seconds = [10**4], 0.1
    peers = [peer for peer in args.peers if peer in CONTENDERS]
    ours = [CONTENDERS[name] for name in (OURS, "prioritised")]
    older = [contender for one in ours for contender in before(one, args)]
    who = [*ours, *older, *(CONTENDERS[name] for name in peers)]
    results = []
    for size in args.sizes:
        job = Job("dqn", "CartPole-v1", 64, buffer_size=size, batch_size=256, learning_starts=0)
        result = compare(job, who, args.seconds, args.repeats)
        show(size, result)
        results.append(result)
    if args.output is not None:
        from record import write_record  # it imports torch

        figures = {"seconds": args.seconds, "repeats": args.repeats, "results": results, **earlier(args)}
        write_record(args.output, "replay", figures, peers=packages(peers))


if __name__ == "__main__":
    main()
