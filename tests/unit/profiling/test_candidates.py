"""Which settings are tried, what they change, and that the harmless ones are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from profiles import ASYNC, MORE, NATIVE, THREADS, trial

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.profiling.bench import Bench, prepared
from rl_training.profiling.candidates import Candidate, candidates
from rl_training.profiling.compare import Comparison, try_out, winners

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "network": {"hidden": [16]},
    "env": {"backend": "sync"},
    "hyperparams": {"num_steps": 64, "num_minibatches": 2, "update_epochs": 1},
}  # fmt: skip


def found(config: TrainConfig, cores: int = 2) -> dict[str, Candidate]:
    return {c.name: c for c in candidates(config, CPU, cores) if c.key not in ("device", "compile")}


def test_what_is_tried() -> None:
    config = TrainConfig(**SMALL)
    tried = found(config)
    assert {name for name, c in tried.items() if c.effect == "identical"} == {
        "env.backend: async", "env.backend: native",
    }  # fmt: skip
    assert {name for name, c in tried.items() if c.effect == "equivalent"} == {
        "env.backend: batched", "threads: 2",
    }  # fmt: skip
    assert {"num_envs: 4", "num_envs: 8"} <= {name for name, c in tried.items() if c.effect == "data"}
    alone = found(TrainConfig(**SMALL | {"num_envs": 1, "threads": 4}), cores=1)
    assert {"env.backend: async", "threads: 1"} & alone.keys() == {"threads: 1"}  # nobody to share work with
    assert "env.backend: async" not in found(TrainConfig(**SMALL | {"num_envs": 64}))  # 64 processes


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
    comparison = Comparison((100.0, 50.0, 200.0), (120.0, 70.0, 220.0))
    assert comparison.ratios == pytest.approx([1.2, 1.4, 1.1])
    assert comparison.ratio == pytest.approx(1.2)
    assert (comparison.present_speed, comparison.speed) == (100.0, 120.0)
    assert comparison.is_faster
    assert Comparison((1.0,) * 5, (0.9, 1.2, 1.2, 1.2, 1.2)).is_faster  # one turn may be bad luck
    assert not Comparison((1.0,) * 5, (0.9, 0.9, 1.2, 1.2, 1.2)).is_faster


def test_winners_are_the_best_of_each_key() -> None:
    trials = [
        trial(ASYNC, 1.2, 1.2), trial(NATIVE, 1.5, 1.5), trial(THREADS, 1.01, 1.01), trial(MORE, 3.0, 3.0),
    ]  # fmt: skip
    assert [t.candidate for t in winners(trials)] == [MORE, NATIVE]


def test_what_cannot_be_had_is_no_error() -> None:
    config = TrainConfig(**SMALL | {"env_id": "Acrobot-v1"})
    refused = try_out(config, NATIVE, {}, 0.01)
    assert "no native vector version" in refused.error
    assert (refused.comparison, refused.is_faster) == (None, False)
