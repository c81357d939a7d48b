"""PPO, DQN, SAC and TD3 in all libraries that install beside this one: steps a second, in turns.

    python benchmarks/libraries.py [--cases ppo-8 ppo-64 dqn sac td3] [-o FILE]

The jobs of `ppo_cartpole.py` (two cores, one thread of torch) and of `off_policy.py` (one core, one thread).
Every library takes its own loop, or where it has none the one of its own examples, eagerly or compiled as it
comes. d3rlpy has no PPO. Needs `make bench-env`.
"""

from __future__ import annotations

from off_policy import CASES
from pace import Job
from ppo_cartpole import job_of
from turns import MORE_PEERS, PEERS, arguments, ceiling, compare, contenders, earlier, packages, parser, show

JOBS: dict[str, Job] = {"ppo-8": job_of(8, 64), "ppo-64": job_of(64, 64), **CASES}
OFF_POLICY_ONLY = {"d3rlpy"}


def main() -> None:
    made = parser(__doc__, repeats=5, seconds=1.5, peers=[*PEERS, *MORE_PEERS])
    made.add_argument("--cases", nargs="+", default=list(JOBS), choices=list(JOBS))
    args = arguments(made)
    results = []
    for case in args.cases[:1] if args.quick else args.cases:
        job = JOBS[case]
        who = [c for c in contenders(args) if not (job.is_on_policy and c.name in OFF_POLICY_ONLY)]
        result = compare(job, [*who, ceiling("envs alone", "ours:bare_envs")], args.seconds, args.repeats)
        show(case, result)
        results.append(result)
    if args.output is not None:
        from record import write_record  # it imports torch

        figures = {"seconds": args.seconds, "repeats": args.repeats, "results": results, **earlier(args)}
        write_record(args.output, "libraries", figures, peers=packages(args.peers))


if __name__ == "__main__":
    main()
