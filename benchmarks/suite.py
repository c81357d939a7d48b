"""All that `docs/performance.md` is made of, part by part: some 35 minutes on two quiet cores.

    python benchmarks/suite.py [PARTS …] [--quick] [--list] [-- OPTIONS]      (`make bench PARTS="…"`)

Each part is one command and one file in `benchmarks/results`. Files are put there when all parts are done, so
that every one of them is of the commit that is checked out; `make bench` then makes the pages anew. What is
behind `--` goes to every part, such as `--before FOLDER` or, where parts have settings,
`--variant compiled:compile=on`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import PIPELINED

HERE = Path(__file__).parent
PARTS = {
    "libraries": (["libraries.py"], 7),
    "ppo-envs": (["ppo_cartpole.py", "envs", "--variant", PIPELINED], 6),
    "ppo-width": (["ppo_cartpole.py", "width"], 3),
    "off-policy": (["off_policy.py", "threads"], 5.5),
    "off-policy-batch": (["off_policy.py", "batch"], 2.5),
    "replay": (["replay.py"], 1.5),
    "time-to-threshold": (["time_to_threshold.py"], 6),
    "startup": (["startup.py"], 1.5),
}
"""Commands, and about how many minutes they take."""
UNKNOWN = {
    "--variant": ("replay", "startup"),
    "--repeats": ("time-to-threshold",),
    "--seconds": ("time-to-threshold", "startup"),
}
"""Options that some parts have no use for."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="default: all")
    quick = "a few minutes, to see that everything works; keeps nothing"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--list", action="store_true", help="say what there is")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:cut]), words[cut + 1 :]
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    for option in (word.partition("=")[0] for word in options):
        if lost := [part for part in args.parts or PARTS if part in UNKNOWN.get(option, ())]:
            parser.error(f"{option} is nothing for {' and '.join(lost)}; name the parts that are meant")
    if args.list:
        for name, (command, minutes) in PARTS.items():
            print(f"{name:18s} about {minutes:g} min   {' '.join(command)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts or PARTS:
            command, minutes = PARTS[part]
            print(f"== {part}" + ("" if args.quick else f" (about {minutes:g} minutes)"), flush=True)
            begin = time.perf_counter()
            output = ["-o", f"{folder}/speed-{part}.json", *(["--quick"] if args.quick else []), *options]
            subprocess.run([sys.executable, str(HERE / command[0]), *command[1:], *output], check=True)
            print(f"== {part}: {(time.perf_counter() - begin) / 60:.1f} minutes", flush=True)
        if not args.quick:
            for path in Path(folder).iterdir():
                shutil.copy(path, HERE / "results" / path.name)


if __name__ == "__main__":
    main()
