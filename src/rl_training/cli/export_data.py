"""`axiomrl export-data`: transitions as a dataset."""

from __future__ import annotations

import argparse

from rl_training.cli.export import add_source
from rl_training.cli.output import add_json, columns, print_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules, non_negative_int, positive_int


def add_arguments(parser: Parser) -> None:
    """Whose transitions, which, and where to."""
    add_source(parser, "latest; with --episodes: best")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="a .npz file, or .hdf5 or .h5 (extra: hdf5)"
    )
    parser.add_argument(
        "--episodes",
        type=positive_int,
        metavar="N",
        help="full episodes that the agent plays now; default: what its replay buffer holds",
    )
    parser.add_argument(
        "--seed",
        type=non_negative_int,
        metavar="S",
        help="with --episodes: which ones; default: the run's own test episodes",
    )
    parser.add_argument(
        "--stochastic",
        action="store_true",
        help="with --episodes: sample actions instead of taking the likeliest",
    )
    add_import(parser)
    add_json(parser, "print a JSON object on stdout: file, columns, metadata")


def run(args: argparse.Namespace) -> int:
    """Write, and say what was written."""
    if args.episodes is None and (args.stochastic or args.seed is not None):
        args.parser.error("--stochastic and --seed say how episodes are played: give --episodes N")
    with reserved_stdout():
        import_modules(args.imports)
        from rl_training.export.data import export_data

        export = export_data(
            args.run,
            args.output,
            episodes=args.episodes,
            which=args.which,
            seed=args.seed,
            deterministic=not args.stochastic,
        )
    about = export.metadata
    if args.json:
        print_json({"file": str(export.path), "columns": export.columns, "metadata": about})
        return 0
    source = "the replay buffer" if about["source"] == "replay_buffer" else "episodes played now"
    rows = [
        ("file", f"{export.path}  ({export.path.stat().st_size:,} bytes)"),
        ("source", f"{source}, {about['checkpoint']} of {about['algo']} on {about['env_id']}"),
        ("transitions", f"{about['num_transitions']:,}"),
        ("episodes", f"{about['num_episodes']:,}"),
        ("columns", ", ".join(export.columns)),
    ]
    print("\n".join(columns(rows)))
    return 0
