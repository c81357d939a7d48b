"""Runs a study: asks for trials, runs them, prunes them, and looks at the best of them once more.

Everything lies in the study's folder: the journal knows the trials, the folders of the trials their runs.
Should this process be killed, its runs notice, save and end; the next start takes up the trials that were
running, under the same numbers, and their runs go on from where they are.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.files import saving
from rl_training.zoo.jobs import SURROUNDINGS, Job
from rl_training.zoo.runner import Display, Pool, Process, Runner, alone
from rl_training.zoo.tuning.journal import Entry, Journal
from rl_training.zoo.tuning.record import RECORD, TrialRecord, best_of, claim, read_record, write_record
from rl_training.zoo.tuning.study import Design
from rl_training.zoo.tuning.summary import of_asked, param, preset_remarks, short_names
from rl_training.zoo.tuning.trials import OpenTrial, iqm_of, open_trial
from rl_training.zoo.tuning.validation import validation_plan, verdict_of, write_preset

GIVE_UP = 3
"""So many failures and nothing else, and the study is stopped: the mistake is not in the parameters."""
ATTEMPTS = 3
"""So often a run that was killed from outside, which says nothing of its parameters, is taken up again."""


class Tuner:
    """Brings a study to its end."""

    def __init__(
        self,
        design: Design,
        folder: Path,
        width: int,
        display: Display,
        *,
        imports: Sequence[str] = (),
        command: Sequence[str] = (),
    ) -> None:
        self.design, self.folder, self.display = design, folder, display
        self.imports, self.command = imports, command
        self.stopped_by: int | None = None
        self.errors: dict[Job, str] = {}
        """Runs on held-out seeds that failed."""
        self._pool = Pool(width, display)
        self._width = width
        self._open: dict[int, OpenTrial] = {}
        self._failures = 0
        self._killed: Counter[Job] = Counter()
        self._about: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Search, then validate; what came out, as it stands in the record."""
        with saving(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with saving(self.folder), alone(self.folder):
            claim(self.folder, self.design)
            self.journal = Journal(self.folder, self.design)
            if (self.folder / RECORD).is_file():
                known = read_record(self.folder).data
                self._about = {key: known[key] for key in SURROUNDINGS if key in known}
            for warning in self.design.warnings:
                self.display.event(f"warning: {warning}")
            with self._pool.at_work():
                self._search()
            self.stopped_by = self._pool.stopped_by
            record = self._write()
            return record if self.stopped_by is not None else self._validate(record)

    def _search(self) -> None:
        entries = self.journal.entries()
        if entries:
            there = len(entries)
            self.display.begin("trials", max(there, self.design.trials))
            self.display.event(f"already there: {of_asked(there, self.design.trials)}")
        for entry in entries:
            if entry.state == "running":
                self._begin(self.journal.take_up(entry.number), "goes on: ")
        while self._pool.active or (self._is_unfinished() and self._pool.stopped_by is None):
            for process, error in self._pool.reap():
                self._take_in(process, error)
            if self._pool.stopped_by is None:
                for trial in list(self._open.values()):
                    self._judge(trial)
                self._fill()
            ended = [e for e in self.journal.entries() if e.state != "running"]
            self.display.update(self._pool.active, len(ended), sum(e.state == "failed" for e in ended))
            self._pool.pause()

    def _is_unfinished(self) -> bool:
        return bool(self._open) or len(self.journal.entries()) < self.design.trials

    def _fill(self) -> None:
        """Start runs of open trials, the oldest first; a new trial only when all of theirs are at work."""
        while self._pool.has_room:
            at_work = {process.job for process in self._pool.active}
            trials = sorted(self._open.values(), key=lambda trial: trial.number)
            waiting = deque(job for t in trials for job in t.unfinished() if job not in at_work)
            if waiting:
                for job, _, error in self._pool.fill(waiting):
                    if error is not None and (trial := self._trial_of(job)) is not None:
                        self._fail(trial, f"seed {job.seed}: {error}")
                return
            if len(self.journal.entries()) >= self.design.trials:
                return
            self._begin(self.journal.ask())

    def _begin(self, entry: Entry, how: str = "") -> None:
        """Open a trial, and say what it is."""
        values = self.design.values(entry.kept)
        names = short_names(values)
        words = ", ".join(f"{names[key]} {param(value)}" for key, value in values.items())
        self.display.event(f"trial {entry.number}: {how}{words}")
        folder = self.folder / "trials" / f"{entry.number:04d}"
        try:
            trial = open_trial(self.design, folder, entry.number, values, len(entry.reported), self.imports)
        except ConfigError as error:
            self.journal.fail(entry.number, error.problems[0])
            self.display.event(f"trial {entry.number}: cannot be trained: {error.problems[0]}")
            self._write()
            return
        self._open[entry.number] = trial
        if trial.reported and self._is_bad(trial):  # the process died between the report and its consequence
            self._prune(trial)

    def _judge(self, trial: OpenTrial) -> None:
        """Report what is new; end the trial if that is bad, or if all of its runs are done."""
        for position, value in trial.news(self.design):
            self.journal.report(trial.number, position, value)
            if self._is_bad(trial):
                self._prune(trial)
                return
        if not trial.unfinished():
            self._complete(trial)

    def _is_bad(self, trial: OpenTrial) -> bool:
        """The last position is no reason to give up: nothing would be saved by it."""
        return trial.reported < self.design.positions and self.journal.should_prune(trial.number)

    def _prune(self, trial: OpenTrial) -> None:
        self.journal.prune(trial.number, seconds=trial.seconds())
        self._end(trial)
        where = f"{trial.reported} of {self.design.positions}"
        self.display.event(f"trial {trial.number}: pruned after evaluation {where}")

    def _complete(self, trial: OpenTrial) -> None:
        scores = trial.scores()
        value = iqm_of([scores[job.seed] for job in trial.jobs])
        if not math.isfinite(value):
            self._fail(trial, "its score is not a number")
            return
        self.journal.complete(trial.number, value, scores=_by_text(scores), seconds=trial.seconds())
        self._end(trial)
        best = best_of(self.journal.entries())
        assert best is not None
        so_far = (
            "the best so far"
            if best.number == trial.number
            else f"best: {best.value:.1f}, trial {best.number}"
        )
        self.display.event(f"trial {trial.number}: {value:.1f} ({so_far})")

    def _fail(self, trial: OpenTrial, error: str) -> None:
        self.journal.fail(trial.number, error)
        self._end(trial)
        self.display.event(f"trial {trial.number}: failed: {error}")
        self._failures += 1
        if self._failures >= GIVE_UP and not any(e.value is not None for e in self.journal.entries()):
            raise AxiomError(
                f"{GIVE_UP} trials failed and none succeeded; the last: {error}\n"
                f"what its runs said is in {trial.jobs[0].folder.parent}; when that is mended, give another "
                "--output-dir, or remove this study"
            )

    def _end(self, trial: OpenTrial) -> None:
        """Stop what is still running of a trial that is over."""
        del self._open[trial.number]
        self._about = self._about or trial.jobs[0].surroundings()
        for process in self._pool.active:
            if process.job in trial.jobs:
                process.end(1)
        self._write()

    def _take_in(self, process: Process, error: str | None) -> None:
        """A command has ended; that of a trial that was ended before, or was stopped, is no news."""
        trial = self._trial_of(process.job)
        if error is None or trial is None or self._pool.stopped_by is not None:
            return
        if process.was_killed and self._killed[process.job] < ATTEMPTS:
            self._killed[process.job] += 1
            self.display.event(f"{process.job}: {error}; it goes on")
        else:
            self._fail(trial, f"seed {process.job.seed}: {error}")

    def _trial_of(self, job: Job) -> OpenTrial | None:
        """The open trial that a run belongs to."""
        return next((trial for trial in self._open.values() if job in trial.jobs), None)

    def _validate(self, record: dict[str, Any]) -> dict[str, Any]:
        """Compare the best with the base on seeds that no trial has seen, and write it as a preset."""
        best = best_of(self.journal.entries())
        if best is None:
            return record
        values, compared = self.design.values(best.kept), None
        if self.design.study.held_out:
            plan = validation_plan(self.design, self.folder, best.number, values, self.imports, self.command)
            self.display.event(f"held-out seeds: base and trial {best.number}, {len(plan.jobs)} runs")
            self.display.begin("runs", len(plan.jobs))
            runner = Runner(plan, self._width, self.display)
            manifest = runner.run()
            self.stopped_by, self.errors = runner.stopped_by, runner.errors
            compared = verdict_of(self.design, best.number, manifest)
        record = self._write(validation=compared)
        if self.stopped_by is None:
            remarks = preset_remarks(read_record(self.folder))
            write_preset(self.design, self.folder, values, remarks)
        return record

    def _write(self, validation: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Bring the record up to date."""
        trials = [self._record(entry) for entry in self.journal.entries()]
        started = {"command": list(self.command), "imports": list(self.imports)}
        known = {**started, **self._about, "validation": validation}
        return write_record(self.folder, self.design, trials, **known)

    def _record(self, entry: Entry) -> TrialRecord:
        kept = entry.kept if len(entry.kept) == len(self.design.dimensions) else {}
        return TrialRecord(
            entry.number,
            entry.state,
            self.design.values(kept) if kept else {},
            entry.value,
            [entry.reported[position] for position in sorted(entry.reported)],
            entry.notes.get("scores", {}),
            entry.notes.get("seconds"),
            entry.notes.get("error"),
        )


def _by_text(scores: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): score for seed, score in scores.items()}
