"""One suite for every registered algorithm: what a user may rely on whichever they pick."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training import registry
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint import read_checkpoint

ALGORITHMS = sorted(registry.algorithms())
ENV_OF_ACTIONS = {
    "Discrete": "axiom/Identity-v0",
    "MultiDiscrete": "axiom/MultiDiscrete-v0",
    "MultiBinary": "axiom/MultiBinary-v0",
    "Box": "axiom/IdentityBox-v0",
}
ENV_OF_OBSERVATIONS = {
    "Dict": "axiom/DictObs-v0",
    "image": "axiom/Image-v0",
    "masked": "axiom/Masked-v0",
}
SMALL: dict[str, dict[str, Any]] = {
    "on-policy": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2},
    "off-policy": {"buffer_size": 100, "batch_size": 8, "learning_starts": 16, "train_every": 4},
}
OWN: dict[str, dict[str, Any]] = {
    "recurrent_ppo": {"sequence_length": 8},
    "redq": {"gradient_steps": 3, "policy_delay": 2},
}
"""What an algorithm needs to be small beyond that."""
NETWORKS: dict[str, dict[str, Any]] = {"drqv2": {"hidden": (32, 32)}}
"""Where the default network is a large one."""
TIMING = {"elapsed_s", "steps_per_second"}
CLOCKS = ("time/", "sampler/")


def settings(algo: str, env_id: str, output_dir: Path, **more: Any) -> dict[str, Any]:
    entry = registry.algorithm(algo)
    hyperparams = {**SMALL[entry.family], **OWN.get(algo, {})}
    base = {
        "algo": algo,
        "env_id": env_id,
        "num_envs": 2,
        "total_timesteps": 128,
        "output_dir": str(output_dir),
        "hyperparams": {key: value for key, value in hyperparams.items() if key not in entry.fixed},
        "network": NETWORKS.get(algo, {}),
        "evaluation": {"every_steps": 64, "episodes": 2, "num_envs": 2},
        "checkpoint": {"every_steps": 32},
        "logging": {"every_steps": 32, "tensorboard": False},
    }
    return {**base, **more}


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file without what depends on the clock."""
    parsed = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING and not k.startswith(CLOCKS)} for row in parsed]


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal to the last bit, also where there is no number."""
    return first.dtype == second.dtype and first.numpy().tobytes() == second.numpy().tobytes()


def assert_same_state(first: Any, second: Any, where: str = "") -> None:
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_same_state(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), where
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_same_state(a, b, f"{where}/{i}")
    elif isinstance(first, torch.Tensor):
        assert same_bits(first, second), where
    elif isinstance(first, np.ndarray):
        assert np.array_equal(first, second), where
    else:
        assert first == second, where


def state_of(run_dir: Path, which: str = "latest") -> dict[str, Any]:
    """Everything in a run's checkpoint apart from the clock."""
    metadata = json.loads((run_dir / "metadata.json").read_text())
    checkpoint = read_checkpoint(run_dir / metadata[f"{which}_checkpoint"])
    return {name: part for name, part in checkpoint.state.items() if name != "clock"}


def env_for(algo: str) -> str:
    """A real env with observations that can be normalised and episodes that span iterations."""
    return "CartPole-v1" if "Discrete" in registry.algorithm(algo).actions else "Pendulum-v1"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_same_seed_same_run_and_another_seed_another(algo: str, tmp_path: Path) -> None:
    first, again, other = (
        rl_training.train(settings(algo, env_for(algo), tmp_path, seed=seed)).run_dir for seed in (3, 3, 4)
    )
    assert_same_state(state_of(first), state_of(again))
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(first / name) == rows(again / name)
        assert rows(first / name)
    assert rows(first / "metrics.jsonl") != rows(other / "metrics.jsonl")


