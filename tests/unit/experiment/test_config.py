"""Configuration: layers and their origins, every mistake at once, and the pitfalls of YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_training import TrainConfig, load_config, registry
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.assembly import resolve_config
from rl_training.errors import ConfigError
from rl_training.experiment import yaml
from rl_training.experiment.config import EvaluationConfig, leaves, to_dict
from rl_training.experiment.layers import Layer, file_layers, preset_layers, replace, resolve_layers
from rl_training.experiment.presets import preset_names

SOURCE = Path(yaml.__file__).parents[1]
MINIMAL = "algo: ppo\nenv_id: CartPole-v1\nseed: 7\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return caught.value.problems


def test_a_file_with_algo_env_and_seed_is_complete(tmp_path: Path) -> None:
    config = load_config(written(tmp_path / "c.yaml", MINIMAL))
    assert (config.algo, config.env_id, config.seed) == ("ppo", "CartPole-v1", 7)
    assert config.hyperparams == PPOConfig()
    assert config == TrainConfig(algo="ppo", env_id="CartPole-v1", seed=7)


def test_later_layers_win_and_every_value_remembers_its_origin(tmp_path: Path) -> None:
    base = written(tmp_path / "base.yaml", "num_envs: 2\nhyperparams:\n  gamma: 0.5\n  ent_coef: 0.25\n")
    top = written(
        tmp_path / "top.yaml", "preset: ppo/cartpole\ninclude: base.yaml\nhyperparams: {gamma: 0.75}\n"
    )
    resolved = resolve_layers([*file_layers(top), Layer("keyword", {"seed": 9})])
    config, origins = resolved.config, resolved.origins
    assert (config.env_id, config.num_envs, config.seed) == ("CartPole-v1", 2, 9)
    assert (config.hyperparams.gamma, config.hyperparams.ent_coef) == (0.75, 0.25)
    assert resolved.preset == "ppo/cartpole"
    assert origins[("env_id",)] == "preset ppo/cartpole"
    assert origins[("num_envs",)] == f"{base}:1"
    assert origins[("hyperparams", "ent_coef")] == f"{base}:4"
    assert origins[("hyperparams", "gamma")] == f"{top}:3"
    assert origins[("seed",)] == "keyword"
    assert ("device",) not in origins


def test_an_include_that_includes_itself_is_an_error(tmp_path: Path) -> None:
    written(tmp_path / "a.yaml", "include: b.yaml\n" + MINIMAL)
    written(tmp_path / "b.yaml", "include: a.yaml\n")
    assert "includes itself" in problems_of(tmp_path / "a.yaml")[0]


def test_an_included_file_that_is_missing_is_named_with_who_includes_it(tmp_path: Path) -> None:
    top = written(tmp_path / "top.yaml", "include: middle.yaml\n")
    middle = written(tmp_path / "middle.yaml", "seed: 3\ninclude: nix.yaml\n")
    missing = f"{tmp_path / 'nix.yaml'}: cannot be read: No such file or directory"
    assert problems_of(middle) == [f"{middle}:2: include: {missing}"]
    assert problems_of(top) == [f"{top}:1: include: {middle}:2: include: {missing}"]


def test_all_mistakes_are_reported_at_once_with_place_key_and_nearest_choice(tmp_path: Path) -> None:
    text = """algo: ppo
env_id: CartPole-v1
num_env: 4
seed: -1
on_nan: rise
env:
  backend: synk
  frame_skp: 2
evaluation: {episodes: ten}
hyperparams:
  learning_rat: 1e-3
  gamma: 1.5
