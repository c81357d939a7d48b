"""A policy's choices for envs on the host, compiled where updates are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.policies.actor_critic import ActorCritic
from rl_training.profiling.bench import Bench
from rl_training.runtime import recorded
from rl_training.runtime.stopwatch import measured

STEPS, ENVS = 192, 4


def config(tmp_path: Path, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "num_envs": ENVS,
        "total_timesteps": STEPS,
        "output_dir": str(tmp_path),
        "network": {"hidden": [8]},
        "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        "env": {"max_episode_steps": 12, "normalize_obs": True},
        "evaluation": {"every_steps": 0},
        "logging": {"every_steps": 64, "tensorboard": False},
    }
    return {**base, **more}


def weights(result: Any) -> dict[str, torch.Tensor]:
    return read_checkpoint(result.checkpoint_path).state["policy"]


def problems(result: Any) -> list[str]:
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["compilation"]["updates"] == "compiled"
    return list(metadata["compilation"]["problems"])


class StopAt(rl_training.Callback):
    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= STEPS // 2:
            trainer.interrupt("the test")


def assert_like_and_resumed_exactly(compiled: Any, plain: Any, cfg: dict[str, Any]) -> None:
    """Compiled as plain but for rounding, and the same to the bit if it is stopped and resumed."""
    stopped = rl_training.train({**cfg, "compile": "on"}, callbacks=StopAt())
    resumed = rl_training.resume(stopped.run_dir)
    metadata = json.loads((resumed.run_dir / "metadata.json").read_text())
    assert [record["grade"] for record in metadata["resumes"]] == ["exact"]
    theirs, again = weights(plain), weights(resumed)
    for name, tensor in weights(compiled).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-6, msg=name)
        assert torch.equal(tensor, again[name]), name


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"env_id": "Pendulum-v1", "algo": "a2c"},
        {"env_id": "axiom/Masked-v0", "env": {}},
    ],
    ids=["discrete", "continuous", "masked"],
)
def test_they_are_the_plain_ones_and_resumed_exactly(
    more: dict[str, Any], tmp_path: Path, recorded_as_it_is: list[int]
) -> None:
    cfg = config(tmp_path, **more)
    if cfg["algo"] == "a2c":
        cfg["hyperparams"] = {"num_steps": 16}
    plain = rl_training.train({**cfg, "compile": "off"})
    assert recorded_as_it_is == []
    compiled = rl_training.train({**cfg, "compile": "on"})
    tried = 1
    assert recorded_as_it_is[0] == STEPS // ENVS + tried  # every step, and once to compare
    assert problems(compiled) == []
    assert_like_and_resumed_exactly(compiled, plain, cfg)


RANDOM = 16
OFF_POLICY: dict[str, dict[str, Any]] = {
    "greedy": {"algo": "dqn"},
    "greedy masked": {"algo": "dqn", "env_id": "axiom/Masked-v0", "env": {}},
    "greedy repeated": {"algo": "dqn", "hyperparams": {"exploration_repeats": True}},
    "noisy": {"algo": "noisy_dqn"},
    "quantiles": {"algo": "iqn"},
    "goals": {"algo": "dqn", "env_id": "axiom/BitFlip-v0", "env": {}, "hyperparams": {"her": "future"}},
    "drawn": {"algo": "sac", "env_id": "Pendulum-v1"},
    "drawn discrete masked": {"algo": "discrete_sac", "env_id": "axiom/Masked-v0", "env": {}},
    "gaussian": {"algo": "td3", "env_id": "Pendulum-v1"},
    "drifting": {"algo": "ddpg", "env_id": "Pendulum-v1", "hyperparams": {"exploration_noise": "ou"}},
}


def off_policy(tmp_path: Path, more: dict[str, Any], **others: Any) -> dict[str, Any]:
    own = {"learning_starts": RANDOM, "train_every": 8, "batch_size": 8, "buffer_size": 200}
    return config(tmp_path, **{**more, **others, "hyperparams": {**own, **more.get("hyperparams", {})}})


@pytest.mark.parametrize("case", OFF_POLICY)
def test_those_of_off_policy_algorithms_with_what_explores(
    case: str, tmp_path: Path, recorded_as_it_is: list[int]
) -> None:
    cfg = off_policy(tmp_path, OFF_POLICY[case])
    plain = rl_training.train({**cfg, "compile": "off"})
    compiled = rl_training.train({**cfg, "compile": "on"})
    tried = 1
    assert (STEPS - RANDOM) // ENVS + tried in recorded_as_it_is  # all steps but the random ones
    assert problems(compiled) == []
    assert_like_and_resumed_exactly(compiled, plain, cfg)


@pytest.mark.parametrize(
    "more",
    [
        {"algo": "recurrent_ppo"},
        {"env_id": "Pendulum-v1", "network": {"hidden": [8], "distribution": "state_dependent"}},
    ],
    ids=["memory", "noise"],
)
def test_policies_with_a_state_choose_as_they_are(
    more: dict[str, Any], tmp_path: Path, recorded_as_it_is: list[int]
) -> None:
    rl_training.train(config(tmp_path, compile="on", **more))
    updates = 0 if more.get("algo") == "recurrent_ppo" else 1
    assert len(recorded_as_it_is) == updates


@pytest.mark.parametrize("case", ["rollouts", *OFF_POLICY])
def test_a_sampler_compiles_its_own_and_is_resumed_exactly(
    case: str, tmp_path: Path, recorded_as_it_is: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            with (tmp_path / f"{os.getpid()}.calls").open("a") as file:
                file.write("x")
            return graph(*tensors)

        return run

    monkeypatch.setattr(recorded, "inductor", backend)
    cfg = config(tmp_path) if case == "rollouts" else off_policy(tmp_path, OFF_POLICY[case])
    cfg["collection"] = "pipelined"
    plain = rl_training.train({**cfg, "compile": "off"})
    assert list(tmp_path.glob("*.calls")) == []
    compiled = rl_training.train({**cfg, "compile": "on"})
    learner = tmp_path / f"{os.getpid()}.calls"
    (sampler,) = (path for path in tmp_path.glob("*.calls") if path != learner)
    steps = (STEPS if case == "rollouts" else STEPS - RANDOM) // ENVS
    assert steps < sampler.stat().st_size <= steps + 16 + 1  # once to compare, and perhaps some ahead
    assert problems(compiled) == []
    assert_like_and_resumed_exactly(compiled, plain, cfg)


@pytest.mark.parametrize("collection", ["serial", "pipelined"])
def test_a_policy_that_looks_at_a_value_is_asked_as_it_is(
    collection: str, tmp_path: Path, recorded_as_it_is: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(tmp_path, compile="on", collection=collection)
    plain = rl_training.train(cfg)
    act = ActorCritic.act

    def looks(self: Any, obs: Any, *args: Any, **kwargs: Any) -> Any:
        assert bool(obs.isfinite().all())
        return act(self, obs, *args, **kwargs)

    monkeypatch.setattr(ActorCritic, "act", looks)
    with pytest.warns(UserWarning, match="^the policy's choices cannot be compiled: .* looks at a value"):
        result = rl_training.train(cfg)
    assert len(problems(result)) == 1
    theirs = weights(plain)
    for name, tensor in weights(result).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-6, msg=name)


def test_a_profile_sees_what_a_run_does(tmp_path: Path, recorded_as_it_is: list[int]) -> None:
    """Choices are a part of their own, compiled or not."""
    resolved = TrainConfig(**config(tmp_path, compile="on"))
    with Bench(resolved) as bench:
        bench.warm_up(in_parts=True)
        compiled = recorded_as_it_is[0]
        with measured(bench.trainer) as watch:
            bench.run(0.0)
        steps = 16
        assert recorded_as_it_is[0] - compiled == watch.calls["_choices"] == steps
        assert watch.calls["act"] == 0
        assert watch.seconds["inference"] > 0
