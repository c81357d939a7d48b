"""Off-policy algorithms: steps a second with one update a step beside other libraries, in turns.

    python benchmarks/off_policy.py threads [--algos dqn sac td3] [--threads 1 2] [-o FILE]
    python benchmarks/off_policy.py batch [--batches 64 256 1024] [-o FILE]

`threads`: DQN on CartPole (64x64, batch 128), SAC and TD3 on Pendulum (256x256, batch 256), on one thread and
one core, then on two, where this package is measured with pipelined collection too. `batch`: SAC on one
thread with other batches. A step is everything: the action, the env, the replay buffer, the update and the
targets. Beside them the env alone, and what updates would reach alone. Needs `make bench-env`.
"""

from __future__ import annotations

import dataclasses

from pace import Job
from turns import PIPELINED, arguments, ceiling, compare, contenders, earlier, packages, parser, show, variant

CASES = {
    "dqn": Job("dqn", "CartPole-v1", hidden=(64, 64), batch_size=128),
    "sac": Job("sac", "Pendulum-v1", hidden=(256, 256), batch_size=256),
    "td3": Job("td3", "Pendulum-v1", hidden=(256, 256), batch_size=256),
}


def main() -> None:
    made = parser(__doc__, repeats=5, seconds=2.0)
    made.add_argument("sweep", choices=["threads", "batch"])
    made.add_argument("--algos", nargs="+", default=list(CASES), choices=list(CASES))
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    made.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    args = arguments(made)
    if args.quick:
        args.threads, args.batches = [1], [64]
    if args.sweep == "threads":
        jobs = [dataclasses.replace(CASES[a], threads=n, cores=n) for a in args.algos for n in args.threads]
    else:
        jobs = [dataclasses.replace(CASES["sac"], batch_size=size) for size in args.batches]
    results = []
    for job in jobs:
        who = [*contenders(args), ceiling("env alone", "ours:bare_envs")]
        if job.cores > 1 and PIPELINED not in args.variant:  # on one core there is nobody to share work with
            who.insert(1, variant(PIPELINED))
        result = compare(job, who, args.seconds, args.repeats)
        show(f"{job.algo}, batch {job.batch_size}, {job.threads} thr.", result)
        results.append(result)
    if args.output is not None:
        from record import write_record  # it imports torch

        figures = {"sweep": args.sweep, "seconds": args.seconds, "repeats": args.repeats, "results": results}
        figures |= earlier(args)
        write_record(args.output, f"off_policy {args.sweep}", figures, peers=packages(args.peers))


if __name__ == "__main__":
    main()
