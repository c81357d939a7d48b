"""`axiomrl profile`: measures, prints, writes one file if asked to, and nothing else."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.layers import load_config
from rl_training.profiling import compare as comparing
from rl_training.profiling import overrides, tuning
from rl_training.profiling import profile as profiling
from rl_training.profiling.candidates import Candidate
from rl_training.profiling.compare import Comparison
from rl_training.profiling.render import WIDTH

TINY = [
    "--num-envs", "2", "--network.hidden", "8", "--hyperparams.num-steps", "32",
    "--hyperparams.num-minibatches", "1", "--hyperparams.update-epochs", "1", "--seconds", "0.05",
]  # fmt: skip
PPO = ["profile", "--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "20000", *TINY]
SAC = [
    "profile", "--algo", "sac", "--env-id", "Pendulum-v1", "--num-envs", "1", "--network.hidden", "8",
    "--hyperparams.learning-starts", "10", "--hyperparams.batch-size", "8",
    "--hyperparams.buffer-size", "1000", "--seconds", "0.05",
]  # fmt: skip
GAINS = {"env.backend": {"native": 1.5, "async": 1.2}, "threads": {2: 1.3}, "num_envs": {4: 2.0},
         "compile": {"on": 2.5}}  # fmt: skip
STARTS = {"on": 34.0}
"""Seconds that compiling takes."""


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gains as in `GAINS` instead of measured ones: no timing decides."""

    def fast(config: TrainConfig) -> float:
        chosen = {
            "env.backend": config.env.backend,
            "threads": config.threads,
            "num_envs": config.num_envs,
            "compile": config.compile,
        }
        speed = 1.0
        for key, value in chosen.items():
            speed *= GAINS[key].get(value, 0.9 if key == "env.backend" and value != "sync" else 1.0)
        return speed

    def compare(present: TrainConfig, other: TrainConfig, weights: Any, *turns: Any) -> Comparison:
        speeds = [(1000.0 * fast(config),) * 3 for config in (present, other)]
        starts = [STARTS.get(config.compile, 0.0) for config in (other, present)]
        return Comparison(speeds[0], speeds[1], present.total_timesteps, *starts)

    monkeypatch.setattr(comparing, "compare", compare)
    monkeypatch.setattr(tuning, "compare", compare)
    monkeypatch.setattr(profiling, "available_threads", lambda: 2)
    monkeypatch.setattr(Candidate, "largest_gain", lambda *_: 9.0)  # whatever takes how much of the time
    monkeypatch.chdir(tmp_path)


def keys(value: Any) -> Any:
    return {k: keys(v) for k, v in value.items()} if isinstance(value, Mapping) else None


