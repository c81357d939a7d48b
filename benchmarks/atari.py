"""PPO on Pong: environment steps a second beside Stable-Baselines3, same settings, in turns.

    python benchmarks/atari.py [--threads 2] [--variant bf16:precision=bf16] [-o FILE]

Both play 8 games for 128 steps an iteration, then make 4 epochs of 4 minibatches with the Nature CNN.
Stable-Baselines3 steps `make_atari_env` and `VecFrameStack`, this package its `ppo/pong` preset. This package
tells the threads of torch not to wait on busy cores; Stable-Baselines3 is measured as it comes and with the
same advice. The processor time that was spent, which is reported too, depends less on what else the machine
does. Needs `make bench-env`.
"""

from __future__ import annotations

from pace import Job
from turns import OURS, Contender, arguments, compare, contenders, packages, parser, show

PEER = "stable-baselines3"


def main() -> None:
    made = parser(__doc__, repeats=3, seconds=15.0)
    made.add_argument("--threads", type=int, default=2, help="of torch, for all, and of our games")
    made.set_defaults(peers=[PEER])
    args = arguments(made)
    settings = {"preset": "ppo/pong", "env": {"atari": {"threads": args.threads}}}
    job = Job("ppo", "ALE/Pong-v5", 8, (), threads=args.threads, cores=args.threads, settings=settings)
    who = contenders(args)
    if PEER in args.peers:
        who.append(Contender(f"{PEER}, short waits", "peers:sb3", environ={"GOMP_SPINCOUNT": "1000"}))
    result = compare(job, who, args.seconds, args.repeats)
    show(f"Pong, {args.threads} threads", result)
    if args.output is not None:
        from record import write_record  # it imports torch, which the processes that measure set up first

        speeds = result["steps_per_second"]
        faster = [speed for name, speed in speeds.items() if name.startswith(PEER)]
        result["ratio_to_the_fastest_peer"] = speeds[OURS] / max(faster) if faster else None
        peers = ["ale-py", *(["opencv-python-headless"] if faster else []), *packages(args.peers)]
        write_record(args.output, "atari", {"results": [result]}, peers=peers)


if __name__ == "__main__":
    main()
