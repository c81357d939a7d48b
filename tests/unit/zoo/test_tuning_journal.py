"""The journal: suggestions that depend on the seed and the trials before, and on nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_studies import design_of

from rl_training.errors import AxiomError

pytest.importorskip("optuna", reason="needs the extra tune")
from rl_training.zoo.tuning.journal import JOURNAL, Entry, Journal
from rl_training.zoo.tuning.record import best_of


def score(entry: Entry) -> float:
    return -abs(entry.kept["hyperparams.gamma"] - 0.95) - entry.kept["hyperparams.learning_rate"]


def play(journal: Journal, count: int) -> list[Any]:
    """Ask and tell, one trial after the other."""
    asked = []
    for _ in range(count):
        entry = journal.ask()
        asked.append(dict(entry.kept))
        journal.complete(entry.number, score(entry))
    return asked


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_suggestions_are_the_same_however_often_the_journal_is_opened(tmp_path: Path, sampler: str) -> None:
    design = design_of(tmp_path, f"sampler: {{kind: {sampler}, startup_trials: 3}}")
    folders = [tmp_path / name for name in ("whole", "cut")]
    for folder in folders:
        folder.mkdir()
    whole = play(Journal(folders[0], design), 8)
    cut = [trial for _ in range(8) for trial in play(Journal(folders[1], design), 1)]
    assert whole == cut
    assert len({trial["hyperparams.gamma"] for trial in whole}) == 8
    (tmp_path / "other").mkdir()
    other = play(Journal(tmp_path / "other", design_of(tmp_path, "seed: 1", f"sampler: {sampler}")), 2)
    assert other[0] != whole[0]


def test_a_trial_whose_process_died_while_choosing_is_completed_as_it_would_have_been(tmp_path: Path) -> None:
    design = design_of(tmp_path, "sampler: {kind: tpe, startup_trials: 2}")
    journal = Journal(tmp_path, design)
    play(journal, 3)
    asked = journal.ask()
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    for kept in range(2, 6):  # everything after the trial's creation may be missing, also half a line
        created = max(i for i, line in enumerate(lines) if b'"op_code":4,' in line)
        (tmp_path / JOURNAL).write_bytes(b"".join(lines[: created + kept - 1]) + b'{"op_co')
        (tmp_path / f"{JOURNAL}.lock").symlink_to(tmp_path / JOURNAL)
        again = Journal(tmp_path, design)
        assert [entry.state for entry in again.entries()] == ["completed"] * 3 + ["running"]
        assert again.take_up(3).kept == asked.kept


def test_a_grid_is_gone_through_once_and_kept_by_number(tmp_path: Path) -> None:
    space = "{hyperparams.num_steps: {low: 4, high: 8, step: 4}, network.hidden: [[8], [16], null]}"
    text = f"overrides: {{algo: a2c, env_id: CartPole-v1}}\nsteps: 5\nsampler: grid\nspace: {space}\n"
    design = design_of(tmp_path, text=text)
    asked = [Journal(tmp_path, design).ask().kept for _ in range(design.trials)]
    values = [design.values(kept) for kept in asked]
    assert sorted((v["hyperparams.num_steps"], str(v["network.hidden"])) for v in values) == [
        (n, hidden) for n in (4, 8) for hidden in ("None", "[16]", "[8]")
    ]


def test_bounds_of_zero_are_drawn(tmp_path: Path) -> None:
    space = "{hyperparams.ent_coef: {low: 0, high: 0.02, step: 0.01}, env_kwargs.tilt: {low: -2, high: 0}}"
    text = f"overrides: {{algo: a2c, env_id: CartPole-v1}}\nsteps: 5\nsampler: grid\nspace: {space}\n"
    design = design_of(tmp_path, text=text)
    asked = [Journal(tmp_path, design).ask().kept for _ in range(design.trials)]
    assert {entry["hyperparams.ent_coef"] for entry in asked} == {0.0, 0.01, 0.02}
    assert {entry["env_kwargs.tilt"] for entry in asked} == {-2, -1, 0}


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
@pytest.mark.filterwarnings("error")
def test_steps_reach_the_upper_end(tmp_path: Path, sampler: str) -> None:
    """In binary floats 0.1 + 3 · 0.3 is less than 1, and 0.9 + 0.1 is not within a range up to 1."""
    steps = "hyperparams.gamma: {low: 0.1, high: 1.0, step: 0.3}"
    one_step = "hyperparams.gae_lambda: {low: 0.9, high: 1.0, step: 0.1}"
    text = f"overrides: {{algo: a2c, env_id: CartPole-v1}}\nsteps: 5\nspace: {{{steps}, {one_step}}}\n"
    design = design_of(tmp_path, f"sampler: {sampler}", text=text)
    assert [d.high for d in design.dimensions] == [1.0, 1.0]
    journal = Journal(tmp_path, design)
    asked = [design.values(journal.ask().kept) for _ in range(8 if sampler == "grid" else 30)]
    gammas, lambdas = ({entry[d.key] for entry in asked} for d in design.dimensions)
    assert (gammas, lambdas) == ({0.1, 0.4, 0.7, 1.0}, {0.9, 1.0})
    if sampler == "grid":
        assert len({tuple(entry.values()) for entry in asked}) == design.trials == 8


def test_the_best_is_the_first_of_the_highest_completed_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path, design_of(tmp_path))
    assert best_of(journal.entries()) is None
    for value in (1.0, 3.0, 3.0):
        journal.complete(journal.ask().number, value)
    pruned = journal.ask()
    journal.report(pruned.number, 1, 9.0)
    journal.prune(pruned.number)
    journal.fail(journal.ask().number, "no")
    entries = journal.entries()
    assert [(e.state, e.value) for e in entries[3:]] == [("pruned", 9.0), ("failed", None)]
    best = best_of(entries)
    assert best is not None
    assert best.number == 1


@pytest.mark.parametrize("pruner", ["hyperband", "{kind: median, startup_trials: 2, warmup: 2}", "none"])
def test_pruners_spend_most_on_the_best(tmp_path: Path, pruner: str) -> None:
    design = design_of(tmp_path, f"pruner: {pruner}", "seeds: [1, 2]")
    assert design.positions == 10
    journal, lengths = Journal(tmp_path, design), []
    for number in range(12):
        entry = journal.ask()
        for position in range(1, 11):
            journal.report(number, position, position - 100.0 * (number % 3))
            if position < 10 and journal.should_prune(number):
                journal.prune(number)
                break
        else:
            journal.complete(entry.number, 0.0)
        lengths.append(position)
    good = [length for number, length in enumerate(lengths) if number % 3 == 0]
    assert good == [10] * 4
    if pruner == "none":
        assert lengths == [10] * 12
    elif pruner == "hyperband":
        assert sum(lengths) < 80
    else:  # judged by the first two complete ones, from the third evaluation on
        assert lengths == [10, 10, 3, 10, 3, 3, 10, 3, 3, 10, 3, 3]


def test_a_damaged_journal_is_an_error(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("not a journal\nat all\n")
    with pytest.raises(AxiomError, match=r"journal\.log: cannot be read"):
        Journal(tmp_path, design_of(tmp_path))
