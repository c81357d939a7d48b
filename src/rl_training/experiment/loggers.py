"""Where metrics are written: JSONL always; TensorBoard, CSV and Weights & Biases on request."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from os import SEEK_END
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import ConfigError, MissingExtraError, SaveError
from rl_training.experiment.files import explained, replace_atomically, to_json
from rl_training.experiment.runs import EVALUATIONS, METRICS
from rl_training.types import Evaluation

Row = Mapping[str, Any]
SCALARS = ("return_mean", "length_mean", "success_rate")
"""What of an evaluation is drawn as a curve."""


class Logger(Protocol):
    """One destination."""

    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


class JsonlFile:
    """Appends one line a row, written at once, so that a killed run loses nothing it has reported.

    A line that the disk does not take is an error or, with `keep_trying`, is written with the next one.
    """

    def __init__(self, path: Path, *, keep_trying: bool = False) -> None:
        self.path, self._keep_trying = path, keep_trying
        self._waiting = b""
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open for the life of the run
            self._size = self._file.seek(0, SEEK_END)
        except OSError as error:
            raise self._failed(error) from error

    def write(self, row: Row) -> None:
        """Append a row."""
        self._waiting += (to_json(dict(row)) + "\n").encode()
        try:
            self._flush()
        except OSError as error:
            if not self._keep_trying:
                raise self._failed(error) from error
            warnings.warn(f"{self._failed(error)}. The next line tries again.", stacklevel=3)

    def close(self) -> None:
        """Close the file; lines that are still waiting are tried a last time."""
        try:
            if self._keep_trying:
                self._flush()
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._file.close()

    def _flush(self) -> None:
        """Write all that waits, or nothing: half a line must not stay behind."""
        try:
            done = 0
            while done < len(self._waiting):
                done += self._file.write(self._waiting[done:])
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += len(self._waiting)
        self._waiting = b""

    def _failed(self, error: OSError) -> SaveError:
        return SaveError(f"{self.path}: cannot be written: {explained(error)}")


class TensorBoard:
    """Event files through TensorBoard's own writer."""

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, row: Row) -> None:
        """Write every number of a row."""
        for name, value in row.items():
            if name != "global_step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["global_step"])
        self._writer.flush()  # a checkpoint may follow: what came before it must not be lost with the process

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class WandB:
    """Weights & Biases; `WANDB_MODE=offline` works without a network."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("logging.wandb", "wandb") from None
        try:
            self._run = wandb.init(
                project="axiomrl", id=run_dir.name, name=run_dir.name, dir=str(run_dir), config=dict(config),
                resume="allow",
            )  # fmt: skip
        except wandb.Error as error:
            hint = "WANDB_MODE=offline needs no account and no network"
            raise ConfigError(f"logging.wandb: {str(error).rstrip('.')}; {hint}") from error
        # Its own steps only grow: what a resumed run logs again would be thrown away.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def write(self, row: Row) -> None:
        """Log a row; `global_step` in it is the x axis of the others."""
        self._run.log({name: value for name, value in row.items() if not isinstance(value, list)})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class RunLogger:
    """Everything a run reports, sent to all its destinations."""

    def __init__(self, run_dir: Path, *, tensorboard: bool, wandb: bool, csv_export: bool, config: Row,
                 resume_step: int | None = None, keep_trying: bool = False) -> None:  # fmt: skip
        self.run_dir, self._csv = run_dir, csv_export
        if resume_step is not None:
            for name in (METRICS, EVALUATIONS):
                cut_after(run_dir / name, resume_step)
        self._metrics = JsonlFile(run_dir / METRICS, keep_trying=keep_trying)
        self._evaluations = JsonlFile(run_dir / EVALUATIONS, keep_trying=keep_trying)
        self._others: list[Logger] = []
        if tensorboard:
            purge = None if resume_step is None else resume_step + 1
            self._others.append(TensorBoard(run_dir / "tensorboard", purge))
        if wandb:
            self._others.append(WandB(run_dir, config))

    def log(self, row: Row) -> None:
        """A line of metrics."""
        for logger in (self._metrics, *self._others):
            logger.write(row)

    def log_evaluation(self, step: int, elapsed_s: float, evaluation: Evaluation) -> None:
        """A finished evaluation, with every episode."""
        summary = summarize(evaluation)
        self._evaluations.write({"global_step": step, "elapsed_s": elapsed_s, **summary})
        scalars = {f"evaluation/{name}": summary[name] for name in SCALARS if name in summary}
        for logger in self._others:
            logger.write({"global_step": step, **scalars})

    def close(self) -> None:
        """Close all destinations."""
        for logger in (self._metrics, self._evaluations, *self._others):
            logger.close()
        if self._csv:
            export_csv(self.run_dir / METRICS, self.run_dir / "metrics.csv")


def summarize(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as the mapping that files, the API and the command line share."""
    import numpy as np

    return {
        "return_mean": float(np.mean(evaluation.returns)),
        "return_std": float(np.std(evaluation.returns)),
        "length_mean": float(np.mean(evaluation.lengths)),
        "num_episodes": len(evaluation.returns),
        "returns": list(evaluation.returns),
        "lengths": list(evaluation.lengths),
        "seeds": list(evaluation.seeds),
        **(
            {"success_rate": float(np.mean(evaluation.successes)), "successes": list(evaluation.successes)}
            if evaluation.successes
            else {}
        ),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a last line torn by a crash is left out."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                row = json.loads(line)
            except ValueError:
                break
            if isinstance(row, dict):
                rows.append(row)
    return rows


def cut_after(path: Path, step: int) -> None:
    """Drop what was written after `step`, so that a resumed run continues without gap or duplicate."""
    rows = [row for row in read_rows(path) if row.get("global_step", 0) <= step]
    try:
        replace_atomically(path, "".join(to_json(row) + "\n" for row in rows).encode())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written: {explained(error)}") from error


def export_csv(source: Path, target: Path) -> None:
    """metrics.jsonl as a table with one column a metric."""
    rows = read_rows(source)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(target, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
