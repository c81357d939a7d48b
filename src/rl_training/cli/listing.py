"""`axiomrl list`: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rl_training.cli.extras import extra_of, is_installed, pip_install
from rl_training.cli.output import add_json, columns, print_json, reserved_stdout
from rl_training.cli.parser import Parser, add_import, import_modules

Item = dict[str, Any]


def add_arguments(parser: Parser) -> None:
    """Which kind."""
    parser.add_argument("kind", nargs="?", choices=tuple(KINDS), help="one kind only; default: all of them")
    add_import(parser)
    add_json(parser, "print JSON on stdout: a list, or without a kind an object of lists")


def run(args: argparse.Namespace) -> int:
    """Print the kinds asked for."""
    chosen = [args.kind] if args.kind else list(KINDS)
    with reserved_stdout(args.json):
        import_modules(args.imports)
        found = {kind: KINDS[kind][0]() for kind in chosen}
    if args.json:
        print_json(found[args.kind] if args.kind else found)
        return 0
    for kind, items in found.items():
        if not args.kind:
            print(f"{'' if kind == chosen[0] else chr(10)}{kind} ({len(items)})")
        print("\n".join(KINDS[kind][1](items, "  " if not args.kind else "")))
    return 0


def algorithms() -> list[Item]:
    """Every algorithm id."""
    from rl_training import registry

    return [
        {
            "id": entry.id,
            "family": entry.family,
            "tier": entry.tier,
            "actions": list(entry.actions),
            "summary": entry.summary,
        }
        for entry in registry.algorithms().values()
    ]


def presets() -> list[Item]:
    """Every packaged preset. Imports neither torch nor Gymnasium."""
    from rl_training.experiment.presets import load_preset, preset_names

    items: list[Item] = []
    for name in preset_names():
        data = load_preset(name).data
        extra = extra_of(data["env_id"])
        items.append(
            {
                "name": name,
                "algo": data["algo"],
                "env_id": data["env_id"],
                "total_timesteps": data.get("total_timesteps"),
                "extra": extra,
                "installed": is_installed(extra),
            }
        )
    return items


def envs() -> list[Item]:
    """Every env that Gymnasium has registered and that still exists, with what it needs."""
    from importlib.util import find_spec

    import gymnasium

    import rl_training.envs.fragile
    import rl_training.envs.goal_envs
    import rl_training.envs.memory
    import rl_training.envs.toy  # noqa: F401 - all of them register ours

    if find_spec("ale_py") is not None:
        import ale_py

        gymnasium.register_envs(ale_py)
    items: list[Item] = []
    for spec in gymnasium.registry.values():
        if getattr(spec.entry_point, "__name__", "").startswith("_raise"):
            continue  # kept by Gymnasium only to say that it has been removed
        extra = extra_of(spec.id)
        needs_jax = spec.namespace in ("phys2d", "tabular") and find_spec("jax") is None
        needs = pip_install(extra) if not is_installed(extra) and extra else "jax" if needs_jax else None
        items.append({"id": spec.id, "group": _group(spec), "extra": extra, "needs": needs})
    return items


def _group(spec: Any) -> str:
    """Where an env's code lives, in a word."""
    home = spec.entry_point if isinstance(spec.entry_point, str) else spec.entry_point.__module__
    module = home.partition(":")[0]
    if module.startswith("gymnasium.envs."):
        return module.split(".")[2].replace("_", " ")
    return spec.namespace or module.partition(".")[0]


def _algorithm_lines(items: list[Item], indent: str) -> list[str]:
    rows = [["ID", "FAMILY", "TIER", "ACTIONS", "SUMMARY"]]
    rows += [[i["id"], i["family"], i["tier"], ", ".join(i["actions"]), i["summary"]] for i in items]
    return columns(rows, indent)


def _preset_lines(items: list[Item], indent: str) -> list[str]:
    rows = [["NAME", "ALGO", "ENV", "STEPS", "NEEDS"]]
    for item in items:
        steps = item["total_timesteps"]
        needs = "" if item["installed"] else pip_install(item["extra"])
        rows.append([item["name"], item["algo"], item["env_id"], f"{steps:,}" if steps else "default", needs])
    return columns(rows, indent)


def _env_lines(items: list[Item], indent: str) -> list[str]:
    groups: dict[tuple[str, str | None], list[str]] = {}
    for item in items:
        groups.setdefault((item["group"], item["needs"]), []).append(item["id"])
    lines: list[str] = []
    for (group, needs), ids in groups.items():
        lines.append(f"{indent}{group}: {'needs ' + needs if needs else 'installed'}")
        lines += [f"{indent}  {env_id}" for env_id in ids]
    return lines


KINDS: dict[str, tuple[Callable[[], list[Item]], Callable[[list[Item], str], list[str]]]] = {
    "algorithms": (algorithms, _algorithm_lines),
    "presets": (presets, _preset_lines),
    "envs": (envs, _env_lines),
}
