"""Kill a study twice, outright and with all of its runs, and let it finish: it has the trials it should have.

python examples/studies/kill_twice.py examples/studies/a2c-cartpole.yaml runs/killed
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

TUNE = [sys.executable, "-m", "rl_training.cli", "tune"]


def trials(folder: Path) -> list[dict[str, object]]:
    """The trials of a study as its record tells them."""
    try:
        return list(json.loads((folder / "study.json").read_text())["trials"])
    except (OSError, ValueError, KeyError):
        return []


def descendants(pid: int) -> list[int]:
    """The processes below one, by what Linux says of them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # it has ended
    children = [child for child, parent in parents.items() if parent == pid]
    return [*children, *(below for child in children for below in descendants(child))]


def kill_after(command: list[str], folder: Path, ended: int) -> None:
    """Run a study until so many of its trials have ended, then kill it and its runs outright."""
    process = subprocess.Popen(command)
    while process.poll() is None:
        if sum(trial["state"] != "running" for trial in trials(folder)) >= ended:
            for pid in (process.pid, *descendants(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            print(f"killed with {len(trials(folder))} trials begun, {ended} of them ended", flush=True)
            return
        time.sleep(0.2)
    raise SystemExit("the study ended before it could be killed")


def main(study: str, output: str) -> None:
    """Kill, kill, finish, count."""
    folder, command = Path(output), [*TUNE, "--config", study, "--output-dir", output]
    for ended in (6, 13):
        kill_after(command, folder, ended)
    subprocess.run(command, check=True)
    record = json.loads((folder / "study.json").read_text())
    numbers = [trial["number"] for trial in record["trials"]]
    gapless = numbers == list(range(len(numbers)))
    print(f"trials: {len(numbers)} of {record['asked']}, numbered without gap: {gapless}")
    print(f"verdict on held-out seeds: {(record['validation'] or {}).get('verdict')}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(f"usage: {sys.argv[0]} STUDY.yaml OUTPUT_DIR")
    main(*sys.argv[1:])
