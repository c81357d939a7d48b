"""The Python API, as the documentation shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rl_training
from rl_training import DQN, PPO, TrainConfig, evaluate, load, load_config, resume, train
from rl_training.errors import AxiomError, CheckpointError, ConfigError, EnvError
from rl_training.experiment.checkpoint import read_checkpoint, write_checkpoint
from rl_training.experiment.layers import replace

SMALL: dict[str, Any] = {
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 1,
    "num_envs": 2,
    "total_timesteps": 64,
    "network": {"hidden": [8]},
    "evaluation": {"every_steps": 32, "episodes": 2, "num_envs": 2},
    "logging": {"every_steps": 32, "tensorboard": False},
}


def agent(tmp_path: Path, env_id: str = "CartPole-v1", **more: Any) -> PPO:
    return PPO(env_id=env_id, output_dir=str(tmp_path), **{**SMALL, **more})


def weights(algorithm: Any) -> list[torch.Tensor]:
    return [value.clone() for value in algorithm.policy.state_dict().values()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_importing_the_package_does_not_import_torch() -> None:
    code = (
        "import sys, rl_training; from rl_training import TrainConfig, load_config, register_encoder;"
        "from rl_training.experiment.presets import preset_names; preset_names();"
        "bad = [m for m in ('torch', 'gymnasium', 'numpy') if m in sys.modules]; assert not bad, bad;"
        "assert 'train' in dir(rl_training);"
        "assert not hasattr(rl_training, 'nothing_of_the_kind');"
        "from rl_training import PPO; assert 'torch' in sys.modules;"
        "assert not hasattr(rl_training, 'Nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_give_busy_cores_away_unless_the_user_has_said_how_they_wait(
    given: dict[str, str], kept: str | None
) -> None:
    waiting = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in waiting} | given
    code = "import os, rl_training; print(os.environ.get('GOMP_SPINCOUNT'))"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(kept)


def test_train_writes_a_run_and_says_what_came_out(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="ppo", env_id="CartPole-v1", num_envs=2, total_timesteps=64, output_dir=str(tmp_path),
        hyperparams={"num_steps": 16}, evaluation=SMALL["evaluation"],
    )  # fmt: skip
    result = train(config)
    assert result.metrics["global_step"] == 64
    assert result.run_dir.parent == tmp_path
    saved = load_config(result.run_dir / "config.yaml")
    assert saved.env.backend == "sync"  # what `auto` stood for is kept
    assert replace(saved, env={"backend": "auto"}) == config
    played = evaluate(result.run_dir, num_episodes=3, which="latest")
    assert played.keys() == {
        "return_mean", "return_std", "length_mean", "num_episodes", "returns", "lengths", "seeds",
        "deterministic", "checkpoint",
    }  # fmt: skip
    assert played["checkpoint"] == str(result.checkpoint_path)
    assert played["num_episodes"] == 3 == len(played["returns"])
    assert played["return_mean"] == pytest.approx(np.mean(played["returns"]))
    assert played == evaluate(result.run_dir, num_episodes=3, which="latest")
    assert played["returns"] == result.algorithm.evaluate(num_episodes=3)["returns"]
    assert played["seeds"] != evaluate(result.run_dir, num_episodes=3, seed=1)["seeds"]
    assert resume(result.run_dir, total_timesteps=96).metrics["global_step"] == 96


def test_keywords_presets_files_and_sections_all_lead_to_the_same_place(tmp_path: Path) -> None:
    algorithm = agent(tmp_path, learning_rate=1e-3, seed=3, env={"normalize_obs": True})
    assert algorithm.session.config.hyperparams.learning_rate == 1e-3
    assert algorithm.session.config.env.normalize_obs
    assert PPO(preset="ppo/cartpole", gamma=0.5).session.config.hyperparams.gamma == 0.5
    file = tmp_path / "c.yaml"
    file.write_text("algo: ppo\nenv_id: CartPole-v1\nseed: 4\n")
    # The automatic choice of a backend is made when the run is described, and kept.
    expected = load_config(str(file), seed=5, env={"backend": "sync"})
    assert PPO(file, seed=5).session.config == expected
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        PPO(env_id="CartPole-v1", learning_rat=1e-3)
    with pytest.raises(ConfigError, match="env_id: required"):
        PPO(seed=3)
    with pytest.raises(ConfigError, match="unknown env 'CartPol-v1'; did you mean 'CartPole-v1'"):
        PPO(env_id="CartPol-v1")


def test_learn_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = agent(tmp_path, total_timesteps=128).learn()
    halves = agent(tmp_path, total_timesteps=64).learn()
    run_dir = halves.session.run_dir
    assert halves.learn(total_timesteps=128) is halves
    assert halves.session.run_dir == run_dir
    assert equal(weights(whole), weights(halves))
    with pytest.raises(AxiomError, match="already at step 128"):
        halves.learn()
    with pytest.raises(ConfigError, match="total_timesteps: must be greater than 0, got -1"):
        halves.learn(total_timesteps=-1)


def test_a_loaded_agent_goes_on_in_a_run_of_its_own(tmp_path: Path) -> None:
    whole = agent(tmp_path, total_timesteps=128).learn()
    first = agent(tmp_path, total_timesteps=64).learn()
    run_dir = first.session.run_dir
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    latest = run_dir / "checkpoints" / "step_64"
    loaded = PPO.load(latest)
    loaded.learn(total_timesteps=128)
    assert loaded.session.run_dir != run_dir
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before
    assert equal(weights(whole), weights(loaded))
    assert loaded.evaluate(1)["checkpoint"] == str(loaded.session.run_dir / "checkpoints" / "step_128")
    with pytest.raises(AxiomError, match="already at step 64 of 64"):
        PPO.load(latest).learn()


def test_callbacks_are_called_by_learn(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watch(rl_training.Callback):
        def on_update(self, trainer: Any) -> None:
            seen.append(trainer.global_step)

    agent(tmp_path).learn(callbacks=Watch())
    assert seen == [32, 64]


def test_save_and_load_anywhere(tmp_path: Path) -> None:
    trained = agent(tmp_path).learn()
    trained.save(tmp_path / "new" / "folder" / "a")
    shutil.copytree(tmp_path / "new" / "folder" / "a", tmp_path / "b")
    again = PPO.load(tmp_path / "b")
    assert equal(weights(trained), weights(again))
    assert load(tmp_path / "b").evaluate(2)["returns"] == trained.evaluate(2)["returns"]
    with torch.no_grad():
        next(again.policy.parameters()).add_(1.0)
    again.save(tmp_path / "c")  # what is saved is the agent as it is, not as it was read
    assert equal(weights(again), weights(PPO.load(tmp_path / "c")))
    bare = agent(tmp_path)
    bare.save(tmp_path / "bare")
    with pytest.raises(CheckpointError, match="no training state"):
        resume(tmp_path / "bare")
    learner = DQN(
        env_id="CartPole-v1", total_timesteps=64, num_envs=2, learning_starts=8,
        output_dir=str(tmp_path / "dqn"), evaluation={"every_steps": 0},
    ).learn()  # fmt: skip
    learner.save(tmp_path / "light", include_buffer=False)
    with pytest.raises(CheckpointError, match=r"light: was saved without its replay buffer.*--init-from"):
        resume(tmp_path / "light", total_timesteps=128)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data.csv").write_text("1,2")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
        bare.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "data.csv").read_text() == "1,2"


class Line(gymnasium.Env[Any, Any]):
    """A user's own env, not registered anywhere."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), float(action), self.steps == 5, False, {}