"""
    path = written(tmp_path / "bad.yaml", text)
    problems = problems_of(path)
    expected = {
        f"{path}:3: num_env: unknown key; did you mean 'num_envs'?",
        f"{path}:4: seed: must be greater than or equal to 0, got -1",
        f"{path}:5: on_nan: expected 'raise' or 'skip-update', got 'rise'; did you mean 'raise'?",
        f"{path}:7: env.backend: ",
        f"{path}:8: env.frame_skp: unknown key; did you mean 'frame_skip'?",
        f"{path}:9: evaluation.episodes: expected a whole number, got 'ten'",
        f"{path}:11: hyperparams.learning_rat: unknown key; did you mean 'learning_rate'?",
        f"{path}:12: hyperparams.gamma: must be less than or equal to 1, got 1.5",
    }
    assert len(problems) == len(expected)
    for start in expected:
        assert any(problem.startswith(start) for problem in problems), (start, problems)


def test_keys_with_dots_in_a_file_are_told_how_to_be_written(tmp_path: Path) -> None:
    """Their line is the user's, also where a preset has the same key in its section."""
    text = """preset: ppo/cartpole
env.backend: native
hyperparams.gamma: 0.9
env:
  frame_skip: 1
env_kwargs.sutton_barto_reward: true
num_env: 4
seed.x: 1
gama.x: 2
"""
    path = written(tmp_path / "dots.yaml", text)
    inside = "a section's keys stand inside it: write"
    expected = [
        f"{path}:2: env.backend: {inside} `env: {{backend: native}}`",
        f"{path}:3: hyperparams.gamma: {inside} `hyperparams: {{gamma: 0.9}}`",
        f"{path}:6: env_kwargs.sutton_barto_reward: {inside} `env_kwargs: {{sutton_barto_reward: true}}`",
        f"{path}:7: num_env: unknown key; did you mean 'num_envs'?",
        f"{path}:8: seed.x: unknown key; did you mean 'seed'?",
        f"{path}:9: gama.x: unknown key; known keys: algo, env_id, ",
    ]
    problems = problems_of(path)
    assert problems[:5] == expected[:5]
    assert problems[5].startswith(expected[5])
    assert len(problems) == 6
    top = written(tmp_path / "top.yaml", "include: middle.yaml\n")
    middle = written(tmp_path / "middle.yaml", MINIMAL + "evaluation.episodes: 3\n")
    assert problems_of(top) == [f"{middle}:4: evaluation.episodes: {inside} `evaluation: {{episodes: 3}}`"]


def test_arguments_of_an_env_may_have_dots_in_their_names(tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", MINIMAL + "env_kwargs: {env.backend: 1}\n")
    assert load_config(path).env_kwargs == {"env.backend": 1}


def test_missing_and_unknown_names(tmp_path: Path) -> None:
    assert problems_of(written(tmp_path / "a.yaml", "seed: 1\n")) == [
        "algo: required, but not given",
        "env_id: required, but not given",
    ]
    path = written(tmp_path / "b.yaml", "algo: pp0\nenv_id: x\n")
    assert problems_of(path)[0].startswith(f"{path}:1: algo: unknown algorithm 'pp0'; did you mean 'ppo'?")
    path = written(tmp_path / "c.yaml", "preset: ppo/cartpol\n")
    assert "did you mean 'ppo/cartpole'?" in problems_of(path)[0]


def test_what_is_impossible_only_in_combination_names_its_place_and_comes_with_the_rest(
    tmp_path: Path,
) -> None:
    text = MINIMAL + "num_envs: 1\nhyperparams:\n  num_steps: 5\n  num_minibatches: 2\ntags: 3\n"
    problems = problems_of(written(tmp_path / "c.yaml", text))
    assert len(problems) == 2
    divides = [p for p in problems if "does not divide" in p]
    assert divides[0].startswith(f"{tmp_path / 'c.yaml'}:7: hyperparams.num_minibatches: 2 does not divide")
    text = MINIMAL + "evaluation: {every_steps: 0}\nstopping: {target_return: 1}\n"
    assert "needs evaluations" in problems_of(written(tmp_path / "d.yaml", text))[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("1e-3", 1e-3), ("1E+2", 100.0), (".5e1", 5.0), ("0.1", 0.1), ("1", 1.0)],
)
def test_numbers_as_people_write_them(text: str, value: float, tmp_path: Path) -> None:
    config = load_config(written(tmp_path / "c.yaml", MINIMAL + f"hyperparams: {{learning_rate: {text}}}\n"))
    assert config.hyperparams.learning_rate == value
    assert isinstance(config.hyperparams.learning_rate, float)


