"""Suites: what ships is sound, and mistakes in one's own are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.presets import load_preset, preset_names
from rl_training.zoo import suites
from rl_training.zoo.bands import band_text, verdict
from rl_training.zoo.suites import (
    Entry,
    find_target,
    first_seeds,
    load_suite,
    preset_steps,
    suite_names,
    train_arguments,
)


def test_every_preset_is_in_one_suite_with_its_own_budget() -> None:
    shipped = [load_suite(name) for name in suite_names()]
    assert {"classic-control", "box2d", "mujoco", "atari-6"} <= set(suite_names())
    listed = [name for suite in shipped for name in suite.presets]
    assert sorted(listed) == list(preset_names()), "a preset of a new task needs a row `*/TASK` in a suite"
    for suite in shipped:
        for name, entry in suite.entries.items():
            assert entry.steps == preset_steps(name), name
            assert (entry.band is None) == (entry.basis is None), name


def test_a_new_preset_joins_the_suite_of_its_task_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*preset_names(), "zzz/cartpole", "zzz/pong", "zzz/cartpole-no-velocity"]
    monkeypatch.setattr(suites, "preset_names", lambda: names)
    monkeypatch.setattr(suites, "preset_steps", lambda name: 1234 if name.startswith("zzz") else 5)
    joined = {
        name: (suite.name, entry.steps, entry.band, entry.basis)
        for suite in map(load_suite, suite_names())
        for name, entry in suite.entries.items()
        if name.startswith("zzz")
    }
    assert joined == {
        "zzz/cartpole": ("classic-control", 1234, (475.0, 500.0), "aim"),
        "zzz/pong": ("atari-6", 1234, None, None),
        "zzz/cartpole-no-velocity": ("memory", 1234, None, None),
    }


def test_rows_of_one_preset_are_put_together_and_the_later_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "description: mine\npresets:\n  sac/pendulum:\n  'trpo/*': {steps: 7, band: [1, 2], basis: aim}\n"
        "  'trpo/p*': {band: [3, null], overrides: {num_envs: 2}}\n"
    )
    entries = load_suite(str(path)).entries
    assert list(entries) == ["sac/pendulum", *(n for n in preset_names() if n.startswith("trpo/"))]
    assert entries["sac/pendulum"] == Entry(steps=preset_steps("sac/pendulum"))
    assert entries["trpo/acrobot"] == Entry(steps=7, band=(1.0, 2.0), basis="aim")
    assert entries["trpo/pendulum"] == Entry(
        steps=7, band=(3.0, None), basis="aim", overrides={"num_envs": 2}
    )


def test_a_band_that_is_called_measured_has_results_inside_it() -> None:
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    measured = [
        (name, entry)
        for suite in map(load_suite, suite_names())
        for name, entry in suite.entries.items()
        if entry.basis == "measured"
    ]
    assert measured
    for name, entry in measured:
        found = json.loads((results / f"{name.replace('/', '-')}.json").read_text())
        assert len(found["runs"]) >= 5, name
        assert verdict(found["summary"]["mean"], entry.band) == "inside", name


def test_a_preset_alone_has_the_protocol_of_its_suite() -> None:
    suite = find_target("ppo/pong")
    assert (suite.name, list(suite.presets)) == ("ppo-pong", ["ppo/pong"])
    assert (suite.seeds, suite.evaluation) == (load_suite("atari-6").seeds, load_suite("atari-6").evaluation)
    assert suite.entries["ppo/pong"].band == (18.0, 21.0)


def test_mistakes_are_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "description: mine\nseeds: [1]\nevaluation: {episodes: 0}\npresets:\n"
        "  ppo/cartpol: {steps: 1}\n  ppo/cartpole: {step: 1}\n  ppo/pendulum: {steps: 1, band: [2, 1]}\n"
        "  '*/cartpol': {steps: 1}\n  ppo/acrobot: 3\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_suite(str(path))
    text = "\n".join(caught.value.problems)
    assert f"{path}:3: evaluation.episodes: must be greater than 0" in text
    assert (
        f"{path}:5: presets.ppo/cartpol: unknown preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?" in text
    )
    assert "presets.ppo/cartpole.step: unknown key; did you mean 'steps'?" in text
    assert f"{path}:7: presets.ppo/pendulum.band: the least, 2, is more than the most, 1" in text
    assert f"{path}:8: presets.*/cartpol: unknown preset '*/cartpol'; did you mean " in text
    assert f"{path}:9: presets.ppo/acrobot: expected a mapping" in text
    with pytest.raises(ConfigError, match="did you mean 'classic-control'"):
        load_suite("clasic-control")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seeds: [1, 2, 1]", "seeds: 1 is there more than once"),
        ("seeds: []", "seeds: none given"),
        ("presets: {ppo/cartpole: {overrides: {seed: 4}}}", "overrides.seed: not here; a suite runs several"),
        (
            "presets: {ppo/cartpole: {overrides: {total-timesteps: 4}}}",
            "overrides.total-timesteps: not here; say it by `steps`",
        ),
        ("presets: {ppo/cartpole: {overrides: {output_dir: x}}}", "overrides.output_dir: not here; whoever"),
    ],
)
def test_what_a_suite_cannot_say(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    rest = "" if "presets" in text else "\npresets: {ppo/cartpole: }"
    path.write_text(f"description: mine\n{text}{rest}\n")
    with pytest.raises(ConfigError) as caught:
        load_suite(str(path))
    (found,) = caught.value.problems
    assert found.startswith(f"{path}:2: ")
    assert problem in found


def test_a_name_that_is_like_no_other_is_answered_with_the_suites() -> None:
    with pytest.raises(ConfigError) as caught:
        find_target("qqqqqq")
    assert f"known: {', '.join(suite_names())}. `axiomrl zoo list` shows the suites" in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean 'ppo/cartpole'"):
        find_target("ppo/cartpol")


@pytest.mark.parametrize(("count", "expected"), [(None, (3, 5)), (1, (3,)), (2, (3, 5)), (4, (3, 5, 6, 7))])
def test_first_seeds(count: int | None, expected: tuple[int, ...]) -> None:
    assert first_seeds((3, 5), count) == expected


@pytest.mark.parametrize(
    ("mean", "band", "expected"),
    [
        (1.0, (1.0, 2.0), "inside"), (2.0, (1.0, 2.0), "inside"), (0.9, (1.0, None), "below"),
        (2.1, (None, 2.0), "above"), (9.0, (1.0, None), "inside"), (1.0, None, "no band"),
    ],
)  # fmt: skip
def test_verdicts(mean: float, band: tuple[float | None, float | None] | None, expected: str) -> None:
    assert verdict(mean, band) == expected


def test_bands_in_words() -> None:
    bands = [(1.5, 2000.0), (1.0, None), (None, 2.0), None]
    assert [band_text(band) for band in bands] == ["1.5 to 2,000", "at least 1", "at most 2", "-"]


def test_arguments_say_what_differs_from_the_preset() -> None:
    steps = load_preset("ppo/cartpole").data["total_timesteps"]
    assert train_arguments("ppo/cartpole", Entry(steps=steps)) == ["--preset", "ppo/cartpole"]
    other = Entry(steps=7, overrides={"hyperparams.target_kl": None, "env.normalize_obs": True})
    assert train_arguments("ppo/cartpole", other) == [
        "--preset", "ppo/cartpole", "--total-timesteps", "7", "--hyperparams.target-kl", "null",
        "--env.normalize-obs", "true",
    ]  # fmt: skip


def test_commands_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "commands", "goals", "--num-seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "axiomrl train --preset dqn/bit-flip --seed 1",
        "axiomrl train --preset dqn/bit-flip --seed 2",
        "axiomrl train --preset sac/point-goal --seed 1",
    ]
    assert len(lines) == 6


def test_show_has_budget_and_band(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "show", "box2d"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ppo/lunar-lander")]
    assert line.split()[:6] == ["ppo/lunar-lander", "LunarLander-v3", "1,000,000", "210", "to", "300"]


def test_looking_at_suites_needs_no_torch() -> None:
    code = (
        "import sys; import rl_training.zoo.runner, rl_training.zoo.display\n"
        "from rl_training.cli import main\n"
        "for words in (['list'], ['show', 'mujoco'], ['commands', 'mujoco']):\n"
        "    assert main(['zoo', *words]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_unknown_subcommand_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "veriffy"]) == 2
    assert "unknown subcommand 'veriffy'; did you mean 'verify'?" in capsys.readouterr().err
