"""Whole runs, small: what the loop writes and when, how it stops, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from rl_training import registry
from rl_training.algorithms.ppo import PPO
from rl_training.envs.seeding import episode_seed
from rl_training.errors import AxiomError, ConfigError, NonFiniteError
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.experiment.runs import checkpoint_steps
from rl_training.runtime.callbacks import EarlyStopping, StepBudget

ITERATION = 32


def config(tmp_path: Path, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "total_timesteps": 4 * ITERATION,
        "output_dir": str(tmp_path),
        "network": {"hidden": [8]},
        "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        "evaluation": {"every_steps": 0},
        "logging": {"every_steps": ITERATION, "tensorboard": False},
    }
    return {**base, **more}


def rows(run_dir: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / f"{name}.jsonl").read_text().splitlines()]


def untimed(all_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timing = ("elapsed_s", "steps_per_second")
    return [
        {k: v for k, v in row.items() if k not in timing and not k.startswith("time/")} for row in all_rows
    ]


def metadata(run_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return data


def policy(run_dir: Path) -> dict[str, torch.Tensor]:
    checkpoint = read_checkpoint(run_dir / metadata(run_dir)["latest_checkpoint"])
    weights: dict[str, torch.Tensor] = checkpoint.state["policy"]
    return weights


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, second[name]) for name, value in first.items())


class StopAt(rl_training.Callback):
    def __init__(self, step: int, how: str = "interrupt") -> None:
        self.step, self.how = step, how

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= self.step:
            getattr(trainer, self.how)("the test")


def test_a_run_reports_every_interval_and_always_leaves_a_final_checkpoint(tmp_path: Path) -> None:
    result = rl_training.train(
        config(tmp_path, logging={"every_steps": 64, "tensorboard": False}, total_timesteps=150,
               checkpoint={"every_steps": 0})
    )  # fmt: skip
    assert result.metrics["global_step"] == 160  # the iteration that reaches the total is completed
    assert [row["global_step"] for row in rows(result.run_dir)] == [64, 128, 160]
    assert checkpoint_steps(result.run_dir) == [160]
    assert result.checkpoint_path == result.run_dir / "checkpoints" / "step_160"
    assert (result.status, result.stop_reason, result.best_checkpoint_path) == ("completed", None, None)
    for row in rows(result.run_dir):
        assert row["elapsed_s"] > 0
        assert row["steps_per_second"] > 0
        assert sum(v for k, v in row.items() if k.startswith("time/")) == pytest.approx(1.0, abs=1e-6)
        assert {"train/loss", "train/grad_norm", "train/learning_rate", "train/explained_variance",
                "rollout/episodes"} <= row.keys()  # fmt: skip
    written = metadata(result.run_dir)
    assert written["status"] == "completed"
    assert written["latest_metrics"]["global_step"] == 160
    assert written["resume_grade"]["grade"] == "exact"


def test_every_episode_is_counted_once(tmp_path: Path) -> None:
    lengths: list[int] = []

    class Watch(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            lengths[:] = list(trainer.collector.statistics.lengths)

    result = rl_training.train(config(tmp_path), callbacks=Watch())
    unfinished = read_checkpoint(result.checkpoint_path).state["envs"]["lengths"].sum()
    assert sum(lengths) + unfinished == result.metrics["global_step"]
    assert result.metrics["rollout/episodes"] == len(lengths)


def test_hooks_come_in_order_and_a_users_callback_before_those_of_the_config(tmp_path: Path) -> None:
    calls: list[str] = []

    class Log(rl_training.Callback):
        def __init__(self, label: str) -> None:
            self.label = label

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):
                calls.append(f"{self.label}.{name[3:]}")
            return super().__getattribute__(name)

    cfg = config(tmp_path, total_timesteps=64, evaluation={"every_steps": 64, "episodes": 1, "num_envs": 1})
    rl_training.train(cfg, callbacks=[Log("a"), Log("b")])
    one = ["train_start", "collect", "update", "collect", "update", "evaluation", "train_end", "checkpoint"]
    assert calls == [f"{label}.{hook}" for hook in one for label in ("a", "b")]


def test_a_checkpoint_has_seen_every_callback_of_its_iteration(tmp_path: Path) -> None:
    """A user's callback that asks for a save comes before the evaluation of the same step."""

    class SaveFirst(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            trainer.save_checkpoint()

    evaluation = {"every_steps": ITERATION, "episodes": 2, "num_envs": 2}
    result = rl_training.train(config(tmp_path, evaluation=evaluation), callbacks=SaveFirst())
    evaluated = {row["global_step"]: row["return_mean"] for row in rows(result.run_dir, "evaluations")}
    for step in checkpoint_steps(result.run_dir):
        state = read_checkpoint(result.run_dir / "checkpoints" / f"step_{step}").state
        seen = state["callbacks"]["EvaluationCallback"]
        assert seen["last_step"] == step
        assert seen["best"] == max(mean for at, mean in evaluated.items() if at <= step)
    best = max(evaluated, key=lambda step: evaluated[step])
    assert result.best_checkpoint_path == result.run_dir / "checkpoints" / f"step_{best}"


@pytest.mark.parametrize("log_every", [ITERATION, 3 * ITERATION, 1000])
def test_an_interrupted_run_reports_as_if_it_had_never_stopped(log_every: int, tmp_path: Path) -> None:
    options = {
        "logging": {"every_steps": log_every, "tensorboard": False},
        "evaluation": {"every_steps": 64, "episodes": 1, "num_envs": 1},
        "stopping": {"patience": 50},
        "hyperparams": {
            "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "learning_rate_schedule": "linear",
            "clip_coef_schedule": "cosine", "ent_coef": 0.01, "ent_coef_schedule": "linear",
        },
    }  # fmt: skip
    whole = rl_training.train(config(tmp_path, total_timesteps=192, **options))
    stopped = rl_training.train(
        config(tmp_path, total_timesteps=192, **options), callbacks=StopAt(2 * ITERATION)
    )
    assert stopped.status == "interrupted" == metadata(stopped.run_dir)["status"]
    assert metadata(stopped.run_dir)["stop_reason"] == "interrupted by the test"
    again = rl_training.resume(stopped.run_dir, callbacks=[StopAt(4 * ITERATION)])
    final = rl_training.resume(again.run_dir)
    assert final.status == "completed"
    for name in ("metrics", "evaluations"):
        assert untimed(rows(final.run_dir, name)) == untimed(rows(whole.run_dir, name))
    assert same(policy(final.run_dir), policy(whole.run_dir))
    states = [read_checkpoint(r.checkpoint_path).state["callbacks"] for r in (whole, final)]
    assert states[0] == states[1]
    assert [r["grade"] for r in metadata(final.run_dir)["resumes"]] == ["exact", "exact"]


def test_schedules_keep_their_horizon_when_the_total_grows_unless_asked(tmp_path: Path) -> None:
    hyperparams = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1,
                   "learning_rate": 1.0e-3, "learning_rate_schedule": "linear"}  # fmt: skip
    whole = rl_training.train(config(tmp_path, hyperparams=hyperparams))
    rates = [row["train/learning_rate"] for row in rows(whole.run_dir)]
    np.testing.assert_allclose(rates, [1e-3, 0.75e-3, 0.5e-3, 0.25e-3], rtol=1e-6)
    before = policy(whole.run_dir)
    longer = rl_training.resume(whole.run_dir, total_timesteps=6 * ITERATION)
    rates = [row["train/learning_rate"] for row in rows(longer.run_dir)]
    assert rates[4:] == [0.0, 0.0]
    assert same(before, policy(longer.run_dir))  # a learning rate of zero moves nothing
    extended = rl_training.resume(longer.run_dir, total_timesteps=8 * ITERATION, extend_schedules=True)
    rates = [row["train/learning_rate"] for row in rows(extended.run_dir)]
    np.testing.assert_allclose(rates[6:], [0.25e-3, 0.125e-3], rtol=1e-6)
    assert not same(before, policy(extended.run_dir))