def test_whole_numbers_in_scientific_notation(tmp_path: Path) -> None:
    config = load_config(written(tmp_path / "c.yaml", MINIMAL + "total_timesteps: 1e6\n"))
    assert config.total_timesteps == 1_000_000
    assert type(config.total_timesteps) is int


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("num_envs: true", "num_envs"),
        ("num_envs: '4'", "num_envs"),
        ("num_envs: 4.5", "num_envs"),
        ("num_envs: null", "num_envs"),
        ("num_envs: [4]", "num_envs"),
        ("total_timesteps: .inf", "total_timesteps"),
        ("hyperparams: {gamma: '0.9'}", "hyperparams.gamma"),
        ("hyperparams: {gamma: true}", "hyperparams.gamma"),
        ("hyperparams: {learning_rate: .nan}", "hyperparams.learning_rate"),
        ("hyperparams: {learning_rate: 0}", "hyperparams.learning_rate"),
        ("hyperparams: {normalize_advantages: 1}", "hyperparams.normalize_advantages"),
        ("hyperparams: {normalize_advantages: 'yes'}", "hyperparams.normalize_advantages"),
        ("hyperparams: 3", "hyperparams"),
        ("env: 3", "env"),
        ("env_kwargs: [1]", "env_kwargs"),
        ("tags: abc", "tags"),
        ("seed: -1", "seed"),
        ("stopping: {target_return: true}", "stopping.target_return"),
        ("stopping: {target_return: '5'}", "stopping.target_return"),
        ("network: {hidden: [64, -1]}", "network.hidden"),
        ("network: {activation: tanhh}", "network.activation"),
        ("env: {resize: [84]}", "env.resize"),
        ("device: gpu", "device"),
        ("deterministic: sometimes", "deterministic"),
    ],
)
def test_wrong_values_are_refused_by_key(line: str, key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", MINIMAL + line + "\n")
    problems = problems_of(path)
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:4: {key}: "), problems


def test_a_fixed_field_of_an_id_cannot_be_contradicted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = registry.algorithm("ppo")
    entry = registry.AlgorithmEntry(
        "ppo_raw", PPO, "core", plain.actions, "a variant", {"normalize_advantages": False}
    )
    monkeypatch.setitem(registry._ALGORITHMS, "ppo_raw", entry)
    text = "algo: ppo_raw\nenv_id: CartPole-v1\n"
    assert load_config(written(tmp_path / "a.yaml", text)).hyperparams.normalize_advantages is False
    path = written(tmp_path / "b.yaml", text + "hyperparams: {normalize_advantages: true}\n")
    assert problems_of(path)[0].startswith(f"{path}:3: hyperparams.normalize_advantages: True contradicts")
    for given in ({"normalize_advantages": True}, PPOConfig(normalize_advantages=True)):
        with pytest.raises(ConfigError, match="contradicts the algorithm 'ppo_raw'"):
            TrainConfig(algo="ppo_raw", env_id="CartPole-v1", hyperparams=given)


def test_direct_construction_is_judged_like_a_file() -> None:
    with pytest.raises(ConfigError, match=r"num_env: unknown key; did you mean 'num_envs'\?"):
        TrainConfig(algo="ppo", env_id="x", num_env=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="expected a whole number, got True"):
        TrainConfig(algo="ppo", env_id="x", seed=True)
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        TrainConfig(algo="ppoo", env_id="x")
    with pytest.raises(ConfigError, match="does not divide"):
        TrainConfig(algo="ppo", env_id="x", num_envs=1, hyperparams={"num_steps": 3})
    with pytest.raises(ConfigError, match=r"hyperparams\.gama: unknown key; did you mean 'gamma'"):
        TrainConfig(algo="ppo", env_id="x", hyperparams={"gama": 3})
    with pytest.raises(ConfigError, match="total_timesteps: must be greater than 0, got -5"):
        replace(TrainConfig(algo="ppo", env_id="x"), total_timesteps=-5)
    with pytest.raises(AttributeError):
        TrainConfig(algo="ppo", env_id="x").seed = 3  # type: ignore[misc]


def test_keywords_reach_the_config_and_the_algorithms_own_section(tmp_path: Path) -> None:
    config = resolve_config(
        None, {"env_id": "x", "learning_rate": 0.125, "evaluation": EvaluationConfig(episodes=3)}, "ppo"
    ).config
    assert config.hyperparams.learning_rate == 0.125
    assert config.evaluation == EvaluationConfig(episodes=3)
    both = {"env_id": "x", "hyperparams": PPOConfig(gamma=0.5), "learning_rate": 0.125}
    hyperparams = resolve_config(None, both, "ppo").config.hyperparams
    assert (hyperparams.gamma, hyperparams.learning_rate) == (0.5, 0.125)
    mapping = {"algo": "ppo", "env_id": "x", "hyperparams": PPOConfig(gamma=0.5)}
    assert resolve_config(mapping, {}).config.hyperparams.gamma == 0.5
    with pytest.raises(ConfigError, match=r"'learning_rat': unknown; did you mean 'learning_rate'\?"):
        resolve_config(None, {"env_id": "x", "learning_rat": 1}, "ppo")
    path = written(tmp_path / "c.yaml", MINIMAL)
    assert load_config(path, learning_rate=0.125, seed=1).hyperparams.learning_rate == 0.125
    with pytest.raises(ConfigError, match=r"expected a TrainConfig, a mapping or a path, got int"):
        resolve_config(3, {})


def test_a_file_given_as_a_preset_is_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "best.yaml", MINIMAL)
    with pytest.raises(ConfigError) as caught:
        preset_layers(str(path))
    assert caught.value.problems == [
        f"unknown preset {str(path)!r}. That is a file: use --config (in a study: `config`)."
    ]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_the_way_through_yaml_and_json(name: str) -> None:
    config = resolve_layers(preset_layers(name)).config
    document = yaml.load_text(yaml.dump(to_dict(config)), "again")
    assert resolve_layers([Layer("again", document.data)]).config == config
    assert resolve_layers([Layer("json", json.loads(json.dumps(to_dict(config))))]).config == config


