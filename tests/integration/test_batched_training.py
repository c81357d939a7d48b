"""Training on envs that are tensors: exactly resumable, the same run by arrays, and a user's own env."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from rl_training.cli import main
from rl_training.envs.batched import BatchedEnv, State, register_batched_env
from rl_training.envs.batched.classic import CartPole
from rl_training.envs.batched.vector import BatchedVectorEnv
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime import compilation, recorded
from rl_training.runtime.on_policy import OnPolicyTrainer

ON_POLICY = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1}
OFF_POLICY = {"buffer_size": 200, "batch_size": 8, "learning_starts": 32, "train_every": 8}


def config(tmp_path: Path, algo: str = "ppo", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algo": algo,
        "env_id": "CartPole-v1",
        "num_envs": 4,
        "total_timesteps": 384,
        "output_dir": str(tmp_path),
        "network": {"hidden": [8]},
        "hyperparams": OFF_POLICY if algo in ("dqn", "sac") else ON_POLICY,
        "env": {"backend": "batched", "max_episode_steps": 12},
        "evaluation": {"every_steps": 128, "episodes": 2, "num_envs": 2},
        "logging": {"every_steps": 64, "tensorboard": False},
    }
    return {**base, **more}


class StopAt(rl_training.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= self.step:
            trainer.interrupt("the test")


class Look(rl_training.Callback):
    def on_train_start(self, trainer: Any) -> None:
        self.tensors = trainer.collector.stepping.tensors
        self.kind = type(trainer.envs)


def outcome(result: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Weights, and metrics without those that depend on the clock."""
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    timing = ("elapsed_s", "steps_per_second")
    rows = [{k: v for k, v in r.items() if k not in timing and not k.startswith("time/")} for r in lines]
    return read_checkpoint(result.checkpoint_path).state["policy"], rows


def assert_same(first: Any, second: Any) -> None:
    (weights, rows), (others, more) = outcome(first), outcome(second)
    for name, tensor in weights.items():
        assert torch.equal(tensor, others[name]), name
    assert rows == more


def assert_alike(first: Any, second: Any) -> None:
    """The same but for rounding."""
    (weights, rows), (others, more) = outcome(first), outcome(second)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-6, msg=name)
    for row, other in zip(rows, more, strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("algo", "env_id", "more"),
    [
        ("ppo", "CartPole-v1", {"normalize_obs": True, "normalize_reward": True}),
        ("recurrent_ppo", "Pendulum-v1", {}),
        ("dqn", "MountainCar-v0", {}),
        ("sac", "MountainCarContinuous-v0", {"reward_scale": 0.1}),
    ],
)
def test_a_resumed_run_equals_one_that_never_stopped(
    algo: str, env_id: str, more: dict[str, Any], tmp_path: Path
) -> None:
    env = {"backend": "batched", "max_episode_steps": 12, **more}
    cfg = config(tmp_path, algo, env_id=env_id, env=env)
    look = Look()
    whole = rl_training.train(cfg, callbacks=look)
    assert look.kind is BatchedVectorEnv
    assert look.tensors == (algo in ("ppo", "recurrent_ppo"))
    stopped = rl_training.train(cfg, callbacks=StopAt(192))
    assert stopped.status == "interrupted"
    final = rl_training.resume(stopped.run_dir)
    assert_same(whole, final)
    written = json.loads((final.run_dir / "metadata.json").read_text())
    assert [r["grade"] for r in written["resumes"]] == ["exact"]
    assert written["resume_grade"] == {"grade": "exact", "reason": "the state of the batched envs is saved"}


@pytest.mark.parametrize(
    ("env_id", "more"),
    [
        ("CartPole-v1", {"env": {"backend": "batched", "max_episode_steps": 12, "normalize_obs": True}}),
        ("MountainCarContinuous-v0", {"intrinsic": {"kind": "rnd"}}),  # shows its state itself
    ],
)
def test_a_compiled_step_is_the_plain_one_and_resumed_exactly(
    env_id: str, more: dict[str, Any], tmp_path: Path, recorded_as_it_is: list[int]
) -> None:
    cfg = config(tmp_path, env_id=env_id, **more)
    plain = rl_training.train({**cfg, "compile": "off"})
    assert recorded_as_it_is == []
    compiled = rl_training.train({**cfg, "compile": "on"})
    tried, steps = 1, 384 // 4
    assert recorded_as_it_is[0] == steps + tried  # every step, with all the envs in it, and once to compare
    written = json.loads((compiled.run_dir / "metadata.json").read_text())
    assert written["compilation"]["problems"] == []
    assert_alike(plain, compiled)
    stopped = rl_training.train({**cfg, "compile": "on"}, callbacks=StopAt(192))
    assert_same(compiled, rl_training.resume(stopped.run_dir))


