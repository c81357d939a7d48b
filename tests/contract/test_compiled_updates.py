"""Compiled equals plain, for every registered algorithm; a run in either mode is resumed exactly.

Most tests run the recorded graph as it is: what a compiler makes of it is tried on a few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_algorithms import assert_same_state, env_for, rows, settings, state_of

import rl_training
from rl_training import registry
from rl_training.algorithms.base import Algorithm, Context
from rl_training.policies.config import NetworkConfig
from rl_training.runtime import compilation, recorded
from rl_training.runtime.compilation import Plan, Updates, Workload, plan_for
from rl_training.types import Batch, RolloutBatch, Spec, TransitionBatch

ALGORITHMS = sorted(registry.algorithms())
BATCH = 12
OWN: dict[str, dict[str, Any]] = {"redq": {"policy_delay": 2}, "crossq": {"policy_delay": 2}}
"""So that both kinds of updates come up."""


@pytest.fixture(autouse=True)
def _graph_as_it_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that compiles nothing, unless the real one is asked for."""
    if "inductor" not in request.node.name:
        monkeypatch.setattr(recorded, "inductor", lambda graph, inputs: graph)
        monkeypatch.setattr(compilation, "find_compiler", lambda: "none")


def build(algo: str) -> Algorithm:
    entry = registry.algorithm(algo)
    image = algo == "drqv2"
    obs = spaces.Box(0, 255, (24, 24, 3), np.uint8) if image else spaces.Box(-9.0, 9.0, (4,), np.float32)
    discrete = "Discrete" in entry.actions
    action_space = spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)
    given = {**OWN.get(algo, {}), **({"target_update_every": 3} if "dqn" in entry.cls.__module__ else {})}
    hyperparams = entry.cls.Hyperparams(**entry.hyperparams(given))
    network = NetworkConfig(hidden=(16, 16), **({"encoder": "drq_cnn_small"} if image else {}))
    algorithm: Algorithm = entry.cls.from_context(
        Context(Spec(obs, action_space), hyperparams, network, torch.device("cpu"), seed=1)
    )
    return algorithm


def make_batch(algorithm: Algorithm, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    spec = algorithm.context.spec
    shape = spec.observation_space.shape or ()

    def rand(*more: int) -> torch.Tensor:
        return torch.randn(BATCH, *more, generator=generator)

    def obs() -> torch.Tensor:
        if len(shape) == 3:
            return torch.randint(256, (BATCH, *shape), generator=generator, dtype=torch.uint8)
        return rand(*shape)

    if isinstance(spec.action_space, spaces.Discrete):
        actions = torch.randint(3, (BATCH,), generator=generator)
    else:
        actions = rand(2).tanh()
    if algorithm.family == "on-policy":
        return RolloutBatch(obs(), actions, rand() * 0.1 - 1.1, rand(), rand(), rand())
    index = torch.zeros(2, BATCH, dtype=torch.int64)
    weights = torch.rand(BATCH, generator=generator)
    return TransitionBatch(obs(), actions, rand(), obs(), torch.full((BATCH,), 0.9), weights, index)


def numbers(algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """Weights, buffers and moments, by name."""
    state = algorithm.state_dict()
    parts = {"policy": state["policy"], **state["networks"], **state["optimizers"]}
    found: dict[str, torch.Tensor] = {}
    for name, part in parts.items():
        for key, value in part.items():
            moments = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{name}.{key}.{moment}": tensor.clone() for moment, tensor in moments}
    return found


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if not registry.algorithm(a).cls.eager_only])
def test_recorded_updates_are_the_plain_ones(algo: str) -> None:
    plain, twin = build(algo), build(algo)
    updates = Updates(twin, Plan("compiled", "test"))
    for seed in range(5):
        batch = make_batch(plain, seed)
        expected, found = plain.update(batch), updates(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            torch.testing.assert_close(found.metrics[name], value, rtol=1e-4, atol=1e-5, msg=name)
        assert (found.priorities is None) == (expected.priorities is None)
        if expected.priorities is not None:
            torch.testing.assert_close(found.priorities, expected.priorities, rtol=1e-4, atol=1e-5)
    assert updates.problems == []
    assert all(isinstance(update, recorded.RecordedUpdate) for update in updates._ready.values())
    assert twin.num_updates == plain.num_updates
    assert torch.equal(twin.generator.get_state(), plain.generator.get_state())
    ours, theirs = numbers(twin), numbers(plain)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if registry.algorithm(a).cls.eager_only])