def test_stopping_reasons(tmp_path: Path) -> None:
    often = {"every_steps": ITERATION, "episodes": 1, "num_envs": 1}
    reached = rl_training.train(config(tmp_path, evaluation=often, stopping={"target_return": 1.0}))
    assert reached.metrics["global_step"] == ITERATION
    assert reached.status == "completed"
    assert reached.stop_reason is not None
    assert "reached the target 1" in reached.stop_reason
    assert len(rows(reached.run_dir, "evaluations")) == 1
    patient = rl_training.train(
        config(tmp_path, evaluation=often, stopping={"patience": 1, "min_delta": 1e6})
    )
    assert patient.metrics["global_step"] == 2 * ITERATION
    timed = rl_training.train(config(tmp_path, stopping={"max_seconds": 1e-6}))
    assert (timed.metrics["global_step"], timed.stop_reason) == (ITERATION, "time budget of 1e-06 s used up")
    budget = rl_training.train(config(tmp_path), callbacks=StepBudget(ITERATION))
    assert (budget.status, budget.stop_reason) == ("completed", "step budget of 32 used up")
    more = rl_training.resume(budget.run_dir, callbacks=StepBudget(ITERATION))
    assert more.metrics["global_step"] == 2 * ITERATION


def test_two_callbacks_that_keep_state_need_two_names(tmp_path: Path) -> None:
    twice = [EarlyStopping(patience=1), EarlyStopping(patience=2)]
    with pytest.raises(ConfigError, match="two are called 'EarlyStopping'"):
        rl_training.train(config(tmp_path), callbacks=twice)
    with pytest.raises(ConfigError, match="expected Callback objects"):
        rl_training.train(config(tmp_path), callbacks=[print])  # type: ignore[list-item]
    rl_training.train(config(tmp_path, total_timesteps=32), callbacks=[StopAt(99), StopAt(98)])