def test_a_users_env_from_a_function(tmp_path: Path) -> None:
    trained = PPO(env=Line, output_dir=str(tmp_path), **SMALL).learn()
    assert "ppo__Line__seed0__" in trained.session.run_dir.name
    assert trained.evaluate(3)["lengths"] == [5, 5, 5]
    again = PPO.load(trained.session.run_dir, env=Line)
    assert (
        again.evaluate(3)["returns"] == evaluate(trained.session.run_dir, env=Line, num_episodes=3)["returns"]
    )
    assert resume(trained.session.run_dir, env=Line, total_timesteps=96).metrics["global_step"] == 96
    with pytest.raises(AxiomError, match="unknown env 'Line'"):
        resume(trained.session.run_dir, total_timesteps=128)
    assert json.loads((trained.session.run_dir / "metadata.json").read_text())["status"] == "completed"
    with pytest.raises(EnvError, match=r"observation space is .* the agent was built for"):
        PPO.load(trained.session.run_dir, env=lambda: gymnasium.make("CartPole-v1")).evaluate(1)


def test_a_users_ready_made_env(tmp_path: Path) -> None:
    options = {key: value for key, value in SMALL.items() if key != "num_envs"}
    env = gymnasium.make("CartPole-v1")
    trained = PPO(env=env, output_dir=str(tmp_path), **options).learn()
    assert trained.session.config.num_envs == 1
    assert trained.session.config.env_id == "CartPole-v1"
    assert len(trained.evaluate(3)["returns"]) == 3
    lonely = PPO(env=Line(), output_dir=str(tmp_path / "lonely"), **options)
    with pytest.raises(EnvError, match="cannot be copied"):
        lonely.learn()  # it is in use by training when it would be needed for evaluation
    assert not (tmp_path / "lonely").exists()
    blind = PPO(env=Line(), output_dir=str(tmp_path), **{**options, "evaluation": {"every_steps": 0}}).learn()
    assert blind.evaluate(2)["lengths"] == [5, 5]
    with pytest.raises(EnvError, match="cannot serve 4 envs"):
        PPO(env=gymnasium.make("CartPole-v1"), num_envs=4, output_dir=str(tmp_path)).learn()


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", "axiom/Identity-v0", "axiom/DictObs-v0", "axiom/Masked-v0", "axiom/MultiDiscrete-v0",
     "axiom/MultiBinary-v0", "axiom/IdentityBox-v0"],
)  # fmt: skip
def test_predict_takes_one_or_many(env_id: str, tmp_path: Path) -> None:
    algorithm = agent(tmp_path, env_id)
    spec = algorithm.session.spec
    space, actions = spec.observation_space, spec.action_space
    space.seed(0)
    many = [space.sample() for _ in range(5)]
    stacked = (
        {key: np.stack([each[key] for each in many]) for key in many[0]}
        if isinstance(many[0], dict)
        else np.stack(many)
    )
    batch, state = algorithm.predict(stacked)
    assert state is None
    assert len(batch) == 5
    for obs, row in zip(many, batch, strict=True):
        single, _ = algorithm.predict(obs)
        np.testing.assert_allclose(single, row, rtol=1e-5)
        assert actions.contains(single), single
    draws = [algorithm.predict(stacked, deterministic=False)[0] for _ in range(20)]
    assert any(not np.array_equal(draws[0], other) for other in draws)