def test_what_cannot_be_recorded_says_why(algo: str) -> None:
    algorithm = build(algo)
    plan = plan_for(algorithm, "on", Workload(10**9, 10**6))
    assert plan == Plan("eager", algorithm.eager_only)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "qr_dqn", "td3", "sac", "tqc"])
def test_numbers_that_are_not_finite_leave_everything_alone(algo: str, poison: float) -> None:
    algorithm = build(algo)
    updates = Updates(algorithm, Plan("compiled", "test"))
    for seed in range(2):
        updates(make_batch(algorithm, seed))
    before = numbers(algorithm)
    batch = make_batch(algorithm, 7)
    poisoned = "advantages" if isinstance(batch, RolloutBatch) else "rewards"
    getattr(batch, poisoned)[3] = poison
    result = updates(batch)
    assert not all(bool(value.isfinite()) for value in result.metrics.values())
    after = numbers(algorithm)
    targets = {name for name in before if name.startswith("target")}  # follow networks that have not moved
    assert {n for n in before if not torch.equal(before[n], after[n])} <= targets
    assert updates.problems == []


def test_learners_that_compile_learn_what_learners_that_do_not_learn(tmp_path: Path) -> None:
    """While one records its updates, which takes several of them, nobody else is kept waiting or misled."""
    config = settings("ppo", "CartPole-v1", tmp_path, num_envs=4, total_timesteps=128, learners=2)
    config["evaluation"] = {"every_steps": 0}
    compiled, plain = (rl_training.train({**config, "compile": how}).run_dir for how in ("on", "off"))
    assert (
        metadata(compiled)["compilation"] | {"updates": "compiled", "problems": []}
        == (metadata(compiled)["compilation"])
    )
    ours, theirs = state_of(compiled)["policy"], state_of(plain)["policy"]
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5, msg=name)


class StopInTheMiddle(rl_training.Callback):
    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= 64:
            trainer.interrupt("the test")


def metadata(run_dir: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return parsed


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if not registry.algorithm(a).cls.eager_only])
def test_a_compiled_run_is_resumed_exactly(algo: str, tmp_path: Path) -> None:
    config = settings(algo, env_for(algo), tmp_path, compile="on")
    whole = rl_training.train(config).run_dir
    assert metadata(whole)["compilation"]["updates"] == "compiled"
    assert metadata(whole)["compilation"]["problems"] == []
    stopped = rl_training.train(config, callbacks=[StopInTheMiddle()])
    resumed = rl_training.resume(stopped.run_dir).run_dir
    assert metadata(resumed)["resumes"][-1]["grade"] == "exact", metadata(resumed)["resumes"]
    expected, actual = state_of(whole), state_of(resumed)
    actual["callbacks"].pop("StopInTheMiddle", None)
    assert_same_state(expected, actual)
    assert rows(whole / "metrics.jsonl") == rows(resumed / "metrics.jsonl")


def test_a_run_goes_on_as_it_began_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ppo", "CartPole-v1", tmp_path)
    monkeypatch.setattr(compilation, "WORTH_IT", 0.0)
    stopped = rl_training.train(config, callbacks=[StopInTheMiddle()]).run_dir
    assert metadata(stopped)["compilation"]["updates"] == "compiled"
    monkeypatch.setattr(compilation, "WORTH_IT", 2.0)  # by which it would not be compiled
    resumed = metadata(rl_training.resume(stopped, total_timesteps=192).run_dir)
    assert resumed["resumes"][-1]["grade"] == "exact", resumed["resumes"]
    assert resumed["compilation"]["updates"] == "compiled"
    assert resumed["compilation"]["reason"] == "as before the run was stopped"
    again = metadata(rl_training.resume(stopped, total_timesteps=256, compile="off").run_dir)
    record = again["resumes"][-1]
    assert record["grade"] == "numeric"
    assert "compile: auto → 'off'" in record["reason"]
    assert "updates compiled → eager" in record["reason"]
    assert again["compilation"]["updates"] == "eager"


