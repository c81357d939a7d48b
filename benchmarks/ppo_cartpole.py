"""PPO on CartPole: environment steps a second beside other libraries, same settings, in turns.

    python benchmarks/ppo_cartpole.py envs  [--num-envs 1 8 64 512 4096] [-o FILE]
    python benchmarks/ppo_cartpole.py width [--widths 64 256 1024] [-o FILE]

`envs`: a 64x64 tanh actor and critic and ever more envs. `width`: 64 envs and ever wider networks. All run
128 steps an iteration (fewer where that would be more than 65,536 over all envs), 4 epochs, 4 minibatches,
Adam, two cores, one thread of torch (two for wider networks, which are worth them; JAX takes as many as it
likes); from 64 envs on this package is measured with its native vector of envs too. Beside them the envs
alone, as a plain loop and in Gymnasium's own vector, which no library can beat on the same envs; what
collection and updates would reach alone; and the memory of each process. Needs `make bench-env`.
"""

from __future__ import annotations

from pace import Job
from turns import Contender, arguments, ceiling, compare, contenders, earlier, packages, parser, show, variant

BUDGET = 65_536
"""Steps of an iteration over all envs, at most."""


def job_of(num_envs: int, width: int) -> Job:
    """PPO with so many envs and a network so wide."""
    steps = min(128, BUDGET // num_envs)
    return Job("ppo", "CartPole-v1", num_envs, (width, width), threads=2 if width > 64 else 1, cores=2,
               num_steps=steps, settings={"env": {"backend": "sync"}})  # fmt: skip


def main() -> None:
    made = parser(__doc__, repeats=5, seconds=1.5)
    made.add_argument("sweep", choices=["envs", "width"])
    made.add_argument("--num-envs", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    made.add_argument("--widths", type=int, nargs="+", default=[64, 256, 1024])
    args = arguments(made)
    if args.quick:
        args.num_envs, args.widths = [8], [64]
    sizes = [(n, 64) for n in args.num_envs] if args.sweep == "envs" else [(64, w) for w in args.widths]
    ceilings = [
        ceiling("envs alone", "ours:bare_envs"),
        ceiling("Gymnasium's vector alone", "ours:vector_envs"),
    ]
    results = []
    for num_envs, width in sizes:
        who: list[Contender] = contenders(args)
        if args.sweep == "envs" and num_envs >= 8:
            who.insert(1, variant("two learners:learners=2"))
        if num_envs >= 64:
            who.insert(1, variant("native:env.backend=native"))
        result = compare(job_of(num_envs, width), [*who, *ceilings], args.seconds, args.repeats)
        show(f"{num_envs:,} envs, {width}x{width}", result)
        results.append(result)
    if args.output is not None:
        from record import write_record  # it imports torch

        figures = {"sweep": args.sweep, "seconds": args.seconds, "repeats": args.repeats, "results": results}
        figures |= earlier(args)
        write_record(args.output, f"ppo_cartpole {args.sweep}", figures, peers=packages(args.peers))


if __name__ == "__main__":
    main()