def test_predict_respects_masks_and_does_without_them(tmp_path: Path) -> None:
    algorithm = agent(tmp_path, "axiom/Masked-v0")
    for allowed in range(4):
        mask = np.eye(4, dtype=np.int8)[allowed]
        assert algorithm.predict({"obs": 2, "action_mask": mask})[0] == allowed
    everything = np.ones(4, np.int8)
    unmasked = algorithm.predict({"obs": 2, "action_mask": everything})[0]
    assert algorithm.predict(2)[0] == algorithm.predict({"obs": 2})[0] == unmasked
    assert algorithm.predict(np.array([2, 2]))[0].tolist() == [unmasked] * 2
    several = PPO(
        env_id="axiom/MultiDiscrete-v0", env_kwargs={"masked": True}, output_dir=str(tmp_path), **SMALL
    )
    masks = (np.array([0, 1, 0]), np.array([0, 0, 0, 1]))
    assert several.predict({"obs": [0, 0], "action_mask": masks})[0].tolist() == [1, 3]


@pytest.mark.parametrize(
    ("env_id", "obs", "message"),
    [
        ("CartPole-v1", np.zeros(3), r"expected shape \(4,\) \(or a batch of them\), got shape \(3,\)"),
        ("CartPole-v1", np.zeros((2, 3, 4)), "expected shape"),
        ("CartPole-v1", {"obs": np.zeros(4)}, "expected shape"),
        ("axiom/DictObs-v0", np.zeros(4), "expected a mapping with image, vector"),
        ("axiom/DictObs-v0", {"image": np.zeros((36, 36, 1))}, "'vector' is missing"),
        ("axiom/DictObs-v0", {"image": np.zeros((36, 36, 1)), "vector": np.zeros((1, 2))}, "some are not"),
    ],
)
def test_observations_that_do_not_fit_are_explained(
    env_id: str, obs: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(EnvError, match=message):
        agent(tmp_path, env_id).predict(obs)


def test_what_reset_returns_is_not_yet_an_observation(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    message = r"reset\(\) returns \(observation, info\), of which the first item is meant"
    with pytest.raises(EnvError, match=message):
        agent(tmp_path).predict(env.reset())  # type: ignore[arg-type]


def test_an_env_that_an_agent_was_not_built_for_is_refused_by_its_own_name(tmp_path: Path) -> None:
    agent(tmp_path).save(tmp_path / "saved")
    with pytest.raises(EnvError, match=r"env Pendulum-v1: its observation space is .* agent was built for"):
        PPO.load(tmp_path / "saved", env=gymnasium.make("Pendulum-v1"))
    loaded = PPO.load(tmp_path / "saved", env=gymnasium.make("CartPole-v1"))
    assert loaded.evaluate(1)["num_episodes"] == 1


def test_loading_an_agent_leaves_the_users_env_alone(tmp_path: Path) -> None:
    agent(tmp_path).save(tmp_path / "saved")
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=3)
    other = gymnasium.make("CartPole-v1")
    other.reset(seed=3)
    loaded = PPO.load(tmp_path / "saved", env=env)
    action, _ = loaded.predict(obs)
    assert np.array_equal(env.step(action)[0], other.step(action)[0])
    assert np.array_equal(env.reset()[0], other.reset()[0])


def test_an_agent_of_batched_envs_can_be_tried_in_an_env_of_ones_own(tmp_path: Path) -> None:
    agent(tmp_path, env={"backend": "batched"}).save(tmp_path / "saved")
    loaded = PPO.load(tmp_path / "saved", env=lambda: gymnasium.make("CartPole-v1"))
    assert loaded.evaluate(1)["num_episodes"] == 1


def test_the_id_of_an_env_or_the_name_of_a_preset_is_not_a_file(tmp_path: Path) -> None:
    for start in (PPO, train):
        with pytest.raises(ConfigError, match="a preset's name goes in as preset='ppo/cartpole'"):
            rl_training.train("ppo/cartpole")
        with pytest.raises(ConfigError, match="an env's id goes in as env_id='CartPole-v1'"):
            start("CartPole-v1")
        with pytest.raises(ConfigError, match="a preset's name goes in as preset='ppo/cartpole'"):
            start("ppo/cartpole")
        with pytest.raises(ConfigError, match=r"cartpole.yaml: cannot be read"):
            start("cartpole.yaml")


@pytest.mark.parametrize(
    ("env_id", "precision", "warned"),
    [
        ("CartPole-v1", "bf16", "precision: bf16 has no effect: there is no image encoder"),
        ("CartPole-v1", "tf32", "precision: tf32 has no effect on a cpu"),
        ("CartPole-v1", "fp32", None),
        ("axiom/DictObs-v0", "bf16", None),
    ],
)
def test_a_precision_without_effect_is_warned_about_once(
    env_id: str, precision: str, warned: str | None, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    learner = agent(tmp_path, env_id, precision=precision, device="cpu").learn()
    said = [str(warning.message) for warning in recwarn if "precision" in str(warning.message)]
    assert len(said) == (warned is not None)
    assert warned is None or said[0].startswith(warned)
    recwarn.clear()
    load(learner.session.run_dir, device="cpu")  # only training was to be faster
    assert not [warning for warning in recwarn if "precision" in str(warning.message)]


def test_plain_lists_and_other_dtypes_are_observations_too(tmp_path: Path) -> None:
    algorithm = agent(tmp_path)
    values = [0.1, -0.2, 0.3, 0.0]
    expected = algorithm.predict(np.array(values, np.float32))[0]
    assert algorithm.predict(values)[0] == expected  # type: ignore[arg-type]
    assert algorithm.predict(np.array(values, np.float64))[0] == expected
    assert algorithm.predict(np.zeros(4, np.int64))[0] in (0, 1)


def test_a_checkpoint_cannot_make_us_import_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = agent(tmp_path).learn().session.source
    read = read_checkpoint(saved)
    config = replace(read.config, env_id="canary_module:CartPole-v1")
    evil = write_checkpoint(tmp_path / "evil", read.state, config=config, spec=read.spec, step=read.step)
    (tmp_path / "canary_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for use in (load, evaluate, resume):
        with pytest.raises(CheckpointError, match="would import the module 'canary_module'"):
            use(evil)
    assert "canary_module" not in sys.modules
    assert load(evil, env=lambda: gymnasium.make("CartPole-v1")).evaluate(1)["num_episodes"] == 1


def test_weights_that_do_not_fit_are_a_readable_error(tmp_path: Path) -> None:
    source = agent(tmp_path).learn().session.source
    fit = "its weights do not fit this configuration"
    refused: dict[str, dict[str, Any]] = {
        rf"{fit}: network.hidden was \[8\], not \[9\]": {"network": {"hidden": [9]}},
        rf"{fit}: network.hidden was \[8\], not null$": {"network": {}},
        rf"{fit}: env axiom/Identity-v0: its observation space is Discrete.* the agent was built for Box": {
            "env_id": "axiom/Identity-v0"
        },
        "holds a PPO agent, not DQN": {"algo": "dqn"},
        rf"{fit}: .*Missing key.*normalizer": {"env": {"normalize_obs": True}},
    }
    for reason, change in refused.items():
        given = {"env_id": "CartPole-v1", "algo": "ppo", "network": SMALL["network"], **change}
        with pytest.raises(CheckpointError, match=rf"step_64: {reason}") as caught:
            train(**given, output_dir=str(tmp_path), init_from=source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "problem"), [(0, "at least 1, got 0"), (1.5, "whole number, got 1.5"), ("2", "got '2'")]
)
def test_episodes_are_counted_in_whole_numbers(number: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"num_episodes: must be .*{problem}"):
        agent(tmp_path).evaluate(number)


def test_a_video_shows_the_episodes(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason='pip install "axiomrl[video]"')
    source = agent(tmp_path, "axiom/Identity-v0").learn().session.source
    result = evaluate(source, num_episodes=2, video=tmp_path / "v.mp4")
    assert result["lengths"] == [16, 16]
    assert (tmp_path / "v.mp4").stat().st_size > 500
