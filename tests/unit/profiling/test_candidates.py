"""Which settings are tried, what they change, and that the harmless ones are."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from profiles import ASYNC, COMPILE, MORE, NATIVE, THREADS, trial

from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.profiling import bench as bench_module
from rl_training.profiling import profile as profiling
from rl_training.profiling.bench import Bench, prepared
from rl_training.profiling.candidates import Candidate, candidates
from rl_training.profiling.compare import Comparison, compare, try_out, winners

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "network": {"hidden": [16]},
    "env": {"backend": "sync"},
    "hyperparams": {"num_steps": 64, "num_minibatches": 2, "update_epochs": 1},
}  # fmt: skip


EAGER = {"auto": "eager", "on": "compiled", "off": "eager"}


def found(config: TrainConfig, cores: int = 2, modes: Mapping[str, str] = EAGER) -> dict[str, Candidate]:
    return {c.name: c for c in candidates(config, CPU, cores, modes) if c.key != "device"}


def test_several_learners_are_tried_where_they_can_be() -> None:
    def tried(cores: int = 2, device: torch.device = CPU, **more: Any) -> list[Any]:
        config = TrainConfig(**SMALL | {"hyperparams": {}} | more)
        return [c.value for c in candidates(config, device, cores, EAGER) if c.key == "learners"]

    assert tried() == tried(algo="a2c") == [2]
    assert tried(num_envs=8, cores=4) == [4]
    assert tried(cores=1) == tried(num_envs=3) == tried(algo="trpo") == tried(algo="dqn") == []
    assert tried(device=torch.device("cuda")) == []


def test_what_is_tried() -> None:
    config = TrainConfig(**SMALL)
    tried = found(config)
    assert {name for name, c in tried.items() if c.effect == "identical"} == {
        "env.backend: async", "env.backend: native",
    }  # fmt: skip
    assert {name for name, c in tried.items() if c.effect == "equivalent"} == {
        "env.backend: batched", "threads: 2", "compile: on", "learners: 2",
    }  # fmt: skip
    assert {"num_envs: 4", "num_envs: 8"} <= {name for name, c in tried.items() if c.effect == "data"}
    alone = found(TrainConfig(**SMALL | {"num_envs": 1, "threads": 4}), cores=1)
    assert {"env.backend: async", "threads: 1"} & alone.keys() == {"threads: 1"}  # nobody to share work with
    assert "env.backend: async" not in found(TrainConfig(**SMALL | {"num_envs": 64}))  # 64 processes


@pytest.mark.parametrize(
    ("present", "tried"),
    [
        ("batched", {"sync": "equivalent", "native": "equivalent", "async": "equivalent"}),
        ("native", {"sync": "identical", "async": "identical", "batched": "equivalent"}),
    ],
)
def test_other_episodes_are_never_called_the_same_results(present: str, tried: dict[str, str]) -> None:
    config = TrainConfig(**SMALL | {"env": {"backend": present}})
    backends = {c.value: c.effect for c in found(config).values() if c.key == "env.backend"}
    assert backends == tried


@pytest.mark.parametrize(
    ("setting", "modes", "tried"),
    [
        ("auto", EAGER, {"on"}),
        ("auto", EAGER | {"auto": "compiled"}, {"off"}),
        ("on", EAGER, {"off"}),
        ("off", EAGER, {"on"}),
        ("auto", dict.fromkeys(EAGER, "eager"), set()),
        ("on", dict.fromkeys(EAGER, "eager"), set()),
    ],
)
def test_another_word_for_the_present_mode_is_not_tried(
    setting: str, modes: dict[str, str], tried: set[str]
) -> None:
    config = TrainConfig(**SMALL | {"compile": setting})
    assert {c.value for c in found(config, modes=modes).values() if c.key == "compile"} == tried


@pytest.mark.parametrize(("backend", "helped"), [("batched", True), ("sync", False)])
def test_compiling_helps_envs_that_are_tensors(backend: str, helped: bool) -> None:
    config = TrainConfig(**SMALL | {"env": {"backend": backend}})
    assert ("env" in found(config)["compile: on"].helps) == helped


def test_modes_are_those_of_the_algorithm() -> None:
    with Bench(TrainConfig(**SMALL | {"algo": "recurrent_ppo"})) as bench:
        assert bench.compile_modes() == dict.fromkeys(EAGER, "eager")  # it is eager only
    with Bench(TrainConfig(**SMALL)) as bench:
        modes = bench.compile_modes()
        assert (modes["auto"], modes["off"]) == ("eager", "eager")  # so short a run is not worth compiling
        assert bench.trainer.updates.plan.mode == modes["auto"]


def test_pipelined_collection_may_be_the_slower_one() -> None:
    assert found(TrainConfig(**SMALL))["collection: pipelined"].effect == "data"
    tried = found(TrainConfig(**SMALL | {"collection": "pipelined"}))
    assert "collection: pipelined" not in tried
    serial = tried["collection: serial"]
    assert serial.effect == "data"
    assert serial.largest_gain({"learn": 0.9, "wait": 0.1}) > 2  # the sampler may take the learner's core


def test_a_candidate_says_what_it_is() -> None:
    config = TrainConfig(**SMALL)
    assert NATIVE.changes() == {"env": {"backend": "native"}}
    assert (NATIVE.option, MORE.option) == ("--env.backend native", "--num-envs 32")
    changed = NATIVE.apply(config)
    assert changed.env.backend == "native"
    assert changed.hyperparams == config.hyperparams
    with pytest.raises(ConfigError, match="does not divide"):
        Candidate("num_envs", 3, "data", ()).apply(
            TrainConfig(**SMALL | {"hyperparams": {"num_steps": 9, "num_minibatches": 6}})
        )


def test_what_takes_no_time_cannot_be_helped() -> None:
    shares = {"env": 0.2, "inference": 0.0, "transfer": 0.0, "learn": 0.8, "overhead": 0.0}
    assert NATIVE.largest_gain(shares) == pytest.approx(1.25)
    assert THREADS.largest_gain(shares) == pytest.approx(5.0)
    pipelined = {"wait": 0.5, "env": 0.0, "inference": 0.0, "transfer": 0.0, "learn": 0.5, "overhead": 0.0}
    assert NATIVE.largest_gain(pipelined) == pytest.approx(2.0)  # the sampler's envs are waited for
    assert THREADS.largest_gain(pipelined) == pytest.approx(2.0)  # no thread but the learner's


@pytest.mark.parametrize("name", ["env.backend: async", "env.backend: native", "threads: 2"])
def test_harmless_candidates_learn_the_same(name: str) -> None:
    config = TrainConfig(**SMALL)
    candidate = found(config)[name]
    assert candidate.effect != "data"
    weights = []
    for settings in (config, candidate.apply(config)):
        with Bench(settings) as bench:
            first = {k: v.clone() for k, v in bench.trainer.algorithm.policy.state_dict().items()}
            with bench.settings():
                for _ in range(2):
                    bench.trainer.advance()
            weights.append(bench.trainer.algorithm.policy.state_dict())
    present, other = weights
    assert any(not torch.equal(first[key], present[key]) for key in first)
    tolerance = 0.0 if candidate.effect == "identical" else 1e-4
    for key, value in present.items():
        torch.testing.assert_close(other[key], value, rtol=tolerance, atol=tolerance)


def test_learning_begins_soon() -> None:
    config = TrainConfig(algo="dqn", env_id="CartPole-v1", hyperparams={"learning_starts": 50_000})
    assert prepared(config).hyperparams.learning_starts == 1000
    early = TrainConfig(algo="dqn", env_id="CartPole-v1", hyperparams={"learning_starts": 70})
    assert prepared(early) == early
    assert prepared(TrainConfig(**SMALL)) == TrainConfig(**SMALL)


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


def test_making_envs_belongs_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    make = bench_module.training_envs

    def late(*args: Any) -> Any:
        time.sleep(0.5)
        return make(*args)

    monkeypatch.setattr(bench_module, "training_envs", late)
    with Bench(TrainConfig(**SMALL)) as bench:
        assert bench.warm_up() > 0.5


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
    def compare(present: TrainConfig, other: TrainConfig, weights: Any, seconds: float) -> Comparison:
        assert (present.env.backend, other.env.backend, other.threads) == ("sync", "native", 2)
        if together is None:
            raise AxiomError("too much at once")
        return Comparison((1000.0,) * 3, (1000.0 * together,) * 3, 100_000)

    monkeypatch.setattr(profiling, "compare", compare)
    monkeypatch.setattr(profiling, "try_out", lambda config, candidate, *_: trial(candidate, 1.2, 1.2))
    ranked = [trial(NATIVE, 1.5, 1.5, steps=10**9), trial(THREADS, 1.3, 1.3, steps=10**9)]
    tuned = profiling._combine(TrainConfig(**SMALL), ranked, {}, 0.01, lambda _: None)
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
