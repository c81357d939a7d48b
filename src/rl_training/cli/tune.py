"""`axiomrl tune`: search for better hyperparameters, and say honestly whether they are better."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.output import add_json, print_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules, positive_int

if TYPE_CHECKING:
    from rl_training.zoo.tuning.record import StudyRecord
    from rl_training.zoo.tuning.tuner import Tuner

EXAMPLE = """\
a study:
  preset: ppo/cartpole
  space:
    hyperparams.learning_rate: {low: 1e-5, high: 1e-2, log: true}
    network.hidden: [[64, 64], [256, 256]]
  steps: 20_000
  trials: 20
  seeds: [1, 2]
  pruner: median
"""


def add_arguments(parser: Parser) -> None:
    """Which study, where it lies, how much of it."""
    parser.add_argument("--config", required=True, metavar="FILE", help="the study: a YAML file")
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="where the study lies (default: runs/tune/NAME); called again, it goes on there",
    )
    parser.add_argument(
        "--trials", type=positive_int, metavar="N", help="so many trials in all (default: the study's)"
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        metavar="N",
        help="runs side by side, one thread each (default: the study's, or half of the cores)",
    )
    add_import(parser)
    add_json(parser, "print what came out on stdout at the end; everything else goes to stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    parser.epilog = EXAMPLE


def run(args: argparse.Namespace) -> int:
    """Search, validate, report. Exit code 1 if no trial was completed or a run on held-out seeds failed."""
    from rl_training.cli.launch import shown_command
    from rl_training.cli.overrides import module_problems
    from rl_training.errors import ConfigError
    from rl_training.zoo.display import NoDisplay, RichDisplay
    from rl_training.zoo.tuning.journal import require_optuna
    from rl_training.zoo.tuning.record import RECORD, read_record
    from rl_training.zoo.tuning.report import as_text
    from rl_training.zoo.tuning.study import load_study
    from rl_training.zoo.tuning.tuner import Tuner

    require_optuna()
    with reserved_stdout(args.json or args.quiet):
        import_modules(args.imports)
        design = load_study(args.config, trials=args.trials)
        if problems := module_problems(design.base, args.imports):
            raise ConfigError(problems)
    folder = Path(args.output_dir or Path("runs") / "tune" / design.study.name)
    width = args.workers or design.study.workers or max(1, (os.cpu_count() or 1) // 2)
    given = ["--trials", str(args.trials)] if args.trials else []
    given += [word for name in args.imports for word in ("--import", name)]
    command = shown_command("tune", "--config", args.config, *given)
    command += ["--output-dir", args.output_dir] if args.output_dir else []  # elsewhere, it would be another
    with NoDisplay() if args.quiet else RichDisplay(design.trials, "trials") as display:
        tuner = Tuner(design, folder, width, display, imports=args.imports, command=command)
        data = tuner.run()
    record = read_record(folder)
    if args.json:
        print_json({"study": str(folder / RECORD), **data})
    elif args.quiet:
        print(folder)
    else:
        print(as_text(record), end="")
        _print_next(record, tuner)
    if tuner.stopped_by is not None:
        return 128 + signal.Signals(tuner.stopped_by)
    return int(record.best is None or bool(tuner.errors))


def _print_next(record: StudyRecord, tuner: Tuner) -> None:
    """What can be done now."""
    import shlex

    from rl_training.zoo.tuning.record import PRESET
    from rl_training.zoo.tuning.summary import train_command

    where = shlex.quote(str(record.path))
    if tuner.stopped_by is not None:
        print(f"\nstopped; the same command goes on with the study in {where}")
        return
    for job, error in tuner.errors.items():
        print(f"\nfailed: {job}: {error}")
    print("\nnext")
    print(f"  axiomrl tune-report {where} --format html")
    if (record.path / PRESET).is_file():
        print(f"  {shlex.join(train_command(record))}")