def test_a_users_callback_continues_with_its_own_state(tmp_path: Path) -> None:
    class Counter(rl_training.Callback):
        def __init__(self) -> None:
            self.updates, self.trace = 0, torch.zeros(0)

        def on_update(self, trainer: Any) -> None:
            self.updates += 1
            self.trace = torch.cat([self.trace, torch.tensor([float(trainer.global_step)])])

        def state_dict(self) -> dict[str, Any]:
            return {"updates": self.updates, "trace": self.trace}

        def load_state_dict(self, state: Any) -> None:
            self.updates, self.trace = state["updates"], state["trace"]

    stopped = rl_training.train(config(tmp_path), callbacks=[Counter(), StopAt(64)])
    counter = Counter()
    rl_training.resume(stopped.run_dir, callbacks=[counter])
    assert counter.updates == 4
    assert counter.trace.tolist() == [32, 64, 96, 128]


def poison(monkeypatch: pytest.MonkeyPatch, at: set[int]) -> None:
    """Make the loss of some updates NaN."""
    losses, calls = PPO.losses, [0]

    def poisoned(self: PPO, batch: Any) -> dict[str, torch.Tensor]:
        calls[0] += 1
        result = losses(self, batch)
        return {k: v * float("nan") for k, v in result.items()} if calls[0] in at else result

    monkeypatch.setattr(PPO, "losses", poisoned)


def test_nan_stops_the_run_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, {5})  # in the third iteration
    with pytest.raises(NonFiniteError, match=r"NaN or infinity in loss, .* of an update at step 96"):
        rl_training.train(config(tmp_path, checkpoint={"every_steps": ITERATION}))
    (run_dir,) = tmp_path.iterdir()
    written = metadata(run_dir)
    assert written["status"] == "failed"
    assert "NonFiniteError" in (run_dir / "traceback.txt").read_text()
    assert written["latest_checkpoint"] == "checkpoints/step_64"
    monkeypatch.undo()
    assert rl_training.resume(run_dir).status == "completed"


def test_nan_can_be_skipped_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, set(range(3, 9)))  # everything from the second iteration on
    result = rl_training.train(config(tmp_path, on_nan="skip-update", checkpoint={"every_steps": ITERATION}))
    assert result.status == "completed"
    assert [row["train/skipped_updates"] for row in rows(result.run_dir)] == [0, 2, 4, 6]
    assert all(row.get("train/loss", 0.0) is not None for row in rows(result.run_dir))
    first, last = (
        read_checkpoint(result.run_dir / "checkpoints" / f"step_{step}").state for step in (64, 128)
    )
    assert same(first["policy"], last["policy"])
    assert last["trainer"]["skipped_updates"] == 6


