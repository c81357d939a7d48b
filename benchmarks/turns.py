"""Contenders take turns: each is a process of its own that trains for a while, then waits for the others.

A noisy machine is noisy for all of them, start-up and compilation are over when the first turn begins, and
what one library does to a process (threads, caches, memory) does not touch another. Reported are medians over
the turns, and ratios of this package to each peer.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pace import Job

HERE = Path(__file__).parent
SOURCE = str(HERE.parent / "src")
"""What is measured is the package in this checkout, which records name, whatever is installed."""
OURS = "axiomrl"
PEERS = {"stable-baselines3": "peers:sb3", "sbx": "peers:sbx"}
"""The libraries of every experiment, and the function that measures each."""
MORE_PEERS = {
    "tianshou": "peers_tianshou:tianshou",
    "torchrl": "peers_torchrl:torchrl",
    "d3rlpy": "peers_d3rlpy:d3rlpy",
}
"""Those of `libraries.py` besides."""
PACKAGES = {"stable-baselines3": ["stable-baselines3"], "sbx": ["sbx-rl", "jax"]}
"""What a library is made of, where that is not one package of its name."""
PIPELINED = "pipelined:collection=pipelined"
"""A variant: a process of its own collects while this one learns."""
ONE_CORE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True)
class Contender:
    """Who is measured, and what is different for it."""

    name: str
    call: str
    """The function, as `module:function`, that trains and keeps a meter informed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of our configuration, over those of the job."""
    environ: dict[str, str] = field(default_factory=dict)
    """Environment variables of its process."""
    weight: float = 1.0
    """How long its turns are, of the usual length."""


def ceiling(name: str, call: str) -> Contender:
    """Something that bounds what training can reach; steady enough for short turns."""
    return Contender(name, call, weight=0.3)


def surroundings(contender: Contender, *, threads: int = 1, **more: str) -> dict[str, str]:
    """The environment variables of a contender's process."""
    given = {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **given, **more, **contender.environ}


class Process:
    """A contender at work. Between turns it stands still, and so does every process it has started."""

    def __init__(self, contender: Contender, job: Job) -> None:
        self.contender = contender
        job = dataclasses.replace(job, settings=merged(job.settings, contender.settings))
        one_core = {"XLA_FLAGS": ONE_CORE} if job.cores == 1 else {}
        command = [
            sys.executable,
            str(HERE / "contend.py"),
            contender.call,
            json.dumps(dataclasses.asdict(job)),
        ]
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings(contender, threads=job.threads, **one_core),
            start_new_session=True,  # a group of its own, with whatever it starts
        )

    def answer(self) -> dict[str, float]:
        """What it says next."""
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            _, said = self.child.communicate()
            raise SystemExit(f"{self.contender.name} failed:\n{said}")
        found: dict[str, float] = json.loads(line)
        os.killpg(self.child.pid, signal.SIGSTOP)  # a sampler of its own would go on collecting
        return found

    def turn(self, seconds: float) -> dict[str, float]:
        """Let it run for about as long, and say how fast it was."""
        assert self.child.stdin is not None
        os.killpg(self.child.pid, signal.SIGCONT)
        self.child.stdin.write(f"{seconds * self.contender.weight}\n")
        self.child.stdin.flush()
        return self.answer()

    def end(self) -> None:
        """It ends when nobody asks any more."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.communicate()


@contextlib.contextmanager
def processes(contenders: Sequence[Contender], job: Job) -> Iterator[list[Process]]:
    """All of them, started side by side and ready for their first turn."""
    started: list[Process] = []
    # Whoever stands still would stay: it sees neither that nor the end of its input.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        started.extend(Process(contender, job) for contender in contenders)
        for process in started:
            process.answer()
        yield started
    finally:
        for process in started:
            process.end()
        signal.signal(signal.SIGTERM, before)


def compare(job: Job, contenders: Sequence[Contender], seconds: float, repeats: int) -> dict[str, Any]:
    """Every figure of every contender over `repeats` turns: medians, and our ratio to each of the others."""
    with processes(contenders, job) as running:
        for process in running:
            process.turn(seconds / 2)  # warm-up
        turns = [
            {process.contender.name: process.turn(seconds) for process in running} for _ in range(repeats)
        ]
    return {"job": dataclasses.asdict(job), **summary(turns)}


def summary(turns: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Medians by figure and contender, ratios of speed, and all that was measured."""
    by_figure: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        for name, figures in turn.items():
            for figure, value in figures.items():
                by_figure.setdefault(figure, {}).setdefault(name, []).append(value)
    medians = {
        figure: {name: statistics.median(values) for name, values in columns.items()}
        for figure, columns in by_figure.items()
    }
    speed, mine = by_figure["steps_per_second"], medians["steps_per_second"][OURS]
    others = [name for name in speed if name != OURS]
    return {
        **medians,
        "ratio_of_medians": {name: mine / medians["steps_per_second"][name] for name in others},
        "ratios": {
            name: [a / b for a, b in zip(speed[OURS], speed[name], strict=True)] for name in others
        },
        "all": by_figure,
    }  # fmt: skip