def test_updates_that_could_not_be_compiled_make_a_resume_less_than_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(recorded, "inductor", broken)
        with pytest.warns(UserWarning, match="the disk is full"):
            stopped = rl_training.train(
                settings("ppo", "CartPole-v1", tmp_path, compile="on"), callbacks=[StopInTheMiddle()]
            ).run_dir
    record = metadata(rl_training.resume(stopped).run_dir)["resumes"][-1]
    assert record["grade"] == "numeric"
    assert "updates not computed so 2 → 0" in record["reason"]


def test_updates_that_cannot_be_compiled_any_more_make_a_resume_less_than_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ppo", "CartPole-v1", tmp_path, compile="on")
    stopped = rl_training.train(config, callbacks=[StopInTheMiddle()]).run_dir

    def broken(graph: Any, inputs: Any) -> Any:
        try:
            raise OSError("no space")
        except OSError:
            raise RuntimeError("something failed before")  # noqa: B904 - as CUDA has it

    monkeypatch.setattr(recorded, "inductor", broken)
    with pytest.warns(
        UserWarning, match=r"RuntimeError: something failed before \(after OSError: no space\)"
    ):
        record = metadata(rl_training.resume(stopped).run_dir)["resumes"][-1]
    assert record["grade"] == "numeric"
    assert "updates not computed so 0 → 2" in record["reason"]


REAL = ["dqn", "ppo", "a2c", "c51", "sac", "td3", "crossq", "drqv2"]


@pytest.mark.parametrize(
    "algo", [pytest.param(algo, marks=[] if algo == "dqn" else [pytest.mark.full]) for algo in REAL]
)
def test_inductor_computes_the_same(algo: str) -> None:
    if compilation.find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    import torch._inductor.config

    plain, twin = build(algo), build(algo)
    start = numbers(plain)
    updates = Updates(twin, Plan("compiled", "test"))
    for seed in range(1 if algo == "dqn" else 4):  # of DQN's two kinds only the first, to save time
        batch = make_batch(plain, seed)
        # As by CXX="ccache g++": torch would look for a program of that name, and for no other.
        with torch._inductor.config.patch({"cpp.cxx": (None, "ccache g++")}):
            expected, found = plain.update(batch), updates(batch)
        for name, value in expected.metrics.items():
            torch.testing.assert_close(found.metrics[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert updates.problems == []
    ours = numbers(twin)
    for name, value in numbers(plain).items():
        moved = torch.linalg.vector_norm((value - start.get(name, torch.zeros_like(value))).float())
        error = torch.linalg.vector_norm((ours[name] - value).float())
        assert float(error) <= 0.01 * float(moved) + 1e-6, name
    if algo == "dqn":  # compiled, Huber's loss has a finite gradient where it is NaN
        assert isinstance(batch, TransitionBatch)
        batch.rewards[3] = torch.nan
        updates(batch)
        assert updates.problems == []
        after = numbers(twin)
        changed = {name for name, value in ours.items() if not torch.equal(after[name], value)}
        assert all(name.startswith("target") for name in changed), changed


@pytest.mark.full
@pytest.mark.parametrize(("algo", "width"), [("ppo", 16), ("td3", 16), ("td3", 512)])
def test_inductor_gives_the_same_machine_code_to_a_resumed_run(algo: str, width: int, tmp_path: Path) -> None:
    """The run goes on in a process that has compiled nothing before. Wide networks have large products."""
    if compilation.find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    network = {"hidden": [width, width]}
    config = settings(algo, env_for(algo), tmp_path, compile="on", network=network)
    whole = rl_training.train(config).run_dir
    stopped = rl_training.train(config, callbacks=[StopInTheMiddle()]).run_dir
    subprocess.run(
        [sys.executable, "-c", "import sys, rl_training; rl_training.resume(sys.argv[1])", str(stopped)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONHASHSEED": "77"},
        check=True,
    )
    assert metadata(stopped)["resumes"][-1]["grade"] == "exact"
    assert metadata(stopped)["compilation"]["problems"] == []
    expected, actual = state_of(whole), state_of(stopped)
    actual["callbacks"].pop("StopInTheMiddle", None)
    assert_same_state(expected, actual)
