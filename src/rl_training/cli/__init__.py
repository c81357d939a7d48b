"""The command line: `axiomrl`, or `python -m rl_training.cli`. One small module a command.

A command is a row in `COMMANDS` and a module that is imported only when the command is called:

    add_arguments(parser: Parser) -> None     declares its arguments
    run(args: argparse.Namespace) -> int      does the work and answers the exit code

A module imports what is heavy inside `run`. `parser.overrides = True` lets unknown arguments through, as
`args.extra`; `parser.details` is a function of the argument list whose answer is appended to the help.
A module with `SUBCOMMANDS`, rows like those of `COMMANDS`, has commands of two words.
Raise an `AxiomError` for anything the user can do something about. Exit codes: 0 done, 1 an unexpected
error (or, for `check-env`, a bad env, for `inspect`, a difference, for several seeds, a run that failed,
for `zoo verify`, a score outside its band, for `compare --fail-on-regression`, a regression or missing runs,
for `export --verify`, a difference, for `tune`, no completed trial or a failed run on held-out seeds), 2 bad
input, 128 + n ended by signal n.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TextIO

from rl_training import __version__
from rl_training.errors import AxiomError, ConfigError, UnknownNameError
from rl_training.garbage import own_process

COMMANDS = {
    "train": ("train", "train an agent from a preset, a config file, or an algorithm and an env"),
    "eval": ("evaluate", "play full episodes with a trained agent"),
    "resume": ("resume", "go on with a run that was stopped, or train a finished one further"),
    "export": ("export", "write a trained policy as a file that runs without this package"),
    "export-data": ("export_data", "write what an agent has experienced, or plays now, as a dataset"),
    "inspect": ("inspect", "say what a checkpoint holds, as hashes, or what differs between two"),
    "report": ("report", "tables and pages of what runs came to: one run, or all below a directory"),
    "leaderboard": ("leaderboard", "rank algorithms or presets over envs, with intervals and ties"),
    "compare": ("compare", "say whether one set of runs is worse than another beyond noise"),
    "plot": ("plot", "draw learning curves of runs, with intervals, as a picture"),
    "zoo": ("zoo", "suites of presets: look at them, run them over several seeds, verify their scores"),
    "tune": (
        "tune",
        "search for better hyperparameters, and try the best on held-out seeds",
    ),
    "tune-report": ("tune_report", "history, importances and slices of a study, as text, data or a page"),
    "profile": ("profile", "say where the time of training goes, and which settings would be faster"),
    "config": ("config", "print the configuration that `train` would use, and where each value comes from"),
    "list": ("listing", "list algorithms, presets and envs"),
    "check-env": ("check_env", "say what is wrong with an env, in words"),
    "doctor": ("doctor", "describe this installation and machine"),
}

EXAMPLES = """\
examples:
  axiomrl train --preset ppo/cartpole
  axiomrl train --algo ppo --env-id CartPole-v1 --seed 3 --hyperparams.learning-rate 1e-3
  axiomrl train --config my.yaml --num-envs 16 --output-dir runs
  axiomrl eval --checkpoint runs/RUN --num-episodes 20
  axiomrl resume --checkpoint runs/RUN --total-timesteps 200000 --extend-schedules
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; bad input is answered by a message and never by a traceback.

    Without `argv` it is what this process is for.
    """
    if argv is None:
        own_process()
    try:
        with _plain_warnings():
            code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except AxiomError as error:
        _complain(_explained(error))
        return 2
    except KeyboardInterrupt as error:
        _complain(_with_notes("interrupted", error))
        return 130
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        _silence(sys.stdout)
        return 141
    except SystemExit as end:  # argparse, after printing help
        return end.code if isinstance(end.code, int) else 0
    except Exception:
        import traceback

        _complain(traceback.format_exc().rstrip())
        return 1


def zoo_main() -> int:
    """The script `axiomrl-zoo`: `axiomrl zoo` in one word."""
    return main(["zoo", *sys.argv[1:]])


def overview() -> str:
    """What `axiomrl --help` prints."""
    rows = "\n".join(f"  {name:<13}{text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: axiomrl COMMAND [options]\n\n"
        "Reinforcement learning in PyTorch that you can install, run, trust, reproduce and read.\n\n"
        f"commands:\n{rows}\n\n"
        "options:\n  -h, --help  show this, or what a command takes\n  --version   show the version\n\n"
        f"{EXAMPLES}"
    )


def _dispatch(argv: list[str]) -> int:
    match argv:
        case []:
            print(overview(), end="", file=sys.stderr)
            return 2
        case ["-h" | "--help", *_]:
            print(overview(), end="")
            return 0
        case ["--version", *_]:
            print(f"axiomrl {__version__}")
            return 0
        case [name, *rest] if name in COMMANDS:
            return run_command(name, COMMANDS[name], rest)
        case [name, *_]:
            raise UnknownNameError("command", name, COMMANDS, "`axiomrl --help` shows all of them.")
    raise AssertionError(argv)


def run_command(name: str, command: tuple[str, str], argv: list[str]) -> int:
    """Run a row of `COMMANDS`, or of what it has for `SUBCOMMANDS`."""
    from rl_training.cli.parser import Parser, normalized

    module_name, help_text = command
    module = import_module(f"rl_training.cli.{module_name}")
    subcommands: dict[str, tuple[str, str]] = getattr(module, "SUBCOMMANDS", {})
    if argv and argv[0] in subcommands:
        return run_command(f"{name} {argv[0]}", subcommands[argv[0]], argv[1:])
    argv = normalized(argv)
    parser = Parser(name, help_text, argv)
    module.add_arguments(parser)
    return int(module.run(parser.parse(argv)))


def _explained(error: AxiomError) -> str:
    """An error as one readable screen."""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        problems = "\n".join(f"  - {problem}" for problem in error.problems)
        return _with_notes(f"error: {len(error.problems)} problems:\n{problems}", error)
    return _with_notes(f"error: {error}", error)


def _with_notes(text: str, error: BaseException) -> str:
    return "\n".join([text, *getattr(error, "__notes__", ())])


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as messages, without the line of code that they come from."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _complain(text: str) -> None:
    """Say it on stderr; that nobody is there to read it changes no exit code."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    from rl_training.runtime.progress import silence

    silence(stream)
