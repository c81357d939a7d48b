"""The tuner, with a stand-in for runs: through kills and signals, around failures, pruning."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra tune")
from small_studies import SOURCE, STUDY, trials_of, tune, without_times, write_study

from rl_training.errors import AxiomError, ConfigError, SaveError
from rl_training.experiment.config import to_dict
from rl_training.experiment.layers import load_config
from rl_training.zoo import runner
from rl_training.zoo.display import NoDisplay
from rl_training.zoo.tuning.journal import Journal
from rl_training.zoo.tuning.record import TrialRecord, read_record
from rl_training.zoo.tuning.report import as_text
from rl_training.zoo.tuning.study import load_study
from rl_training.zoo.tuning.summary import train_command
from rl_training.zoo.tuning.tuner import Tuner


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Replace training by the stand-in; answers which calls there were, as `train 1`."""
    path = tmp_path / "calls"
    monkeypatch.setenv("FAKE_CALLS", str(path))
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    for name in ("CHILD", "_PAUSE"):  # put back at the end: `tune` sets them
        monkeypatch.setattr(runner, name, getattr(runner, name))
    return lambda: [" ".join(line.split()[:2]) for line in path.read_text().splitlines()]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def killed(study: Path, folder: Path, when: Callable[[], bool]) -> None:
    """Run a study in another process and kill that outright."""
    process = multiprocessing.get_context("fork").Process(target=tune, args=(study, folder))
    process.start()
    wait_for(when)
    process.kill()
    process.join()


def undisturbed(study: Path, folder: Path) -> list[Any]:
    """What a study comes to if nothing happens to it, from what the stand-in is known to score."""
    design = load_study(study)
    journal = Journal(folder, design)
    for number in range(design.trials):
        bonus = -100 * abs(math.log10(journal.ask().kept["hyperparams.learning_rate"] / 1e-3))
        for step in range(1, 6):
            journal.report(number, step, step + bonus)
            if step < 5 and journal.should_prune(number):
                journal.prune(number)
                break
        else:
            journal.complete(number, sum(10 + i + bonus for i in range(2)) / 2)
    return [(e.state, e.kept, e.value, list(e.reported.values())) for e in journal.entries()]


