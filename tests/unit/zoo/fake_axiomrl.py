"""Stands in for `python -m rl_training.cli.child` in tests of the runner: the same files, no torch.

A run saves after every step. Given a config file, its returns get better with the learning rate there, up to
`BEST`, and worse beyond. With FAKE_GATE, a folder, it takes the third one only when there is a file `go`
in it, and, asked to end, saves only when there is a file `save`. Its calls are noted in FAKE_CALLS.
Runs whose configuration is worse than FAKE_SLOW wait before the third step until they are asked to end; those
worse than FAKE_FRAGILE fail. FAKE_LIFT is added to the returns that are evaluated at the end.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

GATE, CALLS = os.environ.get("FAKE_GATE"), os.environ["FAKE_CALLS"]
SLOW, FRAGILE = (float(os.environ.get(name, "-inf")) for name in ("FAKE_SLOW", "FAKE_FRAGILE"))
LIFT = float(os.environ.get("FAKE_LIFT", "0"))
TOTAL, BEST = 5, 1e-3


def is_shut(name: str) -> bool:
    return GATE is not None and not Path(GATE, name).exists()


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def main(argv: list[str]) -> int:
    from rl_training.cli.child import _watch

    threading.Thread(target=_watch, daemon=True).start()
    verb = argv[0]
    if verb == "eval":
        return evaluate(Path(option(argv, "--checkpoint")), int(option(argv, "--num-episodes")), argv)
    if verb == "train":
        seed = int(option(argv, "--seed"))
        note(verb, seed)
        if f"--fail-at={seed}" in argv or bonus(argv) < FRAGILE:
            print("error: made to fail", file=sys.stderr)
            return 2
        run = Path(option(argv, "--output-dir")) / f"run{time.time_ns()}"
        (run / "checkpoints").mkdir(parents=True)
        about: dict[str, Any] = {"git": {"commit": "c"}, "hardware": {}, "versions": {}}
        diverges = f"--diverge-at={seed}" in argv
        write(run, {"status": "running", "seed": seed, "bonus": bonus(argv), "diverges": diverges, **about})
        return train(run, 0)
    run = Path(option(argv, "--checkpoint"))
    note(verb, read(run)["seed"])
    return train(run, max(int(p.name[5:]) for p in (run / "checkpoints").iterdir()))


def bonus(argv: list[str]) -> float:
    """How good the configuration is: 0 at the best learning rate, less the further away it is."""
    if "--config" not in argv:
        return 0.0
    text = Path(option(argv, "--config")).read_text()
    rate = float(re.search(r"\blearning_rate: ([-+.\de]+)", text.partition("hyperparams")[2])[1])  # type: ignore[index]
    return -100.0 * abs(math.log10(rate / BEST))


def train(run: Path, step: int) -> int:
    lock = open(run / ".lock", "w")  # noqa: SIM115 - held to the end
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(os.getpid(), file=lock, flush=True)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    while step < TOTAL and not stopped:
        if step == 2 and (is_shut("go") or read(run)["bonus"] < SLOW):
            time.sleep(0.01)
            continue
        step += 1
        with open(run / "evaluations.jsonl", "a") as file:
            file.write(
                json.dumps(
                    {
                        "global_step": step,
                        "elapsed_s": time.time(),
                        "return_mean": step + read(run).get("bonus", 0),
                    }
                )
                + "\n"
            )
        (run / "checkpoints" / f"step_{step}").mkdir()
        latest = {
            "latest_checkpoint": f"checkpoints/step_{step}",
            "latest_metrics": {"elapsed_s": time.time()},
        }
        write(run, {**read(run), **latest})
    if stopped:
        (run / "asked-to-end").touch()
    while stopped and is_shut("save"):
        time.sleep(0.01)
    write(run, {**read(run), "status": "interrupted" if stopped else "completed"})
    return 143 if stopped else 0


def evaluate(run: Path, episodes: int, argv: list[str]) -> int:
    seed = read(run)["seed"]
    note("eval", seed)
    returns = [float(seed * 10 + i) + LIFT + read(run).get("bonus", 0) for i in range(episodes)]
    mean = None if read(run).get("diverges") else sum(returns) / episodes  # NaN is written as null
    checkpoint = str(run / read(run)["latest_checkpoint"])
    scores = {"return_mean": mean, "return_std": 1.0, "returns": returns}
    print(json.dumps({**scores, "num_episodes": episodes, "checkpoint": checkpoint}))
    return 0


def note(verb: str, seed: int) -> None:
    with open(CALLS, "a") as file:
        file.write(f"{verb} {seed} {os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")


def read(run: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run / "metadata.json").read_text())
    return data


def write(run: Path, data: dict[str, Any]) -> None:
    (run / ".new").write_text(json.dumps(data))
    os.replace(run / ".new", run / "metadata.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