def test_awkward_values_survive_the_way_through_yaml() -> None:
    config = TrainConfig(
        algo="ppo",
        env_id="x",
        tags=("3e-4", "1e5", "yes", "null", "010", "2020-01-01", "a: b", "é", "", "1_000", "'q'"),
        env_kwargs={"name": "1E6", "deep": {"list": [1, 2.5, None, True, "on"], "empty": {}}, "tiny": 1e-12},
        total_timesteps=10**15,
        hyperparams={"learning_rate": 1e-5, "adam_eps": 1e-20},
    )
    document = yaml.load_text(yaml.dump(to_dict(config)), "again")
    assert resolve_layers([Layer("again", document.data)]).config == config


@pytest.mark.parametrize("section", [TrainConfig, PPOConfig])
def test_no_field_that_nothing_reads(section: type[Any]) -> None:
    """Every leaf is read as an attribute somewhere outside the class that defines it."""
    definitions = {"config.py", "schema.py"}
    texts = [
        f.read_text() for f in SOURCE.rglob("*.py") if f.name not in definitions or f.parent.name == "cli"
    ]
    unread = [".".join(path) for path, f, _ in leaves(section) if not any(f".{f.name}" in t for t in texts)]
    assert unread == []


def test_another_algorithm_than_a_preset_is_for_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text("preset: ppo/cartpole\nalgo: dqn\n")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "mixed.yaml")
    (problem,) = caught.value.problems
    assert problem.startswith(
        f"{tmp_path / 'mixed.yaml'}:2: algo: 'dqn', but preset ppo/cartpole is for 'ppo' and"
    )
    assert "num_steps, num_minibatches" in problem
    assert problem.endswith("; there is a preset dqn/cartpole")
    (tmp_path / "variant.yaml").write_text("preset: dqn/acrobot\nalgo: dueling_dqn\n")
    assert load_config(tmp_path / "variant.yaml").algo == "dueling_dqn"  # which knows all of its keys
