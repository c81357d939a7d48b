"""`axiomrl check-env`: what is wrong with an env, in words."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import add_json, print_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules
from rl_training.errors import ConfigError, EnvError

if TYPE_CHECKING:
    from rl_training.envs.config import EnvConfig


def add_arguments(parser: Parser) -> None:
    """Which env."""
    parser.usage = (
        f"{parser.prog} ENV_ID [--env-kwargs '{{name: value}}'] [--env-kwargs.name VALUE] [options]"
    )
    parser.add_argument("env_id", metavar="ENV_ID", help="a Gymnasium id, or module:Id-v0")
    parser.overrides = True
    add_import(parser)
    add_json(parser, "print one JSON object on stdout (env_id, ok, findings)")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when the env can be trained on, 1 when it cannot."""
    kwargs = _env_kwargs(args)
    with reserved_stdout(args.json):
        import_modules(args.imports)
        findings = _findings(args.env_id, kwargs)
    ok = not any(finding.startswith("error: ") for finding in findings)
    if args.json:
        print_json({"env_id": args.env_id, "ok": ok, "findings": findings})
    else:
        verdict = (
            "nothing to complain about"
            if not findings
            else "can be trained on"
            if ok
            else "cannot be trained on"
        )
        print("\n".join([f"{args.env_id}: {verdict}", *(f"  - {finding}" for finding in findings)]))
    return 0 if ok else 1


@dataclass(frozen=True)
class _Settings:
    """The part of a configuration that an env is made from."""

    env_id: str
    env_kwargs: dict[str, Any]
    env: EnvConfig
    seed: int = 0


def _findings(env_id: str, kwargs: dict[str, Any]) -> list[str]:
    from rl_training.envs import EnvConfig, findings

    try:
        return findings(_Settings(env_id, kwargs, EnvConfig()))
    except EnvError as error:
        return [f"error: {error}"]


def _env_kwargs(args: argparse.Namespace) -> dict[str, Any]:
    from rl_training.cli.options import Option
    from rl_training.cli.overrides import read_overrides

    option = Option(("env_kwargs",), dict[str, Any])
    values, problems = read_overrides(args.extra, args.parser, {option.name: option}, ("env_kwargs",))
    kwargs = values.get("env_kwargs", {})
    if not isinstance(kwargs, dict):
        problems.append(f"command line: env_kwargs: expected a mapping of names to values, got {kwargs!r}")
    if problems:
        raise ConfigError(problems)
    return dict(kwargs)
