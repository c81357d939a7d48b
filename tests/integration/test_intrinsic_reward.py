"""The novelty reward inside a run: what it pays for, what is saved, what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint import read_checkpoint


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "total_timesteps": 256,
        "output_dir": str(tmp_path),
        "hyperparams": {"num_steps": 32, "num_minibatches": 2, "update_epochs": 2},
        "intrinsic": {"kind": "rnd"},
        "evaluation": {"every_steps": 0},
        "checkpoint": {"every_steps": 64},
        "logging": {"every_steps": 64, "tensorboard": False},
    }
    return {**base, **more}


def state_of(run_dir: Path) -> dict[str, Any]:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    return read_checkpoint(run_dir / metadata["latest_checkpoint"]).state


def leaves(state: Any, where: str = "") -> dict[str, Any]:
    """Every value of a nested state by its path."""
    if isinstance(state, dict | list):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {k: v for key, value in items for k, v in leaves(value, f"{where}/{key}").items()}
    return {where: state}


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def test_a_run_goes_on_with_it_in_more_envs(tmp_path: Path) -> None:
    run_dir = rl_training.train(settings(tmp_path)).run_dir
    before = state_of(run_dir)["intrinsic"]["scale"]["moments"]
    rl_training.resume(run_dir, num_envs=4, total_timesteps=512, allow_drift=True)
    scale = state_of(run_dir)["intrinsic"]["scale"]
    assert len(scale["returns"]) == 4
    assert scale["moments"][2] == before[2] + 256


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo", "recurrent_ppo"])
def test_resume_is_exact_with_it(algo: str, tmp_path: Path) -> None:
    hyperparams = {"num_steps": 32} if algo == "a2c" else {"num_steps": 32, "num_minibatches": 2}
    config = settings(tmp_path, algo=algo, hyperparams=hyperparams)
    whole = state_of(rl_training.train(config).run_dir)

    class Stop(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.global_step == 128:
                trainer.interrupt("the test")

    stopped = rl_training.train(config, callbacks=[Stop()])
    assert stopped.status == "interrupted"
    resumed = state_of(rl_training.resume(stopped.run_dir).run_dir)
    for state in (whole, resumed):
        del state["clock"], state["callbacks"]
    expected, actual = leaves(whole), leaves(resumed)
    assert expected.keys() == actual.keys()
    assert [name for name in expected if not same(expected[name], actual[name])] == []
    names = " ".join(name for name in expected if name.startswith("/intrinsic"))
    for part in ("predictor", "target", "normalizer.mean", "exp_avg", "scale/moments"):
        assert part in names


def test_each_step_is_paid_for_where_it_led(tmp_path: Path) -> None:
    """Also at the end of an episode, where the next stored observation belongs to another one."""
    seen: dict[str, Any] = {}

    class Look(rl_training.Callback):
        def on_collect(self, trainer: Any) -> None:
            if trainer.iteration == 0:
                seen["extrinsic"] = trainer.buffer.steps("rewards").copy()
                original = trainer.intrinsic.scale.apply
                trainer.intrinsic.scale.apply = lambda bonus, dones: seen.update(
                    raw=bonus.copy(), scaled=(original(bonus, dones), bonus.copy())[1]
                )
                seen["weights"] = trainer.intrinsic.rnd.state_dict()["networks"]
                seen["weights"] = {k: v.clone() for k, v in seen["weights"].items()}

        def on_update(self, trainer: Any) -> None:
            if trainer.iteration == 1:
                seen["rewards"] = trainer.buffer.rewards.numpy().copy()
                seen["obs"] = trainer.buffer.obs.clone()
                seen["dones"] = trainer.buffer.dones.numpy().copy()
                seen["endings"] = list(trainer.collector.stepping.endings)
                seen["networks"] = trainer.intrinsic.rnd.networks

    coef = 0.5
    rl_training.train(
        settings(tmp_path, total_timesteps=64, seed=1, intrinsic={"kind": "rnd", "coef": coef}),
        callbacks=[Look()],
    )
    networks = seen["networks"]
    after = {k: v.clone() for k, v in networks.state_dict().items()}
    assert not torch.equal(after["predictor.2.weight"], seen["weights"]["predictor.2.weight"])  # it learned
    assert torch.equal(after["target.2.weight"], seen["weights"]["target.2.weight"])
    networks.load_state_dict(seen["weights"])
    networks.normalizer.update(seen["obs"])  # statistics first, then the bonus
    with torch.no_grad():
        following = networks(seen["obs"].flatten(0, 1)).reshape(32, 2)[1:].numpy()
        finals = {
            (ending.step, int(env)): float(networks(torch.from_numpy(ending.final_obs[i : i + 1])))
            for ending in seen["endings"]
            for i, env in enumerate(ending.envs)
        }
    assert len(finals) == seen["dones"].sum() >= 2
    for (step, env), bonus in finals.items():
        assert seen["raw"][step, env] == pytest.approx(bonus, rel=1e-5)
    inside = seen["dones"][:-1] == 0
    np.testing.assert_allclose(seen["raw"][:-1][inside], following[inside], rtol=1e-5)
    np.testing.assert_allclose(seen["rewards"], seen["extrinsic"] + coef * seen["scaled"], rtol=1e-6)


def test_statistics_and_evaluation_know_nothing_of_it(tmp_path: Path) -> None:
    result = rl_training.train(settings(tmp_path))
    assert result.metrics["rollout/return_mean"] == result.metrics["rollout/length_mean"]  # CartPole's own
    assert result.metrics["train/intrinsic_reward"] > 0
    assert result.metrics["train/rnd_loss"] > 0
    returns = rl_training.evaluate(result.run_dir, num_episodes=2)["returns"]
    assert all(value == int(value) for value in returns)


@pytest.mark.parametrize("env", ["Image", "DictObs", "Masked", "Identity"])
def test_any_observation_can_be_novel(env: str, tmp_path: Path) -> None:
    result = rl_training.train(settings(tmp_path, env_id=f"axiom/{env}-v0", total_timesteps=128))
    assert np.isfinite(result.metrics["train/rnd_loss"])
    assert result.metrics["train/intrinsic_reward"] > 0


def test_it_is_for_on_policy_algorithms(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"intrinsic\.kind: 'dqn' is not on-policy"):
        rl_training.train(settings(tmp_path, algo="dqn", hyperparams={}))
    assert not any(tmp_path.iterdir())
