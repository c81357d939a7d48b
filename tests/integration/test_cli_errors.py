"""Bad input is answered in words on stderr, with exit code 2 and an empty stdout; never by a traceback."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import registry
from rl_training.cli import main

CARTPOLE = ["train", "--algo", "ppo", "--env-id", "CartPole-v1"]
Refused = Callable[..., list[str]]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Refused:
    """Calls the command line, checks that it refuses properly, and gives the problems it names."""

    def call(*argv: str, code: int = 2) -> list[str]:
        output = ["--output-dir", str(tmp_path / "out")] if argv[0] == "train" else []
        assert main([*argv, *output]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        assert "pydantic" not in err
        assert err.startswith("error: ")
        assert not (tmp_path / "out").exists()  # nothing was begun
        lines = err.strip().splitlines()
        if not lines[0].endswith("problems:"):
            return [err.strip().removeprefix("error: ")]
        assert lines[0] == f"error: {len(lines) - 1} problems:"
        return [line.removeprefix("  - ") for line in lines[1:]]

    return call


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--algo", "pppo"], "command line: algo: unknown algorithm 'pppo'; did you mean 'ppo'?"),
        (["--env-id", "CartPol-v1"], "unknown env 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["--env-id", "CartPole-v7"], "did you mean 'CartPole-v1'?"),
        (["--preset", "ppo/cartpol"], "unknown preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (["--hyperparams.learning-rat", "1e-3"],
         "--hyperparams.learning-rat: unknown option; did you mean --hyperparams.learning-rate?"),
        (["--learning-rate", "1e-3"],
         "command line: --learning-rate: unknown option; did you mean --hyperparams.learning-rate or "
         "--intrinsic.learning-rate?"),
        (["--lr", "1e-3"],
         "--lr: unknown option; did you mean --hyperparams.learning-rate or --intrinsic.learning-rate?"),
        (["--hyperparams.lr", "3"],
         "--hyperparams.lr: unknown option; did you mean --hyperparams.learning-rate?"),
        (["--hyperparams.n-steps", "3"], "did you mean --hyperparams.num-steps?"),
        (["--hyperparams.n_epochs", "3"], "did you mean --hyperparams.update-epochs?"),
        (["--algo", "dqn", "--hyperparams.n-steps", "3"], "did you mean --hyperparams.n-step?"),
        (["--hyperparams.seed", "3"], "did you mean --seed?"),
        (["--hyperparams.xyz", "3"], "--hyperparams.xyz: unknown option; `axiomrl train --help` shows"),
        (["--jsn"], "command line: --jsn: unknown option; did you mean --json?"),
        (["--device", "gpu"], "command line: device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["--device", "cuda:99"], "device: 'cuda:99' is not available"),
        (["--num-envs", "many"], "command line: num_envs: expected a whole number, got 'many'"),
        (["--num-envs", "1.5"], "command line: num_envs: "),
        (["--total-timesteps", "-5"], "command line: total_timesteps: must be greater than 0, got -5"),
        (["--env.normalize-obs", "2"], "command line: env.normalize_obs: expected true or false, got 2"),
        (["--network.activation", "rleu"], "got 'rleu'; did you mean 'relu'?"),
        (["--hyperparams.num-minibatches", "7"],
         "command line: hyperparams.num_minibatches: 7 does not divide the batch of num_steps"),
        (["--env-kwargs.gravity", "3"], "env_kwargs.gravity: env CartPole-v1 takes no such argument"),
        (["--env-kwargs", "5"], "command line: env_kwargs: must be a valid dictionary, got 5"),
        (["--network.encoder", "mpl"], "unknown encoder 'mpl'; did you mean 'mlp'?"),
        (["--seed"], "command line: --seed: needs a value (INT)"),
        (["stray"], "command line: 'stray': unexpected argument"),
        (["--config", "/nowhere/x.yaml"], "/nowhere/x.yaml: cannot be read: No such file or directory"),
        (["--init-from", "/nowhere"], "/nowhere: no such run or checkpoint"),
        (["--import", "no_such_module"], "--import no_such_module: no such module"),
        (["--jobs", "2"], "--jobs needs --seeds"),
        (["--eval-episodes", "20"], "--eval-episodes needs --seeds"),
        (["--tot", "5"], "command line: --tot: unknown option"),  # no guessing from a beginning
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_one_mistake(argv: list[str], words: str, refused: Refused) -> None:
    (problem,) = refused(*CARTPOLE, *argv)
    assert words in problem


def test_all_mistakes_of_file_and_command_line_at_once(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: -5\nhyperparams:\n  learning_rat: 1e-3\n"
        "evalution: {episodes: 3}\n"
    )
    mistakes = {
        f"{file}:3: total_timesteps: must be greater than 0, got -5",
        f"{file}:5: hyperparams.learning_rat: unknown key; did you mean 'learning_rate'?",
        f"{file}:6: evalution: unknown key; did you mean 'evaluation'?",
    }
    assert set(refused("train", "--config", str(file), "--json")) == mistakes
    more = ["--sed", "3", "--num-envs", "0", "--hyperparams.gama", "0.9", "--logging.csv=maybe"]
    assert set(refused("train", "--config", str(file), *more)) == mistakes | {
        "command line: num_envs: must be greater than 0, got 0",
        "command line: logging.csv: expected true or false, got 'maybe'",
        "command line: --sed: unknown option; did you mean --seed?",
        "command line: --hyperparams.gama: unknown option; did you mean --hyperparams.gamma?",
    }


def test_impossible_combinations_are_reported_with_the_rest(refused: Refused) -> None:
    problems = refused(*CARTPOLE, "--num-envs", "3", "--hyperparams.num-steps", "5", "--threads", "-1")
    assert problems[0] == "command line: threads: must be greater than or equal to 0, got -1"
    assert problems[1].startswith("hyperparams.num_minibatches: 4 does not divide the batch of num_steps")
    assert problems[1].endswith("= 15")


def test_nothing_or_half_chosen(refused: Refused) -> None:
    (problem,) = refused("train")
    assert problem.startswith("nothing chosen: give --preset NAME, --config FILE, or --algo")
    assert refused("train", "--algo", "ppo") == ["env_id: required, but not given"]
    assert refused("config", "--env-id", "CartPole-v1") == ["algo: required, but not given"]


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_a_replay_buffer_larger_than_the_memory(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    argv = ["train", "--algo", algo, "--env-id", env_id, "--hyperparams.buffer-size", "1000000000000"]
    assert main([*argv, "--output-dir", str(tmp_path), "--quiet"]) == 2
    words = (
        r"error: hyperparams\.buffer_size: needs [\d.]+ GiB of memory, [\d.]+ GiB are free; choose a smaller"
    )
    assert re.match(words, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_an_output_directory_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([*CARTPOLE, "--output-dir", str(tmp_path / "file" / "runs")]) == 2
    assert "error: output_dir: cannot create a run in" in capsys.readouterr().err


def test_a_preset_whose_extra_is_missing(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)  # importing it fails
    (problem,) = refused("train", "--preset", "ppo/lunar-lander")
    assert problem == 'env LunarLander-v3 needs an optional dependency: pip install "axiomrl[box2d]"'


class Odd(gymnasium.Env[Any, Any]):
    """Breaks one rule at a time."""

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        if flaw == "space":
            self.observation_space = spaces.Text(5)  # type: ignore[assignment]

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return np.zeros(3 if self.flaw == "shape" else 2, np.float32), {}

    def step(self, action: Any) -> Any:
        obs = np.zeros(2, np.float32)
        return (obs, 0.0, False, {}) if self.flaw == "old" else (obs, 0.0, False, False, {})


@pytest.fixture
def odd() -> Iterator[None]:
    gymnasium.register("Odd-v0", entry_point=Odd)
    gymnasium.register("Fine-v0", entry_point=Odd, max_episode_steps=20)
    yield
    del gymnasium.registry["Odd-v0"], gymnasium.registry["Fine-v0"]


FLAWS = {
    "shape": "observation from reset() has shape (3,); the space says (2,)",
    "old": "step() returned 4 items",
    "space": "observation_space is a Text space",
}


@pytest.mark.usefixtures("odd")
class TestEnvs:
    @pytest.mark.parametrize("flaw", FLAWS)
    def test_a_broken_env_is_found_before_step_one(self, flaw: str, refused: Refused) -> None:
        (problem,) = refused("train", "--algo", "ppo", "--env-id", "Odd-v0", "--env-kwargs.flaw", flaw)
        assert "env Odd-v0 cannot be trained on:" in problem
        assert FLAWS[flaw] in problem

    @pytest.mark.parametrize("flaw", FLAWS)
    def test_check_env_says_the_same(self, flaw: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check-env", "Odd-v0", "--env-kwargs", f"{{flaw: {flaw}}}"]) == 1
        out = capsys.readouterr().out
        assert out.startswith("Odd-v0: cannot be trained on\n")
        assert f"  - error: {FLAWS[flaw]}" in out

    def test_check_env_of_a_good_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check-env", "Fine-v0"]) == 0
        assert capsys.readouterr().out == "Fine-v0: nothing to complain about\n"
        assert main(["check-env", "Odd-v0"]) == 0  # a warning forbids nothing
        assert "can be trained on\n  - warning: no time limit is known" in capsys.readouterr().out
        assert main(["check-env", "Pendulum-v1", "--env-kwargs.g", "9.8", "--json"]) == 0
        assert '"ok": true, "findings": []' in capsys.readouterr().out

    def test_check_env_of_what_does_not_exist(self, refused: Refused) -> None:
        assert "did you mean 'CartPole-v1'" in refused("check-env", "CartPol-v1")[0]
        assert "unknown option" in refused("check-env", "Odd-v0", "--sed", "1")[0]

    def test_actions_the_algorithm_cannot_take(
        self, refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        narrow = dataclasses.replace(registry.algorithm("ppo"), id="narrow", actions=("Box",))
        monkeypatch.setitem(registry._ALGORITHMS, "narrow", narrow)
        (problem,) = refused("train", "--algo", "narrow", "--env-id", "Odd-v0")
        assert "'narrow' does not support Discrete actions, only Box; algorithms that do: " in problem


class TestOtherCommands:
    def test_unknown_command(self, refused: Refused) -> None:
        assert "unknown command 'trian'; did you mean 'train'?" in refused("trian")[0]

    def test_zoo_without_a_word(self, refused: Refused) -> None:
        for argv in (["zoo"], ["zoo", "--output-format", "csv"]):
            (problem,) = refused(*argv)
            assert "give one of list, show, commands, run, verify, or directories of runs" in problem
            assert problem.endswith("`axiomrl zoo --help` shows how it is used.")

    def test_options_of_commands(self, refused: Refused) -> None:
        assert refused("eval", "--checkpoin", "x", "--jsn") == [
            "command line: --checkpoin: unknown option; did you mean --checkpoint?",
            "command line: --jsn: unknown option; did you mean --json?",
        ]
        assert "the following arguments are required: --checkpoint" in refused("eval", "--json")[0]
        assert (
            "expected a whole number of at least 1, got '0'"
            in refused("eval", "--checkpoint", "x", "--num-episodes", "0")[0]
        )
        assert (
            "expected a whole number of at least 1, got '-4'"
            in refused("resume", "--checkpoint", "x", "--total-timesteps", "-4")[0]
        )
        assert "unexpected argument" in refused("doctor", "now")[0]
        assert "cannot be combined" in refused("eval", "--checkpoint", "x", "--render", "--video", "v.mp4")[0]

    def test_paths_that_are_no_runs(self, tmp_path: Path, refused: Refused) -> None:
        assert "nope: no such run or checkpoint" in refused("eval", "--checkpoint", str(tmp_path / "nope"))[0]
        assert "neither a run directory" in refused("resume", "--checkpoint", str(tmp_path), "--json")[0]

    def test_what_nobody_foresaw_is_traced(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError("no")

        monkeypatch.setattr("rl_training.cli.doctor.examine", fail)
        assert main(["doctor"]) == 1
        assert "RuntimeError: no" in capsys.readouterr().err

    def test_interrupted_by_the_keyboard(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("rl_training.cli.doctor.examine", interrupt)
        assert main(["doctor"]) == 130
        assert capsys.readouterr() == ("", "interrupted\n")
