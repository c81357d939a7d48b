"""What is called faster, what is measured again, and what a failure costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from profiles import ASYNC, COMPILE, MORE, NATIVE, SMALL, THREADS, trial

from rl_training.experiment.config import TrainConfig
from rl_training.profiling import compare as comparing
from rl_training.profiling import tuning
from rl_training.profiling.bench import Bench
from rl_training.profiling.candidates import Candidate
from rl_training.profiling.compare import Comparison, Trial, compare, try_out, winners


def test_comparisons_pair_what_ran_side_by_side() -> None:
    comparison = Comparison((100.0, 50.0, 200.0), (120.0, 70.0, 220.0), 1000)
    assert comparison.ratios == pytest.approx([1.2, 1.4, 1.1])
    assert comparison.ratio == pytest.approx(1.2)
    assert (comparison.present_speed, comparison.speed) == (100.0, 120.0)
    assert comparison.is_faster
    assert Comparison((1.0,) * 5, (0.9, 1.2, 1.2, 1.2, 1.2), 10).is_faster  # one turn may be bad luck
    assert not Comparison((1.0,) * 5, (0.9, 0.9, 1.2, 1.2, 1.2), 10).is_faster


def test_the_start_counts_for_the_whole_run() -> None:
    def compiled(steps: int) -> Comparison:
        return Comparison((5000.0,) * 3, (10_000.0,) * 3, steps, start_up_s=34.0, present_start_up_s=1.0)

    short, long = compiled(100_000), compiled(1_000_000)
    assert short.ratio == long.ratio == 2.0
    assert short.gain == pytest.approx((1 + 20) / (34 + 10))
    assert long.gain == pytest.approx((1 + 200) / (34 + 100))
    assert (short.is_faster, long.is_faster) == (False, True)
    assert short.pays_from == long.pays_from == 330_000  # 33 s at 0.1 ms a step
    back = Comparison((10_000.0,) * 3, (5000.0,) * 3, 100_000, start_up_s=1.0, present_start_up_s=34.0)
    assert back.is_faster  # slower steps, but the run is over before the others begin
    assert back.pays_from is None
    assert Comparison((1.0,), (2.0,), 10, start_up_s=1.0, present_start_up_s=2.0).pays_from == 0


def test_both_starts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(**SMALL | {"total_timesteps": 12_345})
    starts = iter([7.0, 3.0])  # the other one's comes first
    warm_up = Bench.warm_up

    def slow(bench: Bench) -> float:
        assert warm_up(bench) > 0
        return next(starts)

    monkeypatch.setattr(Bench, "warm_up", slow)
    with Bench(config) as bench:
        weights = bench.trainer.algorithm.state_dict()
    measured = compare(config, NATIVE.apply(config), weights, 0.01)
    assert (measured.start_up_s, measured.present_start_up_s) == (7.0, 3.0)
    assert measured.total_timesteps == 12_345


@pytest.mark.parametrize(
    ("together", "kept", "gain"),
    [
        (1.8, (NATIVE, THREADS), 1.8),
        (1.4, (NATIVE,), 1.5),
        (1.0, (NATIVE,), 1.5),
        (None, (NATIVE,), 1.5),
    ],
    ids=["faster", "slower than the best", "no faster", "impossible"],
)
def test_what_does_not_add_up_is_left_at_the_best_one(
    together: float | None, kept: tuple[Candidate, ...], gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(present: TrainConfig, other: TrainConfig, *_: Any) -> Comparison:
        assert (present.env.backend, other.env.backend, other.threads) == ("sync", "native", 2)
        if together is None:
            raise MemoryError("too much at once")
        return Comparison((1000.0,) * 3, (1000.0 * together,) * 3, 100_000)

    monkeypatch.setattr(tuning, "compare", compare)
    monkeypatch.setattr(tuning, "try_out", lambda config, candidate, *_: trial(candidate, 1.2, 1.2))
    ranked = [trial(NATIVE, 1.5, 1.5, steps=10**9), trial(THREADS, 1.3, 1.3, steps=10**9)]
    tuned = tuning.combine(TrainConfig(**SMALL), ranked, {}, 0.01, lambda _: None)
    assert tuned.chosen == kept
    assert tuned.comparison is not None
    assert tuned.comparison.gain == pytest.approx(gain, rel=1e-3)


def test_winners_are_the_best_of_each_key() -> None:
    trials = [
        trial(ASYNC, 1.2, 1.2), trial(NATIVE, 1.5, 1.5), trial(THREADS, 1.01, 1.01), trial(MORE, 3.0, 3.0),
        trial(COMPILE, 5.0, 5.0, start_up_s=30.0),
    ]  # fmt: skip
    assert [t.candidate for t in winners(trials)] == [MORE, COMPILE, NATIVE]  # by the time of the whole run


def test_what_cannot_be_had_is_no_error() -> None:
    config = TrainConfig(**SMALL | {"env_id": "Acrobot-v1"})
    refused = try_out(config, NATIVE, {}, 0.01)
    assert "no native vector version" in refused.error
    assert (refused.comparison, refused.is_faster) == (None, False)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "OutOfMemoryError: CUDA out of memory"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("no such kernel"), "RuntimeError: no such kernel"),
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
    ],
)
def test_whatever_fails_is_that_trial_alone(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(Bench, "run", fail)
    config = TrainConfig(**SMALL)
    with Bench(config) as bench:
        weights = bench.trainer.algorithm.state_dict()
    assert try_out(config, MORE, weights, 0.01).error == words


def test_ctrl_c_is_no_failed_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "compare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        try_out(TrainConfig(**SMALL), MORE, {}, 0.01)


def test_who_begins_a_turn_ends_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    config, order = TrainConfig(**SMALL), ""
    run = Bench.run

    def noted(bench: Bench, seconds: float) -> Any:
        nonlocal order
        order += "o" if bench.config.env.backend == "sync" else "n"
        return run(bench, seconds)

    monkeypatch.setattr(Bench, "run", noted)
    with Bench(config) as bench:
        weights = bench.trainer.algorithm.state_dict()
    compare(config, NATIVE.apply(config), weights, 0.01)
    assert order == "onnoonnoon"


@pytest.mark.parametrize(("compiling_s", "starts"), [(20.0, 2), (0.5, 1)])
def test_who_compiled_a_lot_is_judged_by_a_start_that_need_not(
    compiling_s: float, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(**SMALL)
    with Bench(config) as bench:
        weights = bench.trainer.algorithm.state_dict()
    warm_up, took = Bench.warm_up, {"native": iter([23.0, 2.0]), "sync": iter([1.0, 0.5])}
    made: list[Bench] = []

    def slow(bench: Bench) -> float:
        warm_up(bench)
        made.append(bench)
        return next(took[bench.config.env.backend])

    def compiling(bench: Bench) -> float:
        return compiling_s if bench.config.env.backend == "native" else 0.0

    monkeypatch.setattr(Bench, "warm_up", slow)
    monkeypatch.setattr(Bench, "compiling_s", property(compiling))
    found = compare(config, NATIVE.apply(config), weights, 0.01)
    assert [bench.config.env.backend for bench in made] == ["native"] * starts + ["sync"]
    assert all(bench.trainer.envs.closed for bench in made)
    assert found.present_start_up_s == 1.0
    expected = (2.0, 23.0) if starts == 2 else (23.0, None)
    assert (found.start_up_s, found.first_start_up_s) == expected


def test_more_than_can_be_is_noise() -> None:
    comparison = Comparison((1000.0,) * 5, (1480.0,) * 5, 100_000)
    assert Trial(NATIVE, comparison).is_faster
    noise = Trial(NATIVE, comparison, at_most=1.14)
    assert (noise.is_noise, noise.is_faster, winners([noise])) == (True, False, [])
    possible = Trial(NATIVE, comparison, at_most=1.4)  # shares of time are measured, too
    assert (possible.is_noise, possible.is_faster) == (False, True)


def measured_again(
    monkeypatch: pytest.MonkeyPatch, trials: list[Trial], ratios: dict[str, float]
) -> dict[str, Trial]:
    """Trials after those that led were measured again, as `ratios` say."""

    def again(config: TrainConfig, candidate: Candidate, *how: Any) -> Trial:
        assert how[-1] == 2 * comparing.TURNS  # it has to be sure
        return trial(candidate, *(ratios.pop(candidate.name),) * 5)

    monkeypatch.setattr(tuning, "try_out", again)
    found = tuning.confirmed(TrainConfig(**SMALL), trials, {}, 0.01, lambda _: None)
    assert not ratios
    return {t.candidate.name: t for t in found}


def test_what_leads_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [
        trial(NATIVE, 1.4, 1.4),
        trial(THREADS, 1.2, 1.2),
        trial(ASYNC, 1.1, 1.1),
        trial(MORE, 2.0, 2.0),
    ]
    found = measured_again(
        monkeypatch, trials, {"env.backend: native": 1.0, "threads: 2": 1.3, "num_envs: 32": 1.9}
    )
    ratios = {
        name: (t.first and t.first.ratio, t.comparison and t.comparison.ratio) for name, t in found.items()
    }
    assert ratios == {
        "env.backend: native": (1.4, 1.0),  # it was luck, and the next one led
        "threads: 2": (1.2, 1.3),
        "env.backend: async": (None, 1.1),  # it never led
        "num_envs: 32": (2.0, 1.9),
    }
    leader = tuning.leader(list(found.values()), changes_data=False)
    assert leader is not None
    assert leader.candidate == THREADS


def test_nothing_but_luck_leads_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured_again(monkeypatch, [trial(NATIVE, 1.4, 1.4)], {"env.backend: native": 1.02})
    assert winners(list(found.values())) == []


def test_what_the_first_start_took_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Comparison((1000.0,) * 5, (2000.0,) * 5, 10**6, 2.5, 0.5, first_start_up_s=23.0)
    found = measured_again(monkeypatch, [Trial(COMPILE, first)], {"compile: on": 1.9})
    comparison = found["compile: on"].comparison
    assert comparison is not None
    assert (comparison.ratio, comparison.start_up_s, comparison.first_start_up_s) == (1.9, 0.5, 23.0)
