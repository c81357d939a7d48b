"""`axiomrl resume`: go on in the same run directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import add_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules, positive_int
from rl_training.cli.train import JSON_HELP, QUIET_HELP
from rl_training.garbage import importing_torch

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback


OVERRIDES = """
Every field of the configuration is an option, as for `train`: --checkpoint.every-steps 10000  --threads 2
What shapes training (hyperparams, network, env, seed, num_envs, ...) can be changed only with --allow-drift.
"""


def add_arguments(parser: Parser) -> None:
    """Which run, how far, what may change, and how to report."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="RUN_OR_CHECKPOINT",
        help="a run directory (its latest) or a checkpoint",
    )
    parser.add_argument(
        "--total-timesteps",
        type=positive_int,
        metavar="N",
        help="train to this step; default: the run's own total",
    )
    parser.add_argument(
        "--extend-schedules",
        action="store_true",
        help="stretch learning-rate and other schedules to the new total",
    )
    parser.add_argument(
        "--allow-drift",
        action="store_true",
        help="accept changes of the configuration that make it another run from here on",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="where a checkpoint that lies outside a run goes on; default: runs",
    )
    add_import(parser)
    add_json(parser, f"{JSON_HELP}; with `resumed` {{step, grade, reason, drift, changed}}")
    parser.add_argument("--quiet", action="store_true", help=QUIET_HELP)
    parser.overrides = True
    parser.details = lambda _: OVERRIDES


def run(args: argparse.Namespace) -> int:
    """Continue, and say how exactly the run was picked up."""
    from rl_training.cli.summary import finish
    from rl_training.experiment.metadata import read_metadata
    from rl_training.runtime.progress import patient_streams

    with reserved_stdout(args.json or args.quiet), patient_streams():
        import_modules(args.imports)
        with importing_torch():
            from rl_training import api
        from rl_training.cli.overrides import override_layer
        from rl_training.continuation import open_continuation, plan

        checkpoint, layers = open_continuation(args.checkpoint)
        overrides = override_layer(
            args, checkpoint.config.algo, total_timesteps=args.total_timesteps, output_dir=args.output_dir
        )
        result = api.resume_planned(
            plan(checkpoint, layers, overrides, allow_drift=args.allow_drift),
            callbacks=() if args.quiet else [_announcement()],
            progress=not args.quiet,
            extend_schedules=args.extend_schedules,
        )
    return finish(
        result,
        as_json=args.json,
        quiet=args.quiet,
        imports=args.imports,
        resumed=_how(read_metadata(result.run_dir)["resumes"][-1]),
    )


def _announcement() -> Callback:
    """Says at the start what the resume gives: nobody should have to wait for the end to learn it."""
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.progress import reader_may_leave

    class Announcement(Callback):
        """Prints on stderr how the run was picked up."""

        def on_train_start(self, trainer: Any) -> None:
            with reader_may_leave(sys.stderr):
                print("\n  ".join(_announced(trainer)), file=sys.stderr)

    return Announcement()


def _announced(trainer: Any) -> Iterator[str]:
    """The grade, and what somebody who only wants to go on may not expect."""
    how = _how(trainer.checkpoints.metadata["resumes"][-1])
    yield f"resuming at step {how['step']:,}: {how['grade']}, {how['reason']}"
    for change in (*how["drift"], *how["changed"]):
        yield "{key}: {old} → {new} ({origin})".format_map(change)
    if dropped := trainer.checkpoints.dropped:
        yield f"dropped, because newer than step {how['step']:,}: {', '.join(dropped)}"
    if trainer.horizon < trainer.settings.total_timesteps:
        for name, schedule in trainer.algorithm.schedules.items():
            if schedule.kind != "constant":
                yield (
                    f"{name}: its {schedule.kind} schedule reaches 0 at step {trainer.horizon:,} and stays "
                    "there; --extend-schedules stretches it to the new total"
                )


def _how(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("step", "grade", "reason", "drift", "changed")}