def test_a_step_that_cannot_be_compiled_is_taken_as_it_is(
    tmp_path: Path, recorded_as_it_is: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(tmp_path, compile="on")
    expected = rl_training.train(cfg)
    step = CartPole.step

    def look_inside(self: Any, state: State, actions: torch.Tensor) -> Any:
        after, rewards, terminated = step(self, state, actions)
        if bool(terminated.any()):
            rewards = rewards + 0.0
        return after, rewards, terminated

    monkeypatch.setattr(CartPole, "step", look_inside)
    words = (
        r"^steps of the envs cannot be compiled: aten\S* looks at a value \(`.item\(\)`, `if` on a tensor\)$"
    )
    with pytest.warns(UserWarning, match=words) as caught:
        result = rl_training.train(cfg)
    assert not [w for w in caught if "updates" in str(w.message)]  # which are compiled
    compiled = json.loads((result.run_dir / "metadata.json").read_text())["compilation"]
    assert compiled["updates"] == "compiled"
    assert len(problems := compiled["problems"]) == 1
    assert re.search(words, problems[0])
    assert_alike(expected, result)


def test_an_env_that_fails_during_training_is_answered_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, steps = CartPole.step, [0]

    def broken(self: Any, state: State, actions: torch.Tensor) -> Any:
        steps[0] += len(actions) == 4  # what is checked before is played with other numbers of copies
        if steps[0] > 20:
            raise RuntimeError("boom")
        return step(self, state, actions)

    monkeypatch.setattr(CartPole, "step", broken)
    options = ["--num-envs", "4", "--env.backend", "batched", "--output-dir", str(tmp_path), "--quiet"]
    assert main(["train", "--algo", "ppo", "--env-id", "CartPole-v1", *options]) == 2
    error = capsys.readouterr().err
    assert "error: the batched env CartPole-v1: step() raised RuntimeError: boom (" in error
    assert "test_batched_training.py" in error
    assert "Traceback" not in error
    (run,) = tmp_path.iterdir()
    assert json.loads((run / "metadata.json").read_text())["status"] == "failed"


def test_a_compiled_step_that_fails_says_how_to_find_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, a look beside a table is noticed, but not whose it was."""

    def backend(graph: Any, inputs: Any) -> Any:
        runs = [0]

        def run(*tensors: torch.Tensor) -> Any:
            runs[0] += 1
            if runs[0] > 20:
                raise RuntimeError("index out of bounds:\n0 <= tmp16 < 30")
            return graph(*tensors)

        return run

    monkeypatch.setattr(recorded, "inductor", backend)
    monkeypatch.setattr(compilation, "find_compiler", lambda: "none")
    words = (
        "a compiled step of policy and envs failed: RuntimeError: index out of bounds: 0 <= tmp16 < 30; "
        "with compile: off the line is named"
    )
    with pytest.raises(rl_training.AxiomError, match=f"^{words}"):
        rl_training.train(config(tmp_path, compile="on"))


@pytest.mark.parametrize("more", [{}, {"intrinsic": {"kind": "rnd"}}])
def test_a_run_by_tensors_is_the_run_by_arrays(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [Look(), Look()]
    by_tensors = rl_training.train(config(tmp_path, **more), callbacks=looks[0])
    monkeypatch.setattr(OnPolicyTrainer, "takes_tensors", False)
    by_arrays = rl_training.train(config(tmp_path, **more), callbacks=looks[1])
    assert [look.tensors for look in looks] == [True, False]
    (weights, _), (others, _) = outcome(by_tensors), outcome(by_arrays)
    for name, tensor in weights.items():  # last observations are valued in batches of another size
        torch.testing.assert_close(tensor, others[name], rtol=1e-4, atol=1e-6)
    for name in ("rollout/episodes", "rollout/return_mean", "rollout/length_mean"):
        assert by_tensors.metrics[name] == by_arrays.metrics[name]
    assert by_tensors.metrics["rollout/episodes"] > 20
    assert 8 < by_tensors.metrics["rollout/length_mean"] <= 12


def test_an_env_that_exists_as_tensors_only_needs_no_setting(tmp_path: Path) -> None:
    class Line(BatchedEnv):
        observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def start(self, seeds: torch.Tensor) -> State:
            return {"x": torch.zeros(len(seeds), 1, device=self.device)}

        def step(self, state: State, actions: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
            x = state["x"] + (2.0 * actions - 1.0).unsqueeze(1)
            return {"x": x}, x.squeeze(1), x.squeeze(1) >= 5

        def observe(self, state: State) -> torch.Tensor:
            return state["x"]

    register_batched_env("test/Line-v0", max_episode_steps=9)(Line)
    cfg = config(tmp_path, env_id="test/Line-v0", env={})
    result = rl_training.train(cfg)
    assert rl_training.load_config(result.run_dir / "config.yaml").env.backend == "batched"
    assert rl_training.evaluate(result.run_dir, num_episodes=2)["lengths"]
    with pytest.raises(rl_training.AxiomError, match=r"'pipelined' cannot be combined with env.backend 'bat"):
        rl_training.train({**cfg, "collection": "pipelined"})


ACTIONS: dict[str, tuple[spaces.Space[Any], torch.dtype, tuple[int, ...]]] = {
    "box": (spaces.Box(-0.5, 0.25, (2,), np.float32), torch.float32, (2,)),
    "doubles": (spaces.Box(-0.5, 0.25, (2,), np.float64), torch.float32, (2,)),
    "discrete": (spaces.Discrete(3), torch.int64, ()),
    "masked": (spaces.Discrete(3), torch.int64, ()),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_what_a_step_is_given(kind: str, tmp_path: Path) -> None:
    """As `docs/extending.md` says: in the checks before training as in training."""
    space, dtype, shape = ACTIONS[kind]
    given: list[torch.Tensor] = []

    class Given(BatchedEnv):
        observation_space = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (1,), np.float32)})
        action_space = space
        if kind == "masked":
            observation_space["action_mask"] = spaces.MultiBinary(3)

        def start(self, seeds: torch.Tensor) -> State:
            return {"x": torch.zeros(len(seeds), 1)}

        def step(self, state: State, actions: torch.Tensor) -> tuple[State, torch.Tensor, torch.Tensor]:
            given.append(actions.clone())
            return state, state["x"].squeeze(1), state["x"].squeeze(1) > 0

        def observe(self, state: State) -> dict[str, torch.Tensor]:
            mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(len(state["x"]), 3)
            return {**state, "action_mask": mask} if kind == "masked" else dict(state)

    register_batched_env(f"test/Given-{kind}-v0", max_episode_steps=9)(Given)
    rl_training.train(config(tmp_path, env_id=f"test/Given-{kind}-v0", env={}, compile="off"))
    assert {(actions.dtype, tuple(actions.shape[1:])) for actions in given} == {(dtype, shape)}
    played = torch.cat([actions for actions in given if len(actions) == 4]).flatten().tolist()
    if dtype == torch.float32:
        assert min(played) == -0.5
        assert max(played) == 0.25
    else:
        assert set(played) == ({0, 2} if kind == "masked" else {0, 1, 2})


def test_evaluations_are_gymnasiums_episodes(tmp_path: Path) -> None:
    """So they can be compared with those of any other backend."""
    seen = []
    for backend in ("batched", "sync"):
        env = {"backend": backend, "max_episode_steps": 12}
        cfg = config(tmp_path / backend, env=env, total_timesteps=64, evaluation={"every_steps": 64})
        result = rl_training.train(cfg)
        seen.append(json.loads((result.run_dir / "evaluations.jsonl").read_text())["seeds"])
    assert seen[0] == seen[1]
    again = rl_training.evaluate(result.run_dir, num_episodes=2)
    assert len(again["lengths"]) == 2
