"""How `train` and `resume` end: the summary for people, the JSON for programs, the exit code for scripts."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.cli.output import print_json
from rl_training.runtime.progress import GONE, patient_console, silence

if TYPE_CHECKING:
    from rl_training.api import TrainResult


def finish(
    result: TrainResult,
    *,
    as_json: bool,
    quiet: bool,
    imports: Sequence[str] = (),
    resumed: Mapping[str, Any] | None = None,
) -> int:
    """Report a finished run as asked and answer the exit code of the process, whether anybody reads or not.

    `imports` are the modules that were imported for it, and are again by the commands that are named.
    """
    if not quiet:
        _print_summary(result, imports, resumed, to_stderr=as_json)
    try:
        if as_json:
            print_json({**outcome(result), **({"resumed": dict(resumed)} if resumed else {})})
        elif quiet:
            print(result.run_dir)
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in GONE:
            raise  # somebody waits for it and does not get it: a full disk, say
        silence(sys.stdout)
    return exit_code(result.status, result.stop_reason)


def outcome(result: TrainResult) -> dict[str, Any]:
    """What a program wants to know of a finished run."""
    best = result.best_checkpoint_path
    return {
        "run_dir": str(result.run_dir),
        "checkpoint": str(result.checkpoint_path),
        "best_checkpoint": None if best is None else str(best),
        "global_step": result.metrics["global_step"],
        "metrics": result.metrics,
        "status": result.status,
        "stop_reason": result.stop_reason,
    }


def exit_code(status: str, stop_reason: str | None) -> int:
    """0, or 128 + the number of the signal that interrupted the run."""
    if status != "interrupted":
        return 0
    name = (stop_reason or "").rpartition(" ")[2]
    number = signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGINT
    return 128 + number


def _print_summary(
    result: TrainResult, imports: Sequence[str], resumed: Mapping[str, Any] | None, *, to_stderr: bool
) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = _rows(result, resumed)
    wide = 24 + max(len(value) for _, value in rows)  # paths must stay whole, to be copied
    console = patient_console(stderr=to_stderr, highlight=False, soft_wrap=True)
    console.width = max(console.width, wide)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print("\n[bold]next[/]")
    for command in _next_commands(result, imports):
        console.print(Text(f"  {command}"))


def _rows(result: TrainResult, resumed: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    metrics, best = result.metrics, result.best_checkpoint_path
    ended = result.status + (f": {result.stop_reason}" if result.stop_reason else "")
    rows = [
        ("status", ended),
        ("evaluation return", _number(metrics.get("evaluation/return_mean"))),
        ("training return", _number(metrics.get("rollout/return_mean"))),
        ("steps", f"{metrics['global_step']:,}"),
        ("latest speed", f"{_number(metrics.get('steps_per_second'), ',.0f')} steps/s"),
        ("time", f"{_number(metrics.get('elapsed_s'))} s"),
        ("best checkpoint", "none (no evaluation)" if best is None else _inside(best, result.run_dir)),
        ("latest checkpoint", _inside(result.checkpoint_path, result.run_dir)),
        ("run directory", str(result.run_dir)),
    ]
    if (rate := metrics.get("evaluation/success_rate")) is not None:
        rows.insert(2, ("success rate", _number(rate, ".3f")))
    if resumed is not None:
        rows.insert(1, ("resumed", f"at step {resumed['step']:,}, {resumed['grade']}: {resumed['reason']}"))
    return rows


def _next_commands(result: TrainResult, imports: Sequence[str]) -> list[str]:
    run = shlex.quote(str(result.run_dir))
    module = result.algorithm.session.config.env_id.rpartition(":")[0]  # a checkpoint must not import it
    needed = dict.fromkeys([*imports, *filter(None, [module])])
    given = "".join(f" --import {shlex.quote(name)}" for name in needed)
    if result.status == "interrupted":
        return [f"axiomrl resume --checkpoint {run}{given}", f"axiomrl eval --checkpoint {run}{given}"]
    more = 2 * result.metrics["global_step"]
    decays = any(schedule.kind != "constant" for schedule in result.algorithm.schedules.values())
    extended = " --extend-schedules" if decays else ""  # beyond its end, a schedule has nothing left to give
    return [
        f"axiomrl eval --checkpoint {run} --num-episodes 20{given}",
        f"axiomrl report {run}",
        f"axiomrl resume --checkpoint {run} --total-timesteps {more}{extended}{given}",
    ]


def _number(value: Any, form: str = ",.1f") -> str:
    return "-" if value is None else format(value, form)


def _inside(path: Path, run_dir: Path) -> str:
    """A path the way it reads from the run directory."""
    return str(path.relative_to(run_dir)) if path.is_relative_to(run_dir) else str(path)
