"""Every command does what its help says: what it writes, prints and answers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

import rl_training
from rl_training.cli import COMMANDS, main
from rl_training.envs.seeding import episode_seed
from rl_training.envs.toy import Guess

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(rl_training.__file__).parents[1])}
TINY = [
    "--total-timesteps", "256", "--num-envs", "2", "--hyperparams.num-steps", "64",
    "--no-logging.tensorboard", "--hyperparams.update-epochs", "1", "--evaluation.episodes", "2",
]  # fmt: skip
CARTPOLE = ["--algo", "ppo", "--env-id", "CartPole-v1", *TINY]
EVALUATION_KEYS = {"return_mean", "return_std", "returns", "lengths", "num_episodes", "checkpoint"}


def shell(*argv: str, cwd: Path | None = None, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    start = ["-c", code] if code else ["-m", "rl_training.cli"]
    return subprocess.run(
        [sys.executable, *start, *argv], capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=300
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    assert main(["train", *CARTPOLE, "--seed", "7", "--output-dir", str(output), "--quiet"]) == 0
    return next(output.iterdir())


def only_run(output: Path) -> Path:
    (found,) = output.iterdir()
    return found


def read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def assert_completed(run: Path) -> None:
    metadata = read_json(run / "metadata.json")
    total = yaml.safe_load((run / "config.yaml").read_text())["total_timesteps"]
    assert (metadata["status"], metadata["stop_reason"]) == ("completed", None)
    assert metadata["latest_checkpoint"] == f"checkpoints/step_{total}"


class TestTrain:
    def test_json_is_all_of_stdout(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", *CARTPOLE, "--output-dir", str(tmp_path), "--json"]) == 0
        out, err = capsys.readouterr()
        result = json.loads(out)
        run = only_run(tmp_path)
        assert set(result) == {
            "run_dir", "checkpoint", "best_checkpoint", "global_step", "metrics", "status", "stop_reason",
        }  # fmt: skip
        assert result["run_dir"] == str(run)
        assert result["checkpoint"] == str(run / "checkpoints" / "step_256")
        assert Path(result["best_checkpoint"], "manifest.json").is_file()
        assert (result["global_step"], result["metrics"]["global_step"]) == (256, 256)
        assert (result["status"], result["stop_reason"]) == ("completed", None)
        assert "run directory" in err  # the summary is for people, so it goes beside

    def test_quiet_prints_the_run_directory_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["train", *CARTPOLE, "--output-dir", str(tmp_path), "--quiet"]) == 0
        assert capsys.readouterr() == (f"{only_run(tmp_path)}\n", "")

    def test_summary_names_the_run_whole_and_the_next_commands(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / ("long" * 25)
        assert main(["train", *CARTPOLE, "--output-dir", str(output)]) == 0
        out, err = capsys.readouterr()
        run = str(only_run(output))
        assert [line.split()[-1] for line in out.splitlines() if line.startswith("run directory")] == [run]
        assert f"axiomrl eval --checkpoint {run} --num-episodes 20\n" in out
        assert f"axiomrl report {run}\n" in out
        assert f"axiomrl resume --checkpoint {run} --total-timesteps 512\n" in out
        assert re.search(r"^latest speed +[\d,]+ steps/s", out, re.MULTILINE)
        assert "evaluation" in err  # progress

    @pytest.mark.parametrize(("env_id", "imports"), [("Mine-v0", ["--import", "mine"]), ("mine:Mine-v0", [])])
    def test_the_next_commands_import_what_the_run_needs(
        self, env_id: str, imports: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "mine.py").write_text(CHATTY.replace("Chatty-v0", "Mine-v0"))
        argv = ["train", "--algo", "ppo", "--env-id", env_id, *imports, *TINY, "--output-dir", "out"]
        done = shell(*argv, cwd=tmp_path)
        lines = done.stdout.partition("\nnext\n")[2].splitlines()
        commands = [shlex.split(line)[1:] for line in lines if line.startswith("  axiomrl")]
        assert [words[0] for words in commands] == ["eval", "report", "resume"], done.stderr
        for words in commands:
            assert shell(*words, cwd=tmp_path).returncode == 0

    @pytest.mark.parametrize("more", [[], ["--json"], ["--quiet"]], ids=["summary", "json", "quiet"])
    def test_a_pipe_whose_reader_leaves_ends_no_training(self, more: list[str], tmp_path: Path) -> None:
        argv = ["train", *CARTPOLE, "--output-dir", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training.cli", *argv, *more],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        try:
            assert process.wait(300) == 0
        finally:
            process.kill()
        assert_completed(only_run(tmp_path))

    @pytest.mark.parametrize("backend", ["sync", "async"])
    def test_an_env_may_talk_to_nobody(self, backend: str, tmp_path: Path) -> None:
        talking = CHATTY.replace('"hello from python"', '"hello", flush=True').partition("        os.write")
        (tmp_path / "my_envs.py").write_text(talking[0] + talking[2].partition("\n")[2])
        argv = ["train", "--algo", "ppo", "--env-id", "my_envs:Chatty-v0", "--import", "my_envs", *TINY]
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training.cli", *argv, "--env.backend", backend, "--output-dir", "out"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT, cwd=tmp_path,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        try:
            assert process.wait(300) == 0
        finally:
            process.kill()
        assert_completed(only_run(tmp_path / "out"))

    def test_a_terminal_that_is_gone_ends_no_training(self, tmp_path: Path) -> None:
        ours, theirs = os.openpty()
        argv = ["train", *CARTPOLE, "--total-timesteps", "8192", "--evaluation.every-steps", "256"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training.cli", *argv, "--output-dir", str(tmp_path)],
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True, env=ENVIRONMENT,
        )  # fmt: skip
        os.close(theirs)
        assert os.read(ours, 1)  # the bar is up
        os.close(ours)
        try:
            assert process.wait(300) == 0
        finally:
            process.kill()
        assert_completed(only_run(tmp_path))

    def test_overrides_reach_the_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        extra = [
            "--seed",
            "3",
            "--seed=4",
            "--network.hidden",
            "8",
            "--env.normalize-obs",
            "--tags",
            "a",
            "1",
        ]
        assert main(["train", *CARTPOLE, *extra, "--output-dir", str(tmp_path), "--quiet"]) == 0
        config = yaml.safe_load((only_run(tmp_path) / "config.yaml").read_text())
        assert (config["seed"], config["network"]["hidden"], config["tags"]) == (4, [8], ["a", "1"])
        assert config["env"]["normalize_obs"] is True
        assert config["logging"]["tensorboard"] is False

    def test_init_from_takes_the_weights(
        self, tmp_path: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        frozen = ["--hyperparams.learning-rate", "1e-30"]
        argv = ["train", *CARTPOLE, *frozen, "--output-dir", str(tmp_path), "--json"]
        assert main([*argv, "--init-from", str(run_dir)]) == 0
        given = rl_training.load(run_dir).policy.state_dict()
        kept = rl_training.load(json.loads(capsys.readouterr().out)["checkpoint"]).policy.state_dict()
        assert all(value.equal(kept[name]) for name, value in given.items())

    def test_as_a_module_with_a_file_and_chatter_from_an_imported_env(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "my_envs.py").write_text(CHATTY)
        (tmp_path / "my.yaml").write_text("algo: ppo\nenv_id: my_envs:Chatty-v0\nseed: 2\n")
        argv = ["train", "--config", "my.yaml", *TINY, "--output-dir", "out"]
        refused = shell(*argv, cwd=tmp_path)
        assert refused.returncode == 2
        assert "my.yaml:2: env_id: 'my_envs:Chatty-v0' imports code; allow it with --import my_envs" in (
            refused.stderr
        )
        done = shell(*argv, "--import", "my_envs", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)  # nothing but JSON, although the env prints from Python and from C
        assert "hello from python" in done.stderr
        assert "hello from C" in done.stderr
        saved = [
            "eval",
            "--checkpoint",
            str(tmp_path / result["checkpoint"]),
            "--num-episodes",
            "1",
            "--json",
        ]
        assert main(saved) == 2  # a checkpoint may not import code either
        assert "--import my_envs" in capsys.readouterr().err
        played = shell(*saved, "--import", "my_envs", cwd=tmp_path)
        assert json.loads(played.stdout)["num_episodes"] == 1, played.stderr


CHATTY = """
import os
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Chatty(CartPoleEnv):
    def reset(self, **kwargs):
        print("hello from python")
        os.write(1, b"hello from C\\n")
        return super().reset(**kwargs)