def test_a_study_of_twenty_trials_killed_twice_ends_as_if_it_had_not_been(
    tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    study = write_study(tmp_path, "trials: 20", "pruner: {kind: median, startup_trials: 4}")
    begun = tmp_path / "cut" / "trials"
    for trials in (5, 13):
        killed(study, tmp_path / "cut", lambda n=trials: len(list(begun.glob("*/*/*/checkpoints"))) >= n)
    (tmp_path / "calls").unlink()
    tune(study, tmp_path / "cut")
    cut = trials_of(tmp_path / "cut")
    assert [trial.number for trial in cut] == list(range(20))
    assert [(t.state, t.params, t.value, list(t.reported)) for t in cut] == undisturbed(study, tmp_path)
    states = [trial.state for trial in cut]
    assert states.count("completed") + states.count("pruned") == 20
    assert states.count("pruned") >= 3
    assert len(calls()) < 2 * 9  # what was done before is not done again
    rates = [trial.params["hyperparams.learning_rate"] for trial in cut]
    best = read_record(tmp_path / "cut").best
    assert best is not None
    assert min(abs(rate - 1e-3) for rate in rates) == abs(best.params["hyperparams.learning_rate"] - 1e-3)


def test_the_best_is_compared_with_the_base_and_written_as_a_preset(
    tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    study = write_study(tmp_path, "trials: 3", "seeds: [1, 2]")
    study.write_text(study.read_text().replace("held_out: []", "held_out: [7, 8, 9]"))
    made = tune(study, tmp_path / "out", width=2)
    assert made.errors == {}
    seeds = [1, 2] * 3 + [7, 8, 9] * 2  # three trials, side by side, each run once; then base and best
    assert sorted(calls()) == sorted(f"{verb} {seed}" for seed in seeds for verb in ("train", "eval"))
    record = read_record(tmp_path / "out")
    best, found = record.best, record.validation
    assert best is not None
    gain = 100 * (2 - abs(math.log10(best.params["hyperparams.learning_rate"] / 1e-3)))
    assert best.scores == pytest.approx({"1": 10.5 + gain - 200, "2": 20.5 + gain - 200})
    assert best.value == pytest.approx(15.5 + gain - 200)
    assert found["base"]["scores"] == pytest.approx([70.5 - 200, 80.5 - 200, 90.5 - 200])
    assert found["best"]["scores"] == pytest.approx([70.5 + gain - 200, 80.5 + gain - 200, 90.5 + gain - 200])
    assert found["difference"] == pytest.approx(gain)
    assert (found["verdict"], found["p_better"], found["probability_of_improvement"]) == ("better", 0.05, 1.0)
    text = (tmp_path / "out" / "best.yaml").read_text()
    assert "beats the base beyond noise (p = 0.050)" in text.replace("\n# ", " ")
    preset = load_config(tmp_path / "out" / "best.yaml")
    trial = load_config(tmp_path / "out" / "trials" / f"{best.number:04d}" / "config.yaml")
    differing = {k for k, v in to_dict(trial).items() if to_dict(preset)[k] != v}
    assert differing == {"tags", "evaluation"}  # every_steps is how the study watches its runs
    assert "evaluation" not in text
    for run in (tmp_path / "out" / "validation").glob("*/config.yaml"):  # what is compared has it
        assert load_config(run).evaluation.every_steps == 1
    assert preset.hyperparams.learning_rate == best.params["hyperparams.learning_rate"]
    assert trial.tags == ("small", f"trial-{best.number}")


RATES = STUDY.replace("{low: 1e-5, high: 1e-1, log: true}", "[1e-3, 1e-2, 1e-1]").replace(
    "  hyperparams.gamma: {low: 0.9, high: 0.999}\n", ""
)


def by_rate(folder: Path) -> dict[float, TrialRecord]:
    return {trial.params["hyperparams.learning_rate"]: trial for trial in trials_of(folder)}


def test_pruning_ends_runs_by_an_ordinary_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SLOW", "-50")  # a bad run that is not pruned would never end
    more = ("sampler: grid", "seed: 1", "pruner: {kind: median, startup_trials: 1}", "seeds: [1, 2]")
    study = write_study(tmp_path, *more, text=RATES)
    tune(study, tmp_path / "out")
    trials = by_rate(tmp_path / "out")
    assert trials[1e-3].number == 0
    assert trials[1e-3].reported == pytest.approx([1, 2, 3, 4, 5] * 2)  # seed by seed
    for rate, loss in ((1e-2, 100), (1e-1, 200)):
        assert trials[rate].state == "pruned"
        assert trials[rate].reported == pytest.approx([1 - loss])
        folder = tmp_path / "out" / "trials" / f"{trials[rate].number:04d}"
        (run,) = folder.glob("seed1/run*")
        assert (run / "asked-to-end").exists()
        assert '"status": "interrupted"' in (run / "metadata.json").read_text()
        assert not (folder / "seed2").exists()


def test_a_signal_lets_the_runs_save_and_the_study_goes_on_later(
    tmp_path: Path, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path, "trials: 3")
    tune(study, tmp_path / "whole")
    (tmp_path / "calls").unlink()
    monkeypatch.setenv("FAKE_GATE", str(tmp_path))
    (tmp_path / "save").touch()
    cut = tmp_path / "cut"

    def stop() -> None:
        try:
            wait_for(lambda: bool(list(cut.glob("trials/*/*/*/checkpoints/step_2"))))
        finally:  # or the study would wait for ever
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = threading.Thread(target=stop)
    stopped.start()
    made = tune(study, cut)
    stopped.join()
    assert made.stopped_by == signal.SIGTERM
    assert [trial.state for trial in trials_of(cut)] == ["running"]
    assert calls() == ["train 1"]
    (tmp_path / "go").touch()
    tune(study, cut)
    assert calls() == ["train 1", "resume 1", "eval 1", *["train 1", "eval 1"] * 2]
    assert without_times(trials_of(cut)) == without_times(trials_of(tmp_path / "whole"))


def test_a_run_that_is_killed_from_outside_goes_on(
    tmp_path: Path, calls: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GATE", str(tmp_path))
    out = tmp_path / "out"

    def kill() -> None:
        try:
            wait_for(lambda: bool(list(out.glob("trials/*/*/*/checkpoints/step_2"))))
        finally:
            (tmp_path / "go").touch()
        os.kill(int((tmp_path / "calls").read_text().split()[2]), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    tune(write_study(tmp_path, "trials: 1"), out)
    thread.join()
    assert [trial.state for trial in trials_of(out)] == ["completed"]
    assert calls() in (["train 1", "resume 1", "eval 1"], ["train 1", "eval 1"])  # it may have been faster


def test_a_folder_that_cannot_be_written_fails_its_trial_alone(tmp_path: Path) -> None:
    bad = tmp_path / "out" / "trials" / "0001" / "seed1"
    bad.parent.mkdir(parents=True)
    bad.touch()
    tune(write_study(tmp_path, "trials: 3"), tmp_path / "out")
    trials = trials_of(tmp_path / "out")
    assert [trial.state for trial in trials] == ["completed", "failed", "completed"]
    assert (trials[1].error or "").startswith(f"seed 1: {bad}: cannot be written: File exists")
    with pytest.raises(SaveError, match="seed1/out: cannot be written: Not a directory"):
        tune(write_study(tmp_path, "trials: 3"), bad / "out")


def test_a_trial_that_fails_is_told_and_too_many_of_them_end_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FRAGILE", "-150")
    tune(write_study(tmp_path, "sampler: grid", text=RATES), tmp_path / "some")
    trials = by_rate(tmp_path / "some")
    assert trials[1e-1].state == "failed"
    assert trials[1e-1].error == "seed 1: train: exit code 2: error: made to fail"
    assert [trials[rate].state for rate in (1e-3, 1e-2)] == ["completed", "completed"]
    monkeypatch.setenv("FAKE_FRAGILE", "1")
    with pytest.raises(AxiomError, match="3 trials failed and none succeeded; the last: seed 1: train: exit"):
        tune(write_study(tmp_path, "trials: 9"), tmp_path / "all")


class Heard(NoDisplay):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, text: str) -> None:
        self.events.append(text)


def test_fewer_trials_than_there_are_and_a_study_of_tasks_are_told_as_they_are(tmp_path: Path) -> None:
    tune(write_study(tmp_path, "trials: 2"), tmp_path / "out")
    heard = Heard()
    Tuner(load_study(tmp_path / "small.yaml", trials=1), tmp_path / "out", 1, heard, imports=["json"]).run()
    assert heard.events == ["already there: 2 trials (1 asked for)"]
    record = read_record(tmp_path / "out")
    assert as_text(record).splitlines()[1] == "2 trials (1 asked for): 2 completed"
    best = str(tmp_path / "out" / "best.yaml")
    assert train_command(record) == ["axiomrl", "train", "--config", best, "--import", "json"]
    heard = Heard()
    study = write_study(tmp_path, text=STUDY.replace("hyperparams.gamma", "env_kwargs.gravity"))
    Tuner(load_study(study, trials=1), tmp_path / "other", 1, heard).run()
    (warning,) = load_study(study).warnings
    assert heard.events[0] == f"warning: {warning}"
    assert as_text(read_record(tmp_path / "other")).splitlines()[2] == f"warning: {warning}"


def test_a_study_goes_on_only_as_what_it_was(tmp_path: Path, calls: Callable[[], list[str]]) -> None:
    tune(write_study(tmp_path, "trials: 1"), tmp_path / "out")
    tune(write_study(tmp_path, "trials: 2", "description: more"), tmp_path / "out")
    assert calls() == ["train 1", "eval 1"] * 2
    changed = STUDY.replace("high: 0.999", "high: 0.99, step: 0.01").replace(
        "learning_rate: 1e-5}", "num_steps: 9}"
    )
    with pytest.raises(ConfigError) as error:
        tune(write_study(tmp_path, text=changed), tmp_path / "out")
    out = tmp_path / "out"
    assert error.value.problems == [
        f"{out}: begun with another space.hyperparams.gamma.high: 0.999, not 0.99",
        f"{out}: begun with another hyperparams.num_steps: 5, not 9",
        f"{out}: begun with another hyperparams.learning_rate: 1e-05, not 0.0007",
        f"{out}: begun with another space.hyperparams.gamma.step: null, not 0.01",
        "give another --output-dir, or remove that study",
    ]
