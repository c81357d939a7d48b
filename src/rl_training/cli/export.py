"""`axiomrl export`: a trained policy as a file that runs without this package."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import add_json, columns, print_json, reserved_stdout
from rl_training.cli.parser import (
    Parser,
    add_import,
    import_modules,
    non_negative_float,
    non_negative_int,
    positive_int,
)

if TYPE_CHECKING:
    from rl_training.export.policy import Export


def add_source(parser: Parser, default: str) -> None:
    """Which agent: a path, and for a run directory which of its checkpoints."""
    parser.add_argument("run", metavar="RUN_OR_CHECKPOINT", help="a run directory or a checkpoint")
    parser.add_argument(
        "--which", choices=("best", "latest"), help=f"the checkpoint of a run directory (default: {default})"
    )


def add_arguments(parser: Parser) -> None:
    """Which agent, as what, where to, and whether to try it."""
    add_source(parser, "best")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the directory to write into")
    parser.add_argument(
        "--format",
        choices=("onnx", "torch", "safetensors"),
        default="onnx",
        help="onnx: for any runtime of ONNX (extra: export); torch: a torch.export program, for torch alone; "
        "safetensors: weights, and the network in words (default: onnx)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="play the policy and the export side by side; if they differ, write nothing and exit with 1",
    )
    parser.add_argument(
        "--observations",
        type=positive_int,
        metavar="N",
        help="with --verify: how many (default: 1000)",
    )
    parser.add_argument(
        "--tolerance",
        type=non_negative_float,
        metavar="T",
        help="with --verify: the largest difference allowed, relative for numbers above 1 (default: 1e-4)",
    )
    parser.add_argument(
        "--seed",
        type=non_negative_int,
        metavar="S",
        help="with --verify: which episodes; default: the run's own test episodes",
    )
    add_import(parser)
    add_json(parser, "print a JSON object on stdout: model, description, checkpoint, verification")


def run(args: argparse.Namespace) -> int:
    """Write, and say what was written."""
    trial = {"observations": args.observations, "tolerance": args.tolerance, "seed": args.seed}
    given = {name: value for name, value in trial.items() if value is not None}
    if given and not args.verify:
        args.parser.error(f"--{next(iter(given))} says how the export is tried out: give --verify")
    with reserved_stdout():
        import_modules(args.imports)
        from rl_training.export.policy import export_policy
        from rl_training.export.verify import VerificationError

        try:
            export = export_policy(
                args.run,
                args.output,
                format=args.format,
                which=args.which or "best",
                verify=args.verify,
                **given,
            )
        except VerificationError as error:
            print(f"verification failed: {error}", file=sys.stderr)
            return 1
    print_json(_as_json(export)) if args.json else print("\n".join(columns(_rows(export))))
    return 0


def _as_json(export: Export) -> dict[str, Any]:
    return {
        "model": str(export.model_path),
        "description": str(export.description_path),
        "checkpoint": export.description["run"]["checkpoint"],
        "verification": export.description["verification"],
    }


def _rows(export: Export) -> list[tuple[str, str]]:
    about = export.description
    verified = "no; --verify compares it with the policy"
    return [
        ("model", f"{export.model_path}  ({export.model_path.stat().st_size:,} bytes)"),
        ("description", str(export.description_path)),
        ("checkpoint", f"{about['run']['checkpoint']} of {about['run']['algo']} on {about['run']['env_id']}"),
        *[("input", _port(port)) for port in about["inputs"]],
        *[("output", _port(port)) for port in about["outputs"]],
        ("verified", verified if export.verification is None else str(export.verification)),
    ]


def _port(port: dict[str, Any]) -> str:
    shape = ", ".join(map(str, port["shape"]))
    return f"{port['name']}: {port['dtype']}[{shape}]"
