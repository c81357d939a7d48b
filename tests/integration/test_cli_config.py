"""From arguments to a configuration: spelling, types, layers and where each value comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rl_training import TrainConfig, load_config
from rl_training.cli import main
from rl_training.cli.options import config_options
from rl_training.experiment.config import to_dict

BASE = ["config", "--algo", "ppo", "--env-id", "Pendulum-v1"]


@pytest.fixture
def resolve(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*argv: str) -> Any:
        assert main([*argv, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--hyperparams.learning-rate", "1e-3"], "hyperparams.learning_rate", 1e-3),
        (["--hyperparams.learning_rate=1e-3"], "hyperparams.learning_rate", 1e-3),
        (["--hyperparams.target-kl", "0.02"], "hyperparams.target_kl", 0.02),
        (["--hyperparams.target-kl", "None"], "hyperparams.target_kl", None),
        (["--total-timesteps", "1e6"], "total_timesteps", 1_000_000),
        (["--total_timesteps", "20_000"], "total_timesteps", 20_000),
        (["--network.log-std-init", "-1e-3"], "network.log_std_init", -1e-3),
        (["--network.log-std-init=-2"], "network.log_std_init", -2.0),
        (["--env.normalize-obs"], "env.normalize_obs", True),
        (["--env.normalize-obs", "true"], "env.normalize_obs", True),
        (["--env.normalize-obs", "--no-env.normalize-obs"], "env.normalize_obs", False),
        (["--no-deterministic"], "deterministic", False),
        (["--deterministic", "auto"], "deterministic", "auto"),
        (["--network.hidden", "64", "32"], "network.hidden", [64, 32]),
        (["--network.hidden", "64"], "network.hidden", [64]),
        (["--network.hidden", "[64, 32]"], "network.hidden", [64, 32]),
        (["--network.hidden", "[]"], "network.hidden", []),
        (["--network.hidden", "8", "--network.hidden", "null"], "network.hidden", None),
        (["--env.resize", "84", "84"], "env.resize", [84, 84]),
        (["--tags", "a", "2"], "tags", ["a", "2"]),
        (["--tags", "[a, 2]"], "tags", ["a", "2"]),
        (["--output-dir", "2024"], "output_dir", "2024"),
        (["--env-kwargs", "{g: 9.8}"], "env_kwargs", {"g": 9.8}),
        (["--env-kwargs.g", "9.8"], "env_kwargs", {"g": 9.8}),
        (["--env-kwargs", "{g: 1, a: x}", "--env_kwargs.my-key=[1, 2]", "--env-kwargs.g", "2"], "env_kwargs",
         {"g": 2, "a": "x", "my_key": [1, 2]}),
        (["--seed", "1", "--seed", "2"], "seed", 2),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)  # fmt: skip
def test_spelling_and_types(argv: list[str], path: str, value: Any, resolve: Any) -> None:
    found = resolve(*BASE, *argv)
    for step in path.split("."):
        found = found[step]
    assert found == value
    assert type(found) is type(value)


def test_every_field_is_an_option(resolve: Any) -> None:
    def paths(data: dict[str, Any], at: str = "") -> set[str]:
        nested = {k: v for k, v in data.items() if isinstance(v, dict) and v}
        found = {f"{at}{key}" for key in data if key not in nested}
        return found.union(*(paths(v, f"{at}{k}.") for k, v in nested.items()))

    from rl_training import registry

    options = config_options(registry.algorithm("ppo"))
    assert {".".join(option.path) for option in options.values()} == paths(resolve(*BASE))
    assert all(option.doc for option in options.values())


class TestLayers:
    def test_explain_names_every_origin(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "my.yaml"
        file.write_text("preset: ppo/cartpole\nnum_envs: 6\nhyperparams:\n  gamma: 0.9\n")
        assert main(["config", "--config", str(file), "--seed", "5", "--env-kwargs.a", "1", "--explain"]) == 0
        out = capsys.readouterr().out
        origins = {text.strip(): origin for text, origin in re.findall(r"^(.+?) +# (.+)$", out, re.MULTILINE)}
        assert origins["seed: 5"] == origins["a: 1"] == "command line"
        assert origins["num_envs: 6"] == f"{file}:2"
        assert origins["gamma: 0.9"] == f"{file}:4"
        assert origins["env_id: CartPole-v1"] == origins["num_steps: 32"] == "preset ppo/cartpole"
        assert origins["threads: 1"] == origins["adam_eps: 1.0e-05"] == "default"
        assert len({line.rindex("# ") for line in out.splitlines() if "# " in line}) == 1  # aligned
        again = tmp_path / "again.yaml"
        again.write_text(out)
        assert load_config(again) == load_config(file, seed=5, env_kwargs={"a": 1})

    def test_explain_as_json(self, resolve: Any) -> None:
        found = resolve("config", "--preset", "ppo/cartpole", "--explain", "--num-envs", "16")
        assert found["num_envs"] == {"value": 16, "origin": "command line"}
        assert found["hyperparams"]["gamma"] == {"value": 0.98, "origin": "preset ppo/cartpole"}
        assert found["env_kwargs"] == {"value": {}, "origin": "default"}

    def test_a_file_stands_on_the_preset_and_the_command_line_on_both(
        self, tmp_path: Path, resolve: Any
    ) -> None:
        file = tmp_path / "my.yaml"
        file.write_text("num_envs: 4\nseed: 1\n")
        found = resolve("config", "--preset", "ppo/cartpole", "--config", str(file), "--seed", "2")
        assert (found["algo"], found["num_envs"], found["seed"]) == ("ppo", 4, 2)
        assert found["hyperparams"]["num_steps"] == 32

    def test_yaml_is_what_a_run_saves_and_reads_back(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(BASE) == 0
        (tmp_path / "c.yaml").write_text(capsys.readouterr().out)
        expected = TrainConfig(algo="ppo", env_id="Pendulum-v1")
        assert to_dict(load_config(tmp_path / "c.yaml")) == to_dict(expected)


class TestHelp:
    def test_with_an_algorithm_it_shows_every_field(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("COLUMNS", "110")
        assert main(["train", "--preset", "ppo/cartpole", "--seed", "9", "--help"]) == 0
        out = capsys.readouterr().out
        assert "\nhyperparams:\n" in out
        flat = " ".join(out.split())
        assert (
            "--hyperparams.learning-rate NUMBER The optimiser's step size. "
            "[0.001, from preset ppo/cartpole; default: 0.0003]" in flat
        )
        assert "--hyperparams.gamma NUMBER Discount factor." in flat  # documented in the family's class
        assert "--network.hidden INT ...|null" in flat
        assert "--env.backend auto|sync|async|native" in flat
        assert "[9, from command line; default: 0]" in flat
        assert all(len(line) <= 110 for line in out.splitlines())

    def test_without_one_it_says_how_to_see_the_rest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--help"]) == 0
        out = capsys.readouterr().out
        assert "--total-timesteps INT" in out
        assert "--env.backend" not in out
        assert "axiomrl train --algo ppo --help" in out