def test_poisoned_weights_are_never_published(tmp_path: Path) -> None:
    class Poison(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.global_step == 3 * ITERATION:
                with torch.no_grad():
                    next(trainer.algorithm.policy.parameters()).fill_(float("nan"))
            trainer.save_checkpoint()

    with pytest.raises(NonFiniteError, match="of the policy at step 96"):
        rl_training.train(config(tmp_path), callbacks=Poison())
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["latest_checkpoint"] == "checkpoints/step_64"


@pytest.mark.parametrize(("fault", "what"), [("nan", "observation"), ("nan_reward", "reward")])
def test_a_broken_env_stops_the_run_within_its_rollout(fault: str, what: str, tmp_path: Path) -> None:
    kwargs = {"fault": fault, "at": 3, "seed": episode_seed(0, 1, 2)}
    cfg = config(tmp_path, env_id="axiom/Fragile-v0", env_kwargs=kwargs, on_nan="skip-update",
                 env={"normalize_obs": True}, checkpoint={"every_steps": ITERATION})  # fmt: skip
    with pytest.raises(NonFiniteError, match=f"the {what} of env 1 at step"):
        rl_training.train(cfg)
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["latest_checkpoint"] == "checkpoints/step_64"
    assert all(value.isfinite().all() for value in policy(run_dir).values())


def test_an_evaluation_of_an_env_without_an_end_does_not_hang(tmp_path: Path) -> None:
    endless = config(
        tmp_path, env_id="Pendulum-v1", env={"max_episode_steps": 10**9},
        evaluation={"every_steps": 2 * ITERATION, "episodes": 2, "max_episode_steps": 30},
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"env Pendulum-v1: an episode of the evaluation did not end in 30"):
        run_dir = rl_training.train(endless).run_dir
    assert [row["lengths"] for row in rows(run_dir, "evaluations")] == [[30, 30], [30, 30]]
    with pytest.warns(UserWarning, match="env Pendulum-v1: .* did not end in 30 steps"):
        assert rl_training.evaluate(run_dir, num_episodes=1)["lengths"] == [30]


def test_critics_are_looked_at_before_a_checkpoint_too(tmp_path: Path) -> None:
    class Poison(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.global_step == 96:
                with torch.no_grad():
                    next(trainer.algorithm.networks["critics"].parameters())[0].fill_(float("inf"))

    sac = {"learning_starts": 200, "batch_size": 8, "buffer_size": 200}
    cfg = config(tmp_path, algo="sac", env_id="Pendulum-v1", hyperparams=sac, checkpoint={"every_steps": 32})
    with pytest.raises(NonFiniteError, match=r"of the critics at step 96"):
        rl_training.train(cfg, callbacks=Poison())
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["latest_checkpoint"] == "checkpoints/step_64"


@pytest.mark.parametrize(("starts", "updates"), [(127, 1), (129, 0)])
def test_a_run_too_short_to_learn_is_warned_about(
    starts: int, updates: int, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    hyperparams = {"learning_starts": starts, "batch_size": 8, "buffer_size": 200}
    result = rl_training.train(config(tmp_path, algo="dqn", hyperparams=hyperparams))
    assert result.algorithm.num_updates == updates
    said = [str(warning.message) for warning in recwarn if "learning_starts" in str(warning.message)]
    assert said == [
        "hyperparams.learning_starts: 129 is not below total_timesteps (128): all steps are random, "
        "no update will be made before the end"
    ] * (updates == 0)


class LastWord(gymnasium.Env[Any, Any]):
    """Shows NaN in the last observation of an episode only."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == 40
        return np.full(2, np.nan if over else 0.0, np.float32), 0.0, over, False, {}


def test_a_broken_last_observation_is_never_stored(tmp_path: Path) -> None:
    cfg = config(tmp_path, algo="sac", env_id="x", hyperparams={"learning_starts": 1000, "buffer_size": 200})
    with pytest.raises(
        NonFiniteError, match=r"the final observation of env 0 at .* NaN .*that began at step 78\)"
    ):
        rl_training.train(cfg, env=LastWord)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_an_action_that_is_no_number_is_the_policys_fault(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = registry.algorithm(algo).cls
    build = cls.build

    def broken(self: Any, context: Any) -> None:
        build(self, context)
        act = self.policy.act

        def nan(*args: Any, **kwargs: Any) -> Any:
            output = act(*args, **kwargs)
            return dataclasses.replace(output, actions=output.actions * float("nan"))

        self.policy.act = nan

    monkeypatch.setattr(cls, "build", broken)
    hyperparams = {"learning_starts": 0, "buffer_size": 200} if algo == "sac" else {"num_steps": 16}
    cfg = config(tmp_path, algo=algo, env_id="Pendulum-v1", hyperparams=hyperparams)
    with pytest.raises(NonFiniteError, match=r"the action of env 0 at step 0 .* the policy is broken"):
        rl_training.train(cfg)


def test_an_exception_marks_the_run_failed_and_keeps_what_was_saved(tmp_path: Path) -> None:
    class Bug(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            if trainer.global_step == 3 * ITERATION:
                raise RuntimeError("a user's bug")

    cfg = config(tmp_path, checkpoint={"every_steps": ITERATION})
    with pytest.raises(RuntimeError, match="a user's bug"):
        rl_training.train(cfg, callbacks=[Bug()])
    (run_dir,) = tmp_path.iterdir()
    assert metadata(run_dir)["status"] == "failed"
    assert metadata(run_dir)["stop_reason"] == "RuntimeError: a user's bug"
    assert "a user's bug" in (run_dir / "traceback.txt").read_text()
    resumed = rl_training.resume(run_dir)
    whole = rl_training.train(cfg)
    assert resumed.status == "completed"
    assert same(policy(run_dir), policy(whole.run_dir))
    assert untimed(rows(run_dir)) == untimed(rows(whole.run_dir))


def test_an_earlier_checkpoint_can_be_gone_back_to(tmp_path: Path) -> None:
    run = rl_training.train(config(tmp_path, checkpoint={"every_steps": ITERATION, "keep_last": 9}))
    whole, lines = policy(run.run_dir), untimed(rows(run.run_dir))
    again = rl_training.resume(run.run_dir / "checkpoints" / "step_64")
    assert again.run_dir == run.run_dir
    assert same(policy(run.run_dir), whole)
    assert untimed(rows(run.run_dir)) == lines


def test_a_resume_that_cannot_work_changes_nothing(tmp_path: Path) -> None:
    run = rl_training.train(config(tmp_path, checkpoint={"every_steps": ITERATION, "keep_last": 9}))
    before = {p: p.read_bytes() for p in sorted(run.run_dir.rglob("*")) if p.is_file()}
    with pytest.raises(AxiomError, match="already at step 128 of 128; give a larger total"):
        rl_training.resume(run.run_dir)
    with pytest.raises(AxiomError, match="observation space"):
        rl_training.resume(run.run_dir / "checkpoints" / "step_64", env=_other_env)
    with pytest.raises(ConfigError, match="total_timesteps: must be greater than 0"):
        rl_training.resume(run.run_dir, total_timesteps=-1)
    assert {p: p.read_bytes() for p in sorted(run.run_dir.rglob("*")) if p.is_file()} == before


def _other_env() -> Any:
    import gymnasium

    return gymnasium.make("Acrobot-v1")


@pytest.mark.parametrize("backend", ["sync", "native"])
def test_an_automatic_backend_stays_what_it_was(backend: str, tmp_path: Path) -> None:
    """From 16 CartPoles on `auto` would choose native: a run that began otherwise goes on as it began."""
    run = rl_training.train(
        algo="ppo", env_id="CartPole-v1", num_envs=16, total_timesteps=256, output_dir=str(tmp_path),
        env={"backend": backend}, hyperparams={"num_steps": 16, "num_minibatches": 2},
    )  # fmt: skip
    again = rl_training.resume(run.run_dir, total_timesteps=512, env={"backend": "auto"})
    metadata = json.loads((again.run_dir / "metadata.json").read_text())
    assert metadata["resumes"][-1]["grade"] == "exact"