gymnasium.register("Chatty-v0", entry_point=Chatty, max_episode_steps=50)
"""


class TestEval:
    def test_json(self, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        argv = ["eval", "--checkpoint", str(run_dir), "--num-episodes", "3", "--seed", "5", "--json"]
        assert main(argv) == 0
        result = json.loads(capsys.readouterr().out)
        assert set(result) >= EVALUATION_KEYS
        assert (result["num_episodes"], len(result["returns"]), len(result["lengths"])) == (3, 3, 3)
        assert result["return_mean"] == pytest.approx(sum(result["returns"]) / 3)
        assert result["returns"] == [float(length) for length in result["lengths"]]  # CartPole pays 1 a step
        assert main(argv) == 0
        assert json.loads(capsys.readouterr().out) == result  # the seed decides which episodes

    def test_which_picks_the_checkpoint(self, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        metadata = read_json(run_dir / "metadata.json")
        for which in ("best", "latest"):
            main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "1", "--which", which, "--json"])
            chosen = json.loads(capsys.readouterr().out)["checkpoint"]
            assert chosen == str(run_dir / metadata[f"{which}_checkpoint"])

    def test_table_and_stochastic(self, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        argv = ["eval", "--checkpoint", str(run_dir), "--num-episodes", "8", "--seed", "1"]
        assert main([*argv, "--json"]) == 0
        likeliest = json.loads(capsys.readouterr().out)
        assert main([*argv, "--stochastic"]) == 0
        out = capsys.readouterr().out
        assert "episodes         8\n" in out
        assert f"{likeliest['return_mean']:.2f} ± {likeliest['return_std']:.2f}" not in out

    def test_actions_are_chosen_as_in_the_evaluations_of_training(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = {"total_timesteps": 256, "evaluation": {"deterministic": False}}
        result = rl_training.train(preset="ppo/cartpole", **config, output_dir=str(tmp_path))
        argv = ["eval", "--checkpoint", str(result.run_dir), "--num-episodes", "8", "--seed", "1", "--json"]
        returns = []
        for more in ([], ["--stochastic"], ["--deterministic"]):
            assert main([*argv, *more]) == 0
            returns.append(json.loads(capsys.readouterr().out)["returns"])
        assert returns[0] == returns[1]
        assert returns[0] != returns[2]
        assert result.algorithm.evaluate(8, seed=1)["returns"] == returns[0]
        assert result.algorithm.evaluate(8, seed=1, deterministic=True)["returns"] == returns[2]

    def test_success_rate_of_an_env_with_goals(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        argv = ["--preset", "dqn/bit-flip", "--total-timesteps", "64", "--env-kwargs.n-bits", "1"]
        assert main(["train", *argv, "--output-dir", str(tmp_path), "--quiet"]) == 0
        run = capsys.readouterr().out.strip()
        assert main(["eval", "--checkpoint", run, "--num-episodes", "4"]) == 0
        # With a single bit there is nothing to learn: every first action reaches the goal.
        assert "success rate     1.000\n" in capsys.readouterr().out
        metrics = read_json(Path(run) / "metadata.json")["latest_metrics"]
        assert metrics["evaluation/success_rate"] == metrics["rollout/success_rate"] == 1.0

    def test_video(self, run_dir: Path, tmp_path: Path) -> None:
        pytest.importorskip("imageio_ffmpeg", reason="extra: video")
        pytest.importorskip("pygame", reason="extra: classic")
        target = tmp_path / "out.mp4"
        argv = ["eval", "--checkpoint", str(run_dir), "--num-episodes", "1", "--video", str(target)]
        assert main(argv) == 0
        assert target.read_bytes()[4:8] == b"ftyp"


class Signaller(Guess):
    """Sends its own process a signal, once, when training is under way."""

    number: signal.Signals | None = None
    times = 1
    steps = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = gymnasium.spaces.Discrete(3)
        self.action_space = gymnasium.spaces.Discrete(3)

    def draw(self) -> Any:
        return int(self.np_random.integers(3))

    def score(self, action: Any) -> float:
        return float(action == self.target)

    def step(self, action: Any) -> Any:
        Signaller.steps += 1
        if Signaller.steps >= 120 and Signaller.number is not None:  # the check before training takes fewer
            number, Signaller.number = Signaller.number, None
            for _ in range(Signaller.times):
                signal.raise_signal(number)
        return super().step(action)


@pytest.fixture
def signaller() -> Iterator[type[Signaller]]:
    """The env, and handlers that keep the test's own process alive whatever happens."""
    before = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}
    gymnasium.register("Signaller-v0", entry_point=Signaller)
    yield Signaller
    Signaller.times = 1
    del gymnasium.registry["Signaller-v0"]
    for number, handler in before.items():
        signal.signal(number, handler)


