"""Optuna behind a small door: a journal of trials in one file, samplers and pruners. Nothing else imports it.

A sampler is made anew for every trial, seeded by the study's seed and the trial's number: what it suggests
depends on that and on the trials before, never on how often the process has died in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rl_training.errors import AxiomError, MissingExtraError
from rl_training.zoo.tuning.study import Design

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

State = Literal["running", "completed", "pruned", "failed"]
JOURNAL = "journal.log"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal knows of a trial."""

    number: int
    state: State
    kept: Mapping[str, Any]
    """Its parameters, as they are stored."""
    value: float | None
    reported: Mapping[int, float]
    """Values on the way, by position."""
    notes: Mapping[str, Any]


class Journal:
    """The trials of a study; only one process may have it open."""

    def __init__(self, folder: Path, design: Design) -> None:
        optuna = require_optuna()
        path = folder / JOURNAL
        _mend(path)
        self._design = design
        try:
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
            self._study = optuna.create_study(
                storage=storage, study_name=design.study.name, direction="maximize",
                pruner=_pruner(design), load_if_exists=True,
            )  # fmt: skip
        except (ValueError, KeyError, OSError) as error:
            raise AxiomError(f"{path}: cannot be read: {error}") from None
        self._open: dict[int, Trial] = {}
        self._entries: list[Entry] | None = None

    def entries(self) -> list[Entry]:
        """Every trial, by number; read again only after something was written."""
        if self._entries is None:
            self._entries = [_entry(trial) for trial in self._study.get_trials(deepcopy=False)]
        return self._entries

    def ask(self) -> Entry:
        """A new trial with its parameters."""
        number = len(self.entries())
        self._study.sampler = _sampler(self._design, number)
        return self._suggested(self._study.ask())

    def take_up(self, number: int) -> Entry:
        """A trial whose process died; should it have died while choosing, the choice is completed."""
        from optuna.trial import Trial

        self._study.sampler = _sampler(self._design, number)
        frozen = self._study.get_trials(deepcopy=False)[number]
        return self._suggested(Trial(self._study, frozen._trial_id))

    def report(self, number: int, position: int, value: float) -> None:
        """A value on the way, once for each position."""
        self._open[number].report(value, position)
        self._entries = None

    def should_prune(self, number: int) -> bool:
        """Is it to be given up, by what has been reported?"""
        return self._open[number].should_prune()

    def complete(self, number: int, value: float, **notes: Any) -> None:
        """It has a score."""
        self._end(number, notes, value=value)

    def prune(self, number: int, **notes: Any) -> None:
        """It is given up."""
        self._end(number, notes, state="PRUNED")

    def fail(self, number: int, error: str) -> None:
        """It went wrong."""
        self._end(number, {"error": error}, state="FAIL")

    def _suggested(self, trial: Trial) -> Entry:
        for dimension in self._design.dimensions:
            dimension.suggest(trial)
        self._open[trial.number], self._entries = trial, None
        return self.entries()[trial.number]

    def _end(
        self, number: int, notes: Mapping[str, Any], *, value: float | None = None, state: str | None = None
    ) -> None:
        from optuna.trial import TrialState

        trial = self._open.pop(number)
        for name, note in notes.items():
            trial.set_user_attr(name, note)
        self._study.tell(trial, value, state=None if state is None else TrialState[state])
        self._entries = None


def require_optuna() -> Any:
    """Optuna, which keeps quiet, or an error that says how to get it."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise MissingExtraError("tuning", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _sampler(design: Design, number: int) -> BaseSampler:
    """The sampler of one trial."""
    from optuna.samplers import GridSampler, RandomSampler, TPESampler

    study = design.study
    seed = int(np.random.SeedSequence((study.seed, number)).generate_state(1)[0])
    if study.sampler.kind == "random":
        return RandomSampler(seed)
    if study.sampler.kind == "tpe":
        startup = study.sampler.startup_trials
        return TPESampler(n_startup_trials=startup, seed=seed, multivariate=True, constant_liar=True)

    class Grid(GridSampler):
        """One combination a trial, by its number; how many are run is not the sampler's business."""

        def after_trial(self, *_: Any) -> None:
            """Do not end the study."""

    return Grid({d.key: d.cells() or [] for d in design.dimensions}, seed=study.seed)


def _pruner(design: Design) -> BasePruner:
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

    given = design.study.pruner
    if given.kind == "none":
        return NopPruner()
    if given.kind == "median":
        return MedianPruner(n_startup_trials=given.startup_trials, n_warmup_steps=given.warmup + 1)
    return HyperbandPruner(min_resource=1, max_resource=design.positions, reduction_factor=3)


def _entry(trial: FrozenTrial) -> Entry:
    states: Mapping[str, State] = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed"}
    state = states.get(trial.state.name, "running")
    value = trial.value if state in ("completed", "pruned") else None
    reported, notes = dict(trial.intermediate_values), dict(trial.user_attrs)
    return Entry(trial.number, state, dict(trial.params), value, reported, notes)


def _mend(path: Path) -> None:
    """Undo what a process leaves that died while writing: a torn last line, and the writer's lock."""
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.lock")
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