class Interrupt(rl_training.Callback):
    """Stops a run in the middle, as something that is to be resumed."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= self.at:
            trainer.interrupt("the test")


def assert_resumes_exactly(config: dict[str, Any]) -> Path:
    """A run that was stopped in the middle ends where one that was not has ended, in everything."""
    whole = rl_training.train(config).run_dir
    stopped = rl_training.train(config, callbacks=[Interrupt(64)])
    assert stopped.status == "interrupted"
    assert stopped.metrics["global_step"] < 128
    resumed = rl_training.resume(stopped.run_dir)

    assert resumed.run_dir == stopped.run_dir
    metadata = json.loads((resumed.run_dir / "metadata.json").read_text())
    assert metadata["status"] == "completed"
    assert metadata["resumes"][-1]["grade"] == "exact", metadata["resumes"]
    expected, actual = state_of(whole), state_of(resumed.run_dir)
    expected["callbacks"].pop("Interrupt", None)
    actual["callbacks"].pop("Interrupt", None)
    assert_same_state(expected, actual)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(whole / name) == rows(resumed.run_dir / name)
    return whole


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "normalised"])
def test_resume_equals_never_having_stopped(algo: str, normalize: bool, tmp_path: Path) -> None:
    # Replayed rewards must not change their meaning, so only on-policy algorithms normalise them.
    on_policy = registry.algorithm(algo).family == "on-policy"
    options = {"normalize_obs": normalize, "normalize_reward": normalize and on_policy}
    assert_resumes_exactly(settings(algo, env_for(algo), tmp_path, env=options))


PIPELINED: dict[str, dict[str, Any]] = {
    "ppo": {},
    "recurrent_ppo": {},
    "dqn": {"train_every": 1, "exploration_repeats": True},
    "td3": {"exploration_noise": "ou", "n_step": 3},
}
"""One of each kind is enough: what collects does not know the algorithm."""


@pytest.mark.parametrize("algo", PIPELINED)
def test_resume_of_pipelined_collection_equals_never_having_stopped(algo: str, tmp_path: Path) -> None:
    on_policy = registry.algorithm(algo).family == "on-policy"
    options = {"normalize_obs": True, "normalize_reward": on_policy}
    config = settings(algo, env_for(algo), tmp_path, env=options, collection="pipelined")
    config["hyperparams"] |= PIPELINED[algo]
    state = state_of(assert_resumes_exactly(config))
    assert state["collector"]["ahead"]["lag"] == 1


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_several_learners_resume_as_one_does_or_are_refused(algo: str, tmp_path: Path) -> None:
    entry = registry.algorithm(algo)
    options = {"normalize_obs": True, "normalize_reward": entry.family == "on-policy"}
    config = settings(algo, env_for(algo), tmp_path, env=options, learners=2)
    if entry.family != "on-policy" or entry.cls.alone_only:
        with pytest.raises(ConfigError, match=f"learners: .*{entry.cls.alone_only or 'on-policy'}"):
            rl_training.train(config)
        assert not list(tmp_path.iterdir())
        return
    state = state_of(assert_resumes_exactly(config))
    assert state["learners"].keys() == {"1"}
    assert not same_bits(state["learners"]["1"]["generators"]["actions"], state["generators"]["actions"])
    assert float(state["policy"]["normalizer.count"]) == state["trainer"]["global_step"] == 128


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_saving_and_evaluating_do_not_touch_training(algo: str, tmp_path: Path) -> None:
    often = settings(algo, env_for(algo), tmp_path)
    never = {**often, "checkpoint": {"every_steps": 0}, "evaluation": {"every_steps": 0}}
    first, second = (state_of(rl_training.train(config).run_dir) for config in (often, never))
    assert {"policy", "optimizers", "generators", "envs", "trainer"} <= first.keys()
    for component in first.keys() - {"clock", "callbacks"}:  # and the buffer, critics, …, where there are any
        assert_same_state(first[component], second[component], component)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_save_and_load_give_the_same_agent(algo: str, tmp_path: Path) -> None:
    cls = registry.algorithm(algo).cls
    agent = cls(settings(algo, env_for(algo), tmp_path)).learn()
    agent.save(tmp_path / "agent")
    again = cls.load(tmp_path / "agent")
    space = agent.session.spec.observation_space
    space.seed(0)
    observations = np.stack([space.sample() for _ in range(20)])
    expected, _ = agent.predict(observations)
    actual, _ = again.predict(observations)
    np.testing.assert_array_equal(expected, actual)
    single, _ = again.predict(observations[0])
    if np.issubdtype(expected.dtype, np.integer):
        np.testing.assert_array_equal(single, expected[0])
    else:  # a single row may be added up in another order than one of many
        np.testing.assert_allclose(single, expected[0], rtol=1e-5)
    assert agent.evaluate(num_episodes=3)["returns"] == again.evaluate(num_episodes=3)["returns"]
    shown = torch.as_tensor(observations)
    if again.policy.initial_state(20) is None:  # then evaluations ask for actions alone
        played = again.policy.act(shown, deterministic=True).actions
        assert torch.equal(again.policy.decide(shown).actions, played)
    resumed = rl_training.resume(tmp_path / "agent", total_timesteps=256, output_dir=str(tmp_path))
    assert resumed.metrics["global_step"] == 256
    assert resumed.run_dir.parent == tmp_path


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        (algo, env_id)
        for algo in ALGORITHMS
        for env_id in [
            *(ENV_OF_ACTIONS[kind] for kind in registry.algorithm(algo).actions),
            *(ENV_OF_OBSERVATIONS.values() if "Discrete" in registry.algorithm(algo).actions else ()),
        ]
    ],
)
def test_every_supported_space_trains_and_every_parameter_gets_a_gradient(
    algo: str, env_id: str, tmp_path: Path
) -> None:
    agent = registry.algorithm(algo).cls(settings(algo, env_id, tmp_path, total_timesteps=64))
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.learn()
    unchanged = [name for name, value in agent.policy.named_parameters() if torch.equal(value, before[name])]
    assert not unchanged
    result = agent.evaluate(num_episodes=3)
    assert len(result["returns"]) == 3
    assert result["checkpoint"] is not None


class Algorithms(rl_training.Callback):
    """Keeps the algorithm of a run."""

    def on_train_end(self, trainer: Any) -> None:
        self.algorithm = trainer.algorithm


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_weights_do_not_remember_how_they_were_computed(algo: str, tmp_path: Path) -> None:
    """A target network that follows with gradients drags along the graph of every update there ever was."""
    kept = Algorithms()
    rl_training.train(settings(algo, env_for(algo), tmp_path, total_timesteps=128), callbacks=[kept])
    networks = [kept.algorithm.policy, *kept.algorithm.networks.values()]
    assert kept.algorithm.num_updates > 0 or kept.algorithm.family == "on-policy"
    assert all(weight.grad_fn is None for network in networks for weight in network.parameters())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_unsupported_actions_are_refused_before_anything_is_built(algo: str, tmp_path: Path) -> None:
    unsupported = set(ENV_OF_ACTIONS) - set(registry.algorithm(algo).actions)
    for kind in unsupported:
        with pytest.raises(ConfigError, match=f"does not support {kind} actions"):
            rl_training.train(settings(algo, ENV_OF_ACTIONS[kind], tmp_path))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_init_from_takes_the_weights_and_nothing_else(algo: str, tmp_path: Path) -> None:
    source = rl_training.train(settings(algo, env_for(algo), tmp_path, seed=1))
    seen: dict[str, Any] = {}

    class Look(rl_training.Callback):
        def on_train_start(self, trainer: Any) -> None:
            seen["step"] = trainer.global_step
            seen["policy"] = {k: v.clone() for k, v in trainer.algorithm.policy.state_dict().items()}
            seen["optimizers"] = trainer.algorithm.state_dict()["optimizers"]

    config = settings(algo, env_for(algo), tmp_path, seed=2)
    rl_training.train(config, init_from=source.checkpoint_path, callbacks=[Look()])
    assert seen["step"] == 0
    assert all(not state for state in seen["optimizers"].values())
    assert_same_state(seen["policy"], state_of(source.run_dir)["policy"])


HINDSIGHT = {
    "dqn": "axiom/BitFlip-v0",
    "n_step_dqn": "axiom/BitFlip-v0",
    "sac": "axiom/PointGoal-v0",
    "td3": "axiom/PointGoal-v0",
}


def hindsight(algo: str, env_id: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    config = settings(algo, env_id, tmp_path, **more)
    return {**config, "hyperparams": {**config["hyperparams"], "her": "episode"}}


@pytest.mark.parametrize("algo", HINDSIGHT)
def test_resume_with_hindsight_equals_never_having_stopped(algo: str, tmp_path: Path) -> None:
    config = hindsight(algo, HINDSIGHT[algo], tmp_path, env={"reward_scale": 0.5})
    whole = rl_training.train(config).run_dir

    class StopInTheMiddle(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            if trainer.global_step >= 88:  # the ring of 51 slots has wrapped around in the end
                trainer.interrupt("the test")

    resumed = rl_training.resume(rl_training.train(config, callbacks=[StopInTheMiddle()]).run_dir)
    metadata = json.loads((resumed.run_dir / "metadata.json").read_text())
    assert metadata["resumes"][-1]["grade"] == "exact", metadata["resumes"]
    expected, actual = state_of(whole), state_of(resumed.run_dir)
    for component in ("policy", "optimizers", "generators", "buffer", "collector", "envs"):
        assert_same_state(expected[component], actual[component], component)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(whole / name) == rows(resumed.run_dir / name)
    assert "rollout/success_rate" in rows(whole / "metrics.jsonl")[-1]
    assert len(rows(whole / "evaluations.jsonl")[-1]["successes"]) == 2


OFF_POLICY = [algo for algo in ALGORITHMS if registry.algorithm(algo).family == "off-policy"]


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_hindsight_works_or_is_refused_before_anything_is_built(algo: str, tmp_path: Path) -> None:
    env_id = "axiom/BitFlip-v0" if "Discrete" in registry.algorithm(algo).actions else "axiom/PointGoal-v0"
    if registry.algorithm(algo).fixed.get("prioritized"):
        with pytest.raises(ConfigError, match=r"hyperparams\.her: 'episode' cannot be combined with .*prior"):
            rl_training.train(hindsight(algo, env_id, tmp_path))
    else:
        short = {"total_timesteps": 32, "evaluation": {"every_steps": 0}}
        result = rl_training.train(hindsight(algo, env_id, tmp_path / "runs", **short))
        assert result.metrics["train/updates"] > 0
    with pytest.raises(ConfigError, match=r"hyperparams\.her: "):
        rl_training.train(hindsight(algo, env_for(algo), tmp_path / "none"))
    assert not (tmp_path / "none").exists()