class TestSignalsAndResume:
    @pytest.mark.parametrize(
        ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138), ("SIGHUP", 129)]
    )
    def test_exit_codes(
        self,
        name: str,
        code: int,
        signaller: type[Signaller],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        signaller.number, signaller.steps = signal.Signals[name], 0
        argv = ["train", "--algo", "ppo", "--env-id", "Signaller-v0", *TINY, "--total-timesteps", "100000"]
        assert main([*argv, "--output-dir", str(tmp_path), "--quiet", "--json"]) == code
        result = json.loads(capsys.readouterr().out)
        assert (result["status"], result["stop_reason"]) == ("interrupted", f"interrupted by {name}")
        assert 120 <= result["global_step"] < 1000
        argv = ["resume", "--checkpoint", result["run_dir"], "--total-timesteps", "1024", "--json"]
        assert main(argv) == 0
        resumed = json.loads(capsys.readouterr().out)
        assert (resumed["run_dir"], resumed["global_step"]) == (result["run_dir"], 1024)
        assert resumed["resumed"]["step"] == result["global_step"]

    def test_a_second_signal_ends_at_once_and_says_what_is_left(
        self, signaller: type[Signaller], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        signaller.number, signaller.steps, signaller.times = signal.SIGTERM, -400, 2
        argv = ["train", "--algo", "ppo", "--env-id", "Signaller-v0", *TINY, "--checkpoint.every-steps", "32"]
        assert main([*argv, "--total-timesteps", "100000", "--output-dir", str(tmp_path), "--quiet"]) == 130
        out, err = capfd.readouterr()
        assert out == ""
        assert "SIGTERM: saving after this iteration; a second signal ends at once\n" in err
        (run,) = tmp_path.iterdir()
        saved = read_json(run / "metadata.json")["latest_checkpoint"].rpartition("/")[2]
        assert err.endswith(
            f"interrupted\nthe run can go on (saved last: {saved}): axiomrl resume --checkpoint {run}\n"
        )

    def test_a_second_hangup_does_not_keep_it_from_saving(
        self, signaller: type[Signaller], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        signaller.number, signaller.steps, signaller.times = signal.SIGHUP, 0, 2
        argv = ["train", "--algo", "ppo", "--env-id", "Signaller-v0", *TINY, "--total-timesteps", "100000"]
        assert main([*argv, "--output-dir", str(tmp_path), "--quiet", "--json"]) == 129
        assert Path(json.loads(capsys.readouterr().out)["checkpoint"], "manifest.json").is_file()

    def test_a_hangup_that_is_ignored_stays_so(
        self, signaller: type[Signaller], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        signaller.number, signaller.steps = signal.SIGHUP, 0
        argv = ["train", "--algo", "ppo", "--env-id", "Signaller-v0", *TINY, "--quiet"]
        assert main([*argv, "--output-dir", str(tmp_path)]) == 0
        assert signaller.number is None  # it was sent
        assert_completed(only_run(tmp_path))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    @pytest.mark.parametrize("saves", [True, False])
    def test_a_run_that_fails_says_how_to_go_on(
        self, saves: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fault = {"fault": "raise", "at": 3, "seed": episode_seed(0, 0, 12)}
        argv = ["train", "--algo", "ppo", "--env-id", "axiom/Fragile-v0", *TINY, "--quiet"]
        argv += ["--env-kwargs", json.dumps(fault), "--checkpoint.every-steps", "32" if saves else "100000"]
        argv += ["--total-timesteps", "100000", "--num-envs", "1", "--output-dir", str(tmp_path)]
        assert main(argv) == 2
        error, note = capsys.readouterr().err.splitlines()
        (run,) = tmp_path.iterdir()
        assert error.startswith("error: env 0 (axiom/Fragile-v0, episode seed ")
        if saves:
            assert re.fullmatch(
                rf"the run can go on \(saved last: step_\d+\): axiomrl resume --checkpoint {run}", note
            )
        else:
            assert note == f"the run {run} had not saved a checkpoint yet"

    def test_a_warning_is_a_message_and_not_a_line_of_code(self, tmp_path: Path) -> None:
        assert main(["train", *CARTPOLE, "--output-dir", str(tmp_path), "--quiet"]) == 0
        run = only_run(tmp_path)
        (run / "metadata.json").unlink()
        command = [sys.executable, "-m", "rl_training.cli", "inspect", str(run)]  # pytest takes ours away
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        assert done.stderr.startswith(f"warning: {run}/metadata.json: not there. Using ")
        assert len(done.stderr.splitlines()) == 1

    def test_a_real_process_that_is_told_to_stop(self, tmp_path: Path) -> None:
        argv = ["train", *CARTPOLE, "--total-timesteps", "10_000_000", "--logging.every-steps", "256"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training.cli", *argv, "--output-dir", str(tmp_path), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        deadline = time.monotonic() + 300
        while not any(path.stat().st_size for path in tmp_path.glob("*/metrics.jsonl")):
            assert time.monotonic() < deadline, "nothing reported yet"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 143, err
        assert json.loads(out)["status"] == "interrupted"
        assert read_json(only_run(tmp_path) / "metadata.json")["status"] == "interrupted"
        assert "axiomrl resume --checkpoint" in err

    def test_resume_says_how_exactly(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", *CARTPOLE, "--output-dir", str(tmp_path), "--quiet"]) == 0
        run = only_run(tmp_path)
        capsys.readouterr()
        assert main(["resume", "--checkpoint", str(run)]) == 2
        assert "already at step 256 of 256" in capsys.readouterr().err
        assert main(["resume", "--checkpoint", str(run), "--total-timesteps", "512"]) == 0
        out, err = capsys.readouterr()
        record = read_json(run / "metadata.json")["resumes"][-1]
        assert (record["step"], record["grade"]) == (256, "exact")
        assert f"resuming at step 256: exact, {record['reason']}" in err
        assert f"at step 256, exact: {record['reason']}" in out
        assert main(["resume", "--checkpoint", str(run), "--total-timesteps", "600", "--quiet"]) == 0
        assert capsys.readouterr() == (f"{run}\n", "")

    def test_extend_schedules(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        linear = ["--hyperparams.learning-rate-schedule", "linear", "--output-dir", str(tmp_path)]
        assert main(["train", *CARTPOLE, *linear]) == 0
        assert "--total-timesteps 512 --extend-schedules\n" in capsys.readouterr().out
        argv = ["resume", "--checkpoint", str(only_run(tmp_path)), "--quiet", "--json", "--total-timesteps"]
        assert main([*argv, "512"]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["train/learning_rate"] == 0.0
        assert main([*argv, "1024", "--extend-schedules"]) == 0
        rate = json.loads(capsys.readouterr().out)["metrics"]["train/learning_rate"]
        assert rate == pytest.approx(3e-4 * (1 - 896 / 1024))

    def test_resume_says_which_schedule_has_nothing_left(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        linear = ["--hyperparams.learning-rate-schedule", "linear", "--output-dir", str(tmp_path), "--quiet"]
        assert main(["train", *CARTPOLE, *linear]) == 0
        argv = ["resume", "--checkpoint", str(only_run(tmp_path)), "--total-timesteps"]
        words = (
            "  learning_rate: its linear schedule reaches 0 at step 256 and stays there; --extend-schedules "
        )
        assert main([*argv, "512"]) == 0
        assert words in capsys.readouterr().err
        assert main([*argv, "1024", "--extend-schedules"]) == 0
        assert "its linear schedule" not in capsys.readouterr().err

    def test_resume_from_an_older_checkpoint_names_what_it_drops(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        saving = ["--checkpoint.every-steps", "64", "--checkpoint.keep-last", "9"]
        saving += ["--evaluation.every-steps", "0", "--quiet"]
        assert main(["train", *CARTPOLE, *saving, "--output-dir", str(tmp_path)]) == 0
        checkpoints = only_run(tmp_path) / "checkpoints"
        assert {path.name for path in checkpoints.iterdir()} == {"step_128", "step_256"}
        argv = ["resume", "--total-timesteps", "384", "--checkpoint"]
        assert main([*argv, str(checkpoints / "step_256")]) == 0
        assert "dropped" not in capsys.readouterr().err
        assert main([*argv, str(checkpoints / "step_128")]) == 0
        assert "  dropped, because newer than step 128: step_256, step_384\n" in capsys.readouterr().err

    def test_resume_leaves_a_run_where_it_is(
        self, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = (run_dir / "config.yaml").read_bytes()
        more = ["--total-timesteps", "384", "--output-dir", str(tmp_path / "elsewhere")]
        for inside in (run_dir, run_dir / "checkpoints" / "step_256"):
            assert main(["resume", "--checkpoint", str(inside), *more]) == 2
            assert f"output_dir: {run_dir} goes on where it is" in capsys.readouterr().err
        assert (run_dir / "config.yaml").read_bytes() == before
        shutil.copytree(run_dir / "checkpoints" / "step_256", tmp_path / "copied")
        assert main(["resume", "--checkpoint", str(tmp_path / "copied"), *more, "--quiet"]) == 0
        assert only_run(tmp_path / "elsewhere").is_dir()


class TestList:
    def test_presets(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "presets", "--json"]) == 0
        presets = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
        assert presets["ppo/cartpole"] == {
            "name": "ppo/cartpole", "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000,
            "extra": None, "installed": True,
        }  # fmt: skip
        assert presets["ppo/lunar-lander"]["extra"] == "box2d"
        assert presets["ppo/hopper"]["extra"] == "mujoco"

    def test_a_preset_that_lacks_its_extra_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("rl_training.cli.listing.is_installed", lambda extra: extra is None)
        assert main(["list", "presets"]) == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert lines["ppo/lunar-lander"].endswith('pip install "axiomrl[box2d]"')
        assert "pip install" not in lines["ppo/cartpole"]

    def test_algorithms(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "algorithms", "--json"]) == 0
        ppo = next(item for item in json.loads(capsys.readouterr().out) if item["id"] == "ppo")
        assert (ppo["family"], ppo["tier"]) == ("on-policy", "core")
        assert ppo["actions"] == ["Discrete", "MultiDiscrete", "MultiBinary", "Box"]
        assert main(["list", "algorithms"]) == 0
        assert "Discrete, MultiDiscrete, MultiBinary, Box" in capsys.readouterr().out

    def test_envs_and_what_they_need(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "envs", "--json"]) == 0
        envs = {item["id"]: item for item in json.loads(capsys.readouterr().out)}
        assert envs["CartPole-v1"] == {
            "id": "CartPole-v1", "group": "classic control", "extra": None, "needs": None,
        }  # fmt: skip
        assert "axiom/Masked-v0" in envs
        assert "Hopper-v2" not in envs  # registered only to say that it is gone
        for env_id, item in envs.items():  # the table that spares an import agrees with Gymnasium
            home = str(gymnasium.registry[env_id].entry_point)
            expected = next((e for e in ("box2d", "mujoco") if home.startswith(f"gymnasium.envs.{e}")), None)
            assert item["extra"] == ("atari" if env_id.startswith("ALE/") else expected), env_id

    def test_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found) == ["algorithms", "presets", "envs"]
        assert main(["list"]) == 0
        out = capsys.readouterr().out
        assert f"envs ({len(found['envs'])})" in out
        assert "classic control: installed" in out

    def test_a_reader_that_leaves_early(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "rl_training.cli", "list", "presets"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


class TestDoctor:
    KEYS = (
        "axiomrl", "python", "os", "torch", "cuda", "cudnn", "devices", "gymnasium", "numpy", "compiler",
        "git", "cpu_cores", "ram", "disk", "extra.atari", "extra.box2d", "extra.mujoco", "extra.video",
    )  # fmt: skip

    def test_lines_and_json_say_the_same(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor"]) == 0
        lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert main(["doctor", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert list(lines) == list(facts)
        assert set(facts) >= set(self.KEYS)
        assert facts["axiomrl"].startswith(f"{rl_training.__version__} ")
        assert "cpu" in facts["devices"]
        assert facts["ram"].endswith("GiB")

    def test_without_git_compiler_extras_or_a_working_torch(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
        monkeypatch.setattr("rl_training.cli.doctor._version", lambda name: None)
        assert main(["doctor"]) == 0
        out = capsys.readouterr().out
        assert "torch: import failed: " in out
        assert "git: not found\n" in out
        assert "compiler: not found" in out
        assert 'extra.atari: not installed (pip install "axiomrl[atari]")\n' in out


class TestFrontDoor:
    LIGHT = """
import sys
from rl_training.cli import main
from rl_training.envs.seeding import episode_seed
code = main(sys.argv[1:])
heavy = [m for m in ("torch", "gymnasium", "pydantic", "argparse", "yaml", "rich") if m in sys.modules]
print(code, *heavy, file=sys.stderr)
"""

    @pytest.mark.parametrize(
        ("argv", "allowed"),
        [
            (["--version"], set()),
            (["--help"], set()),
            (["list", "presets"], {"argparse", "yaml"}),
            (["train", "--help"], {"argparse", "yaml", "pydantic"}),
            (["eval", "--help"], {"argparse"}),
            (["inspect", "--help"], {"argparse"}),
            (["resume", "--help"], {"argparse"}),
            (["report", "--help"], {"argparse"}),
        ],
        ids=lambda words: " ".join(words) if isinstance(words, list) else "",
    )
    def test_what_needs_no_torch_does_not_import_it(self, argv: list[str], allowed: set[str]) -> None:
        done = shell(*argv, code=self.LIGHT)
        code, *heavy = done.stderr.split()
        assert code == "0"
        assert set(heavy) <= allowed
        assert done.stdout

    def test_training_without_compilation_does_not_import_torchs_compiler(self, tmp_path: Path) -> None:
        code = """
import sys
from rl_training.cli import main
main(sys.argv[1:])
print([m for m in ("torch", "torch._dynamo", "torch._inductor") if m in sys.modules], file=sys.stderr)
"""
        done = shell("train", *CARTPOLE, "--output-dir", str(tmp_path), "--quiet", code=code)
        assert done.stderr.splitlines()[-1] == "['torch']"

    def test_version_and_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"axiomrl {rl_training.__version__}\n"
        assert main(["--help"]) == 0
        out = capsys.readouterr().out
        assert all(f"\n  {name} " in out for name in COMMANDS)
        assert main([]) == 2
        assert capsys.readouterr() == ("", out)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_help(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([command, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: axiomrl {command} ")
