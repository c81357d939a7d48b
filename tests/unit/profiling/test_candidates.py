"""Which settings are tried, what they change, and that the harmless ones are."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from profiles import MORE, NATIVE, SMALL, THREADS

from rl_training.envs.batched import register_batched_env
from rl_training.envs.batched.classic import CartPole
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.profiling import bench as bench_module
from rl_training.profiling.bench import Bench, prepared
from rl_training.profiling.candidates import Candidate, candidates
from rl_training.runtime.compilation import Plan

CPU = torch.device("cpu")

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


@pytest.mark.parametrize(
    ("changed", "helped"),
    [({}, False), ({"collection": "pipelined"}, True), ({"collection": "pipelined", "algo": "dqn"}, True)],
)
def test_compiling_helps_samplers(changed: dict[str, Any], helped: bool) -> None:
    config = TrainConfig(**SMALL | {"hyperparams": {}} | changed)
    gain = found(config)["compile: on"].largest_gain({"wait": 0.5, "learn": 0.2})
    assert gain == pytest.approx(1.0 / 0.3 if helped else 1.25)


def test_modes_are_those_of_the_algorithm() -> None:
    with Bench(TrainConfig(**SMALL | {"algo": "recurrent_ppo"})) as bench:
        assert bench.compile_modes() == dict.fromkeys(EAGER, "eager")  # it is eager only
    with Bench(TrainConfig(**SMALL)) as bench:
        modes = bench.compile_modes()
        assert (modes["auto"], modes["off"]) == ("eager", "eager")  # so short a run is not worth compiling
        assert bench.trainer.updates.plan.mode == modes["auto"]


def test_pipelined_collection_may_be_the_slower_one() -> None:
    assert found(TrainConfig(**SMALL))["collection: pipelined"].effect == "data"
    batched = found(TrainConfig(**SMALL | {"env": {"backend": "batched"}}))
    assert not [c for c in batched.values() if c.key == "collection"]  # the policy steps those itself
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
    with pytest.raises(ConfigError, match=r"^learners: 2 cannot be combined with threads 2: "):
        Candidate("learners", 2, "equivalent", ()).apply(TrainConfig(**SMALL | {"threads": 2}))
    with pytest.raises(ConfigError, match=r"^hyperparams.num_minibatches: 6 does not divide"):
        Candidate("num_envs", 3, "data", ()).apply(
            TrainConfig(**SMALL | {"hyperparams": {"num_steps": 9, "num_minibatches": 6}})
        )


def test_what_takes_no_time_cannot_be_helped() -> None:
    shares = {"env": 0.2, "inference": 0.0, "transfer": 0.0, "learn": 0.8, "overhead": 0.0}
    assert NATIVE.largest_gain(shares) == pytest.approx(1.25)
    assert THREADS.largest_gain(shares) == pytest.approx(5.0)
    everything = dataclasses.replace(MORE, helps=tuple(shares))
    assert everything.largest_gain(shares) == math.inf
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


def test_making_envs_belongs_to_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    make = bench_module.training_envs

    def late(*args: Any) -> Any:
        time.sleep(0.5)
        return make(*args)

    monkeypatch.setattr(bench_module, "training_envs", late)
    with Bench(TrainConfig(**SMALL)) as bench:
        assert bench.warm_up() > 0.5


def test_importing_the_compiler_belongs_to_every_compiled_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "importing_compiler", lambda: 1000.0)
    for mode, begins in (("eager", 0.0), ("compiled", 1000.0)):
        with Bench(TrainConfig(**SMALL)) as bench:
            updates = bench.trainer.updates
            updates.plan = Plan(mode, "")  # type: ignore[arg-type]
            updates._make = lambda *_, of=updates.algorithm: of.update  # type: ignore[method-assign]
            assert begins < bench.warm_up() < begins + 500


def test_no_folder_is_left_by_whom_a_signal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = TrainConfig(
        algo="dqn", env_id="CartPole-v1", env={"backend": "sync"},
        hyperparams={"learning_starts": 10, "buffer_size": 1000, "buffer_storage": "disk"},
    )  # fmt: skip
    with Bench(config) as bench:
        bench.warm_up()
        assert list(tmp_path.iterdir()) == []


def test_backends_that_do_not_know_the_env_are_not_tried() -> None:
    def backends(env_id: str, **env: Any) -> set[str]:
        config = TrainConfig(**SMALL | {"env_id": env_id, "env": env})
        return {c.value for c in found(config).values() if c.key == "env.backend"}

    assert backends("CartPole-v1", backend="sync") == {"async", "native", "batched"}
    assert backends("CartPole-v1", backend="sync", frame_stack=2) == {"async"}
    assert backends("Acrobot-v1", backend="sync") == {"async", "batched"}
    assert backends("LunarLander-v3", backend="sync") == {"async"}
    register_batched_env("OnlyAsTensors-v0", max_episode_steps=10)(_OnlyAsTensors)
    assert backends("OnlyAsTensors-v0", backend="batched") == set()


class _OnlyAsTensors(CartPole):
    """An env that Gymnasium does not know."""


@pytest.mark.parametrize(
    ("name", "changed", "helped"),
    [
        ("threads: 2", {}, False),
        ("threads: 2", {"env": {"backend": "batched"}}, True),
        ("threads: 2", {"env": {"backend": "async"}}, True),
        ("threads: 2", {"collection": "pipelined"}, True),
    ],
)
def test_cores_that_threads_take_or_leave_matter_to_envs(
    name: str, changed: dict[str, Any], helped: bool
) -> None:
    assert ("env" in found(TrainConfig(**SMALL | changed))[name].helps) == helped
