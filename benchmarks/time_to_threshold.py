"""PPO on CartPole: seconds from the start of the process to an evaluation of 475, beside other libraries.

    python benchmarks/time_to_threshold.py [--seeds 1 2 3 …] [-o FILE]

All have the settings of the preset `ppo/cartpole`, which are those of RL Baselines3 Zoo: 8 envs, 32 steps, 20
epochs over all of it, rates that fall to zero over 100,000 steps. Every 5,000 steps the policy plays 10
episodes; training ends when they bring 475 on average, or with its steps, and then the seed is not solved.
Evaluations are as a library makes them: here in 4 envs side by side, in the others in one; Stable-Baselines3
is measured with 4 as well.
A process a seed, in turns, two cores, one thread of torch, from its start with all imports until training has
returned; the first seed is run once more before, and does not count: it fills the caches of files. Nobody
writes TensorBoard's files. Needs `make bench-env`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from pace import Job
from turns import OURS, PEERS, Contender, arguments, contenders, earlier, packages, parser, surroundings

SB3 = "stable-baselines3"
THRESHOLD, STEPS, EVERY, EPISODES = 475.0, 100_000, 5_000, 10
SIDE_BY_SIDE = 4
"""Envs in which this package evaluates unless it is told otherwise."""


def ours(seed: int, steps: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train the preset until it is good enough."""
    import rl_training
    from turns import merged

    given: dict[str, Any] = {
        "total_timesteps": steps,
        "seed": seed,
        "device": "cpu",
        "threads": 1,
        "evaluation": {"every_steps": EVERY, "episodes": EPISODES, "num_envs": SIDE_BY_SIDE},
        "stopping": {"target_return": THRESHOLD},
        "logging": {"tensorboard": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = rl_training.train(preset="ppo/cartpole", output_dir=folder, **merged(given, settings))
        end = time.time()
        lines = (Path(run.run_dir) / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    return {"steps": last["global_step"], "return": last["return_mean"], "end": end}


def peer(name: str, seed: int, steps: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings in another library, with evaluations in so many envs."""
    from peers import falling, train_until

    taken, mean = train_until(
        name,
        Job("ppo", "CartPole-v1", 8, num_steps=32, epochs=20, minibatches=1),
        target=THRESHOLD,
        steps=steps,
        every=EVERY,
        episodes=EPISODES,
        side_by_side=settings.get("side_by_side", 1),
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        clip_range_vf=None,
        learning_rate=falling(1e-3),
        clip_range=falling(0.2),
        seed=seed,
    )
    return {"steps": taken, "return": mean, "end": time.time()}


def measure(contender: Contender, seed: int, steps: int) -> dict[str, Any]:
    """A process from its beginning to its end."""
    words = [contender.name, str(seed), str(steps), json.dumps(contender.settings)]
    environ = surroundings(contender)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files of installed packages are there anyway
    begin = time.time()
    done = subprocess.run(
        [sys.executable, __file__, "--one", *words], capture_output=True, text=True, env=environ
    )
    if done.returncode:
        raise SystemExit(f"{contender.name} failed:\n{done.stderr}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    seconds = found.pop("end") - begin
    return {"seed": seed, "seconds": seconds, "solved": found["return"] >= THRESHOLD, **found}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, seed, steps, settings = sys.argv[2:]
        train = ours if name.startswith(OURS) else partial(peer, name.partition(",")[0])
        print(json.dumps(train(int(seed), int(steps), json.loads(settings))))
        return
    made = parser(__doc__, repeats=None, seconds=None)
    made.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 21)))
    args = arguments(made)
    seeds, steps = ([1], EVERY) if args.quick else (args.seeds, STEPS)
    who = contenders(args)
    if SB3 in args.peers:
        who.append(Contender(f"{SB3}, {SIDE_BY_SIDE} at evaluations", "", {"side_by_side": SIDE_BY_SIDE}))
    runs: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in who}
    for contender in who:
        measure(contender, seeds[0], EVERY)
    for seed in seeds:
        for contender in who:
            run = measure(contender, seed, steps)
            runs[contender.name].append(run)
            reached = "solved" if run["solved"] else "not solved"
            took = f"{run['seconds']:6.1f} s  {run['steps']:7,d} steps"
            print(f"seed {seed} {contender.name:20s} {took}  {reached}", flush=True)
    seconds = {name: statistics.median(run["seconds"] for run in found) for name, found in runs.items()}
    solved = {name: sum(run["solved"] for run in found) for name, found in runs.items()}
    ratios = {name: value / seconds[OURS] for name, value in seconds.items() if name != OURS}
    for name, ratio in ratios.items():
        print(f"{OURS} {seconds[OURS]:.1f} s, {name} {seconds[name]:.1f} s: {ratio:.2f} times as long")
    if args.output is not None:
        from record import write_record  # it imports torch

        figures = {
            "threshold": THRESHOLD,
            "seconds": seconds,
            "solved": solved,
            "ratio_of_medians": ratios,
            "runs": runs,
            **earlier(args),
        }
        peers = packages([peer for peer in PEERS if peer in args.peers])
        write_record(args.output, "time_to_threshold", figures, peers=peers)


if __name__ == "__main__":
    main()
