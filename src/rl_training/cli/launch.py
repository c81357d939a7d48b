"""What the commands that run several seeds share: their options, their plan, how they report and end."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_training.cli.output import columns, print_json
from rl_training.cli.parser import Parser, positive_int
from rl_training.errors import ConfigError
from rl_training.experiment.layers import Resolved
from rl_training.zoo.asked import MANIFEST
from rl_training.zoo.bands import Band
from rl_training.zoo.configs import OWN
from rl_training.zoo.jobs import Job
from rl_training.zoo.manifest import Plan
from rl_training.zoo.suites import Protocol, Suite, first_seeds, folder_name, train_arguments

OVERRIDES = """
Every field of the configuration is an option, as for `train`, and is passed on to every run: for example
--total-timesteps 50000, --hyperparams.learning-rate 1e-3
"""


def add_jobs(parser: Parser) -> None:
    """How many runs side by side."""
    parser.add_argument(
        "--jobs",
        type=positive_int,
        metavar="N",
        help="runs side by side, one thread each (default: half of the cores)",
    )


def suite_plan(args: argparse.Namespace, suite: Suite, command: Sequence[str]) -> Plan:
    """The runs of a suite, each configuration judged before any of them starts."""
    from rl_training.cli.overrides import ORIGIN
    from rl_training.cli.same import require_label

    seeds = args.seeds or first_seeds(suite.seeds, args.num_seeds)
    protocol = replace(suite.evaluation, episodes=args.episodes or suite.evaluation.episodes)
    folder = Path(args.output_dir or Path("runs") / "zoo" / suite.name)
    require_sound_overrides(args.target, suite, args.parser, args.imports)
    jobs: list[Job] = []
    bands: dict[str, Band] = {}
    configs: dict[str, Mapping[str, Any]] = {}
    overrides: dict[str, Mapping[str, Any]] = {}
    for preset, entry in suite.entries.items():
        own = train_arguments(preset, entry)
        words = [*own, *args.extra]
        laid_down, resolved = (_resolved(preset, given, args.parser, args.imports) for given in (own, words))
        if resolved.origins.get(("seed",)) == ORIGIN:
            raise ConfigError("command line: --seed: a run is made of each of several seeds; give --seeds")
        if getattr(args, "results", None) and not args.label:
            require_label(preset, resolved)
        configs[preset] = asked_config(resolved)
        overrides[preset] = _suite_values(laid_down, resolved)
        jobs += make_jobs(preset, resolved, words, seeds, protocol, folder, args.imports)
        if entry.band is not None:
            bands[preset] = entry.band
    return Plan(suite.name, folder, command, jobs, protocol, bands, args.commit, configs, overrides)


def asked_config(resolved: Resolved) -> dict[str, Any]:
    """A configuration as the manifest has it: without what each run has of its own."""
    from rl_training.experiment.config import to_dict

    return {key: value for key, value in to_dict(resolved.config).items() if key not in OWN}


def _suite_values(laid_down: Resolved, asked: Resolved) -> dict[str, Any]:
    """What a suite changes of a preset, unless the command line has changed it again."""
    from rl_training.experiment.config import to_dict
    from rl_training.experiment.layers import preset_differences
    from rl_training.experiment.sections import flat

    values = {".".join(path): value for path, value in flat(to_dict(asked.config))}
    changes = preset_differences(laid_down.config, laid_down.preset) or []
    found = {change["key"]: change.get("run") for change in changes}
    return {key: value for key, value in found.items() if key in values and values[key] == value}


def require_sound_overrides(source: str, suite: Suite, parser: Parser, imports: Sequence[str] = ()) -> None:
    """What a suite overrides must be there and make sense. Imports torch, but only if it overrides anything:
    the keys of hyperparameters are known to the algorithms alone."""
    problems: list[str] = []
    for preset, entry in suite.entries.items():
        try:
            if entry.overrides:
                _resolved(preset, train_arguments(preset, entry), parser, imports)
        except ConfigError as error:
            at = f"{source}: presets.{preset}.overrides"
            problems += [f"{at}: {problem.removeprefix('command line: ')}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def _resolved(preset: str, words: Sequence[str], parser: Parser, imports: Sequence[str]) -> Resolved:
    """The configuration of a preset with what the arguments of `train` after it say."""
    from rl_training.cli.overrides import resolve

    return resolve(
        argparse.Namespace(preset=preset, config=None, imports=imports, extra=words[2:], parser=parser)
    )


def make_jobs(
    name: str,
    resolved: Resolved,
    words: Sequence[str],
    seeds: Sequence[int],
    protocol: Protocol,
    folder: Path,
    imports: Sequence[str],
) -> list[Job]:
    """A job a seed; refused where other runs than these lie in its folder."""
    from rl_training.cli.same import require_same

    config = resolved.config
    given = [*(word for name in imports for word in ("--import", name)), *words]
    if config.threads != 1 and "--threads" not in {word.partition("=")[0] for word in words}:
        given += ["--threads", "1"]  # what runs side by side must not fight over cores
    facts = {"preset": resolved.preset, "algo": config.algo, "env_id": config.env_id}
    jobs = [
        Job(
            name,
            seed,
            tuple(given),
            folder / folder_name(name) / f"seed{seed}",
            config.total_timesteps,
            protocol,
            facts,
            tuple(imports),
        )
        for seed in seeds
    ]
    for job in jobs:
        require_same(job, resolved)
    return jobs


def execute(plan: Plan, args: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Run a plan, say what came out, and answer the exit code: 1 if a run failed."""
    from rl_training.zoo.display import NoDisplay, RichDisplay
    from rl_training.zoo.runner import Runner

    width = args.jobs or max(1, (os.cpu_count() or 1) // 2)
    with NoDisplay() if args.quiet else RichDisplay(len(plan.jobs)) as display:
        runner = Runner(plan, width, display)
        manifest = runner.run()
    if args.json:
        print_json({"manifest": str(plan.folder / MANIFEST), **manifest})
    elif args.quiet:
        print(plan.folder / MANIFEST)
    else:
        _print_summary(plan, manifest)
    if runner.stopped_by is not None:
        return 128 + signal.Signals(runner.stopped_by), manifest
    return int(bool(runner.errors)), manifest


def shown_command(*words: str) -> list[str]:
    """A command as it is recorded: without what only says where the runs lie and how many go side by side."""
    kept, queue = ["axiomrl"], list(words)
    while queue:
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        if name in ("--output-dir", "--jobs", "--results", "--commit"):
            if not equals and queue:
                queue.pop(0)
        elif name not in ("--json", "--quiet"):
            kept.append(word)
    return kept


def _print_summary(plan: Plan, manifest: dict[str, Any]) -> None:
    from rl_training.zoo.bands import summary_rows

    print("\n".join(columns(summary_rows(manifest))))
    failed = [run for run in manifest["runs"] if run["status"] == "failed"]
    if failed:
        print(f"\nfailed ({len(failed)}):")
        for run in failed:
            print(f"  {run['name']} seed {run['seed']}: {run['error']}")
            print(f"    {shlex.join(run['command'])}")
    left = [run for run in manifest["runs"] if run["status"] not in ("failed", "completed")]
    if left:
        print(f"\nnot finished: {len(left)} of {len(manifest['runs'])}; the same command goes on with them")
    print(f"\nmanifest: {plan.folder / MANIFEST}")