def show(label: str, result: dict[str, Any]) -> None:
    """One line a contender."""
    ratios = result["ratio_of_medians"]
    for name, rate in result["steps_per_second"].items():
        ratio = f"  {OURS} is {ratios[name]:.2f} of it" if name in ratios else ""
        turns = f" ({', '.join(f'{r:.2f}' for r in result['ratios'][name])})" if name in ratios else ""
        print(f"{label:24s} {name:28s} {rate:12,.0f} steps/s{ratio}{turns}", flush=True)


def parser(
    doc: str | None,
    *,
    repeats: int | None,
    seconds: float | None,
    variants: bool = True,
    peers: Iterable[str] = PEERS,
) -> argparse.ArgumentParser:
    """The options that these experiments share; those that have no turns, or one setting, lack some."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="seconds instead of minutes, to see that it works")
    if repeats is not None:
        made.add_argument("--repeats", type=int, default=repeats, help="turns of each contender")
    if seconds is not None:
        made.add_argument("--seconds", type=float, default=seconds, help="a turn")
    made.add_argument("--peers", nargs="*", default=list(peers), choices=list(peers))
    if variants:
        another = f"also measure this package with other settings, as {PIPELINED}"
        made.add_argument(
            "--variant", action="append", default=[], metavar="NAME:KEY=VALUE[,…]", help=another
        )
    made.add_argument(
        "--before", type=Path, metavar="FOLDER", help="also measure an older checkout of this package"
    )
    made.add_argument("-o", "--output", type=Path)
    return made


def arguments(made: argparse.ArgumentParser) -> argparse.Namespace:
    """Read them, and see that an older checkout is one; a quick run has one short turn."""
    args = made.parse_args()
    if args.quick:
        args.repeats, args.seconds = 1, 0.3
    if args.before is not None:
        if not (args.before / "src" / "rl_training").is_dir():
            made.error(f"--before {args.before}: there is no src/rl_training in that folder")
        earlier(args)
    return args


def contenders(args: argparse.Namespace) -> list[Contender]:
    """This package, its variants, and the peers that are asked for."""
    ours = Contender(OURS, "ours:axiomrl")
    peers = [Contender(name, {**PEERS, **MORE_PEERS}[name]) for name in args.peers]
    return [ours, *map(variant, args.variant), *before(ours, args), *peers]


def before(ours: Contender, args: argparse.Namespace) -> list[Contender]:
    """The same contender in an older checkout, if there is one."""
    if args.before is None:
        return []
    source = {"PYTHONPATH": str((args.before / "src").resolve())}
    return [dataclasses.replace(ours, name=f"{ours.name}, before", environ={**ours.environ, **source})]


def variant(text: str) -> Contender:
    """This package with other settings, from `name:key=value,section.key=value`."""
    name, _, given = text.partition(":")
    settings: dict[str, Any] = {}
    for pair in filter(None, given.split(",")):
        key, _, value = pair.partition("=")
        nested: Any = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            nested = {part: nested}
        settings = merged(settings, nested)
    if not settings:
        raise SystemExit(f"--variant {text}: give a name and settings, as in {PIPELINED}")
    return Contender(f"{OURS}, {name}", "ours:axiomrl", settings)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Settings with others laid over them, section by section. Here, as older checkouts are measured too."""
    both = {
        key: merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **both}


def earlier(args: argparse.Namespace) -> dict[str, str]:
    """Which commit the older checkout is, for the record."""
    if args.before is None:
        return {}
    asked = ["git", "-C", str(args.before), "rev-parse", "HEAD"]
    told = subprocess.run(asked, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"--before {args.before}: git does not know its commit: {told.stderr.strip()}")
    return {"before": told.stdout.strip()}


def packages(peers: Sequence[str]) -> list[str]:
    """What the peers are made of, for the record."""
    return [package for peer in peers for package in PACKAGES.get(peer, [peer])]