@pytest.mark.parametrize("argv", [PPO, SAC], ids=["ppo", "sac"])
def test_json_and_no_run(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiling, "available_threads", lambda: 1)  # without processes of its own
    assert main([*argv, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []
    training = data["training"]
    parts = ("env", "inference", "transfer", "learn", "overhead")
    assert keys(training) == {
        "steps": None, "updates": None, "seconds": None, "steps_per_second": None, "limit": None,
        "sampler": None,
        "parts": {part: {"seconds": None, "share": None} for part in parts},
    }  # fmt: skip
    found = training["parts"].values()
    assert sum(part["seconds"] for part in found) == pytest.approx(training["seconds"])
    assert sum(part["share"] for part in found) == pytest.approx(1.0)
    assert all(part["seconds"] >= 0 for part in found)
    assert training["parts"]["transfer"]["seconds"] == 0
    assert training["parts"][training["limit"]]["share"] == max(part["share"] for part in found)
    assert training["steps_per_second"] == pytest.approx(training["steps"] / training["seconds"])
    per_update = 64 if argv is PPO else 1
    assert training["steps"] == per_update * training["updates"]
    ceilings = data["ceilings"]
    assert ceilings["env"]["steps_per_second"] > 0
    updates = ceilings["updates"]
    assert updates["steps_per_update"] == pytest.approx(per_update)
    assert updates["steps_per_second"] == pytest.approx(per_update * updates["updates_per_second"])
    for candidate in data["candidates"]:
        assert set(candidate) == {
            "key", "value", "effect", "note", "steps_per_second", "present_steps_per_second", "ratio",
            "start_up_s", "first_start_up_s", "present_start_up_s", "run_ratio", "pays_from_step", "at_most",
            "first_ratio", "faster", "error", "skipped",
        }  # fmt: skip
        measured = candidate["ratio"] is not None
        assert measured + (candidate["error"] is not None) + (candidate["skipped"] is not None) == 1
    assert {c["value"] for c in data["candidates"] if c["key"] == "num_envs"} == (
        {4, 8} if argv is PPO else {2, 4}
    )
    assert data["settings"]["env.backend"] == "sync"
    assert (data["autotune"], data["complete"]) == (None, True)


def test_autotune_writes_what_train_reads(
    invented: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PPO, "--autotune", "-o", "fast.yaml"]) == 0
    out = capsys.readouterr().out
    native = "suggestion: env.backend: native makes the whole run 1.50 times as fast, same\n  results\n"
    assert native in out
    more = "suggestion: num_envs: 4 makes the whole run 2.00 times as fast, but it changes"
    assert more in out
    assert "\n  measured twice, this is the second time; the first ratio was 1.50\n" in out
    assert [line for line in out.splitlines() if len(line) > WIDTH] == []
    assert "autotune: env.backend: native, threads: 2: the whole run 1.95 times as fast\n" in out
    assert out.endswith("fast.yaml: written; use it by\n  axiomrl train --config fast.yaml\n")
    assert [path.name for path in tmp_path.iterdir()] == ["fast.yaml"]
    config = load_config("fast.yaml")
    assert (config.env.backend, config.threads, config.num_envs) == ("native", 2, 2)
    assert (config.hyperparams.num_steps, config.network.hidden) == (32, (8,))  # as it was profiled
    text = Path("fast.yaml").read_text()
    assert "1,950 steps/s instead of 1,000; the whole run is 1.95 times as fast\n" in text
    assert "learning_starts" not in text
    assert main(["config", "--config", "fast.yaml"]) == 0


def test_what_was_found_is_written_though_nobody_reads(
    invented: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("rl_training.cli.profile._print", gone)
    assert main([*PPO, "--autotune", "-o", "fast.yaml"]) != 0
    assert load_config("fast.yaml").threads == 2


def test_autotune_may_change_the_data_if_told_so(invented: None, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*PPO, "--autotune", "--change-data", "-o", "fast.yaml", "--json"]
    assert main(argv) == 0
    data = json.loads(capsys.readouterr().out)["autotune"]
    assert data["settings"] == {"num_envs": 4, "env.backend": "native", "threads": 2}
    assert data["ratio"] == pytest.approx(3.9)
    assert (data["file"], data["command"]) == (
        "fast.yaml",
        ["axiomrl", "train", "--config", "fast.yaml"],
    )
    assert load_config("fast.yaml").num_envs == 4  # although --num-envs 2 was given


@pytest.mark.parametrize(("steps", "kept"), [("20000", None), ("200000", "on")])
def test_autotune_compiles_only_what_repays_it(
    steps: str, kept: str | None, invented: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    modes = {"auto": "eager", "on": "compiled", "off": "eager"}
    monkeypatch.setattr(profiling.Bench, "compile_modes", lambda _: modes)
    assert main([*PPO, "--total-timesteps", steps, "--autotune", "-o", "fast.yaml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["autotune"]["settings"].get("compile") == kept
    (compiling,) = (c for c in data["candidates"] if c["key"] == "compile")
    assert (compiling["value"], compiling["ratio"], compiling["faster"]) == ("on", 2.5, kept is not None)
    assert compiling["pays_from_step"] == 56_667  # 34 s at 0.6 ms a step
    assert load_config("fast.yaml").compile == (kept or "auto")


def test_results_outlive_a_file_that_cannot_be_written(
    invented: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(overrides, "replace_atomically", full)
    assert main([*PPO, "--autotune", "-o", "fast.yaml"]) == 2
    out, err = capsys.readouterr()
    assert "autotune: env.backend: native, threads: 2: the whole run 1.95 times as fast\n" in out
    assert "fast.yaml: cannot be written: No space left on device\n" in err
    assert "written; use it by" not in out
    assert list(tmp_path.iterdir()) == []


def test_no_file_that_is_profiled_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"top.yaml": "include: parts/middle.yaml\n", "parts/middle.yaml": "include: ../base.yaml\n",
             "base.yaml": "algo: ppo\nenv_id: CartPole-v1\n"}  # fmt: skip
    Path("parts").mkdir()
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("link.yaml").symlink_to("base.yaml")
    for name in ("parts/middle.yaml", "parts/../base.yaml", "link.yaml"):
        assert main(["profile", "--config", "top.yaml", *TINY, "--autotune", "-o", name]) == 2
        expected = f"{name}: is included by the configuration that is profiled; choose another file"
        assert expected in capsys.readouterr().err
    assert {name: Path(name).read_text() for name in texts} == texts


def test_the_file_builds_on_preset_and_file(invented: None, tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    folder.mkdir()
    mine = folder / "mine.yaml"
    mine.write_text("seed: 5\nenv: {normalize_obs: true}\n")
    argv = ["profile", "--preset", "ppo/cartpole", "--config", str(mine), *TINY, "--autotune"]
    assert main([*argv, "-o", "fast.yaml"]) == 0
    config = load_config("fast.yaml")
    assert (config.seed, config.env.normalize_obs, config.env.backend) == (5, True, "native")
    assert config.total_timesteps == 100_000  # the preset's
    assert "include: settings/mine.yaml\n" in Path("fast.yaml").read_text()


def test_nothing_faster_is_written_too(
    invented: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for gains in GAINS.values():
        for value in gains:
            monkeypatch.setitem(gains, value, 1.0)
    argv = ["profile", "--preset", "ppo/cartpole", "--seconds", "0.05", "--autotune", "-o", "same.yaml"]
    assert main(argv) == 0
    assert "nothing found that is faster\n" in capsys.readouterr().out
    assert load_config("same.yaml") == rl_training.load_config(
        Path(rl_training.__file__).parent / "zoo" / "presets" / "ppo" / "cartpole.yaml"
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seconds", "0"], "argument --seconds: expected a number above 0, got '0'"),
        (["--autotune"], "--autotune needs -o FILE"),
        (["-o", "x.yaml"], "-o needs --autotune"),
        (["--change-data"], "--change-data needs --autotune"),
        (["--autotune", "-o", "no/where/x.yaml"], "no/where/x.yaml: there is no directory no/where"),
        (["--autotune", "-o", "."], ".: is a directory"),
        (["--autotune", "-o", "/proc/fast.yaml"], "/proc/fast.yaml: cannot be written: "),
        (["--config", "a.yaml", "--autotune", "-o", "./a.yaml"], "a.yaml: is the configuration that is"),
        (["--secnds", "3"], "--secnds: unknown option; did you mean --seconds?"),
        (["--hyperparams.num-minibatches", "7"], "7 does not divide the batch"),
        (["--format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_errors(
    argv: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("seed: 1\n")
    assert main(["profile", "--algo", "ppo", "--env-id", "CartPole-v1", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "training ppo" not in err  # nothing was measured in vain
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_ctrl_c_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = []

    class Interrupted(profiling.Bench):
        def run(self, seconds: float) -> Any:
            raise KeyboardInterrupt

        def close(self) -> None:
            super().close()
            closed.append(self.trainer.envs.closed)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiling, "Bench", Interrupted)
    assert main(PPO) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("training ppo on CartPole-v1 for 0.05 s …\nup to ")
    assert err.endswith(" in all, more if any is compiled …\ninterrupted\n")
    assert closed == [True]
    assert list(tmp_path.iterdir()) == []


def fails_for(key: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is tried with another value of `key` ends in an error."""
    compare = comparing.compare

    def failing(present: TrainConfig, other: TrainConfig, weights: Any, *turns: Any) -> Comparison:
        if getattr(present, key) != getattr(other, key):
            raise error
        return compare(present, other, weights, *turns)

    monkeypatch.setattr(comparing, "compare", failing)


def test_too_little_memory_for_one_setting_costs_no_other(
    invented: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_for("num_envs", torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
    assert main(PPO) == 0
    out = capsys.readouterr().out
    for count in (4, 8):
        assert f"\nnot possible: num_envs: {count} (OutOfMemoryError: CUDA out of memory)\n" in out
    assert "\nsuggestion: env.backend: native makes the whole run 1.50 times as fast" in out


@pytest.mark.parametrize(
    ("measuring", "name", "left"), [("env_speed", "env", "updates"), ("update_speed", "updates", "env")]
)
def test_a_ceiling_that_fails_costs_nothing_else(
    measuring: str, name: str, left: str, invented: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(profiling, measuring, fail)
    assert main([*PPO, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ceilings"][name]["error"] == "MemoryError: no room"
    assert data["ceilings"][name]["steps_per_second"] is None
    assert data["ceilings"][left]["steps_per_second"] > 0
    assert data["suggestion"]["value"] == "native"


def test_what_is_faster_than_can_be_is_not_suggested(
    invented: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_most = {"native": 1.3, "async": 1.15}
    monkeypatch.setattr(Candidate, "largest_gain", lambda self, _: at_most.get(self.value, 9.0))
    assert main([*PPO, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = {c["value"]: (c["ratio"], c["faster"], c["at_most"]) for c in data["candidates"]}
    assert found["native"] == (1.5, False, 1.3)
    assert found["async"] == (pytest.approx(1.2), True, 1.15)
    assert data["suggestion"]["key"] == "threads"


def test_luck_is_not_suggested(
    invented: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare, seen = comparing.compare, set()

    def lucky_once(present: TrainConfig, other: TrainConfig, weights: Any, *turns: Any) -> Comparison:
        if other.env.backend == "native" and "native" in seen:
            return compare(present, present, weights, *turns)
        seen.add(other.env.backend)
        return compare(present, other, weights, *turns)

    monkeypatch.setattr(comparing, "compare", lucky_once)
    assert main([*PPO, "--autotune", "-o", "fast.yaml"]) == 0
    out = capsys.readouterr().out
    assert "env.backend: native 1,000 1,000 1.00 same results measured twice" in " ".join(out.split())
    assert "suggestion: threads: 2 makes the whole run 1.30 times as fast" in out
    assert (load_config("fast.yaml").env.backend, load_config("fast.yaml").threads) == ("async", 2)


@pytest.mark.parametrize("form", ["text", "json"])
def test_ctrl_c_during_the_trials_keeps_what_is_known(
    form: str, invented: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    fails_for("threads", KeyboardInterrupt(), monkeypatch)
    assert main([*PPO, "--autotune", "-o", "fast.yaml", "--format", form]) == 130
    out, err = capsys.readouterr()
    assert err.endswith("threads: 2 …\ninterrupted\n")
    if form == "json":
        data = json.loads(out)
        assert (data["complete"], data["suggestion"], data["autotune"]) == (False, None, None)
        assert {c["key"] for c in data["candidates"] if c["ratio"]} == {"env.backend"}
    else:
        for words in ("\nall  ", "\nupdates alone, one batch  ", "\nenv.backend: native  "):
            assert words in out
        assert out.endswith("\nstopped before everything was tried: nothing is suggested\n")
    assert list(tmp_path.iterdir()) == []


def test_it_says_how_far_it_is(invented: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PPO, "--compile", "off", "--seconds", "0.1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    outlook = re.fullmatch(r"up to (\d+) other settings next: about (\d+) s in all.* …", lines[1])
    assert outlook is not None
    trying = [line for line in lines if line.startswith("trying ")]
    assert len(trying) == int(outlook[1])
    assert [line.split()[1] for line in trying] == [f"{n}/{len(trying)}:" for n in range(1, len(trying) + 1)]
    assert lines[-2:] == ["once more env.backend: native …", "once more num_envs: 4 …"]


@pytest.mark.parametrize(
    ("seconds", "start_up", "words"), [(60, 1.0, "about 3 min in all"), (20, 0.1, "about 52 s in all")]
)
def test_the_estimate(seconds: float, start_up: float, words: str) -> None:
    # A tenth for the ceilings; ten trials of a tenth and two starts each, and two that are twice as long.
    assert profiling._outlook(seconds, start_up, 10, False).endswith(words)
    assert profiling._outlook(seconds, start_up, 10, True).endswith(", more if any is compiled")


def test_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "available_threads", lambda: 1)
    profile = rl_training.profile(
        algo="trpo", env_id="CartPole-v1", seconds=0.02, num_envs=1, num_steps=16, num_minibatches=1,
        update_epochs=2, network={"hidden": [8]},
    )  # fmt: skip
    assert profile.config.algo == "trpo"
    assert sum(profile.parts.values()) == pytest.approx(profile.speed.seconds)
    assert profile.update_speed.steps_per_update == pytest.approx(8.0)
    assert profile.tuned is None
    with pytest.raises(rl_training.AxiomError, match="seconds: must be more than 0"):
        rl_training.profile(algo="ppo", env_id="CartPole-v1", seconds=0)
