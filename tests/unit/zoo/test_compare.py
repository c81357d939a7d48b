"""Is B worse beyond noise? How often the answer is wrong, and what it rests on."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from zoo_runs import write_seeds

from rl_training.cli import main
from rl_training.errors import AxiomError, CheckpointError
from rl_training.zoo import significance
from rl_training.zoo.compare import Samples, compare_returns, compare_speeds, is_worse, judge
from rl_training.zoo.drift import drift_of
from rl_training.zoo.pairing import match
from rl_training.zoo.sources import runs_of
from rl_training.zoo.suites import load_suite

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"

# Calibration


def experiment(rng: np.random.Generator, scale: float, *, seeds: int = 5, episodes: int = 20) -> np.ndarray:
    """Returns as CartPole gives them: seeds vary by 10 %, episodes by 15 %, and nothing goes above 500."""
    agents = 400 * scale * (1 + 0.1 * rng.standard_normal(seeds))
    return np.minimum(500.0, agents[:, None] + 60.0 * rng.standard_normal((seeds, episodes)))


def test_false_alarms_are_rare_and_a_drop_of_a_fifth_is_seen() -> None:
    """500 pairs each, 5 seeds of 20 episodes; the unit is the seed."""
    rng = np.random.default_rng(0)
    same = [(experiment(rng, 1.0).mean(1), experiment(rng, 1.0).mean(1)) for _ in range(500)]
    worse = [(experiment(rng, 1.0).mean(1), experiment(rng, 0.8).mean(1)) for _ in range(500)]
    assert sum(is_worse(a, b) for a, b in same) / 500 <= 0.08
    assert sum(is_worse(a, b) for a, b in worse) / 500 >= 0.80


def test_pooling_the_episodes_of_seeds_would_raise_false_alarms() -> None:
    """Why the unit is the seed: episodes of one agent are not independent looks at the algorithm."""
    rng = np.random.default_rng(1)
    pairs = [(experiment(rng, 1.0), experiment(rng, 1.0)) for _ in range(40)]
    by_seed = sum(is_worse(a.mean(1), b.mean(1)) for a, b in pairs)
    by_episode = sum(is_worse(a.ravel(), b.ravel()) for a, b in pairs)
    assert by_episode > 3 * max(1, by_seed)


def test_over_many_tasks_the_false_alarms_of_all_stay_rare() -> None:
    rng = np.random.default_rng(2)

    def alarm(scale: float) -> bool:
        samples = [
            Samples(str(i), experiment(rng, 1.0).mean(1), experiment(rng, scale).mean(1), "runs")
            for i in range(6)
        ]
        return judge("return", samples).verdict == "worse"

    assert sum(alarm(1.0) for _ in range(40)) <= 5
    assert all(alarm(0.8) for _ in range(8))


def published(suite: str = "classic-control") -> list[list[np.ndarray]]:
    """Real runs: for each preset of a suite that was measured, the returns of every seed's episodes."""
    files = [RESULTS / f"{name.replace('/', '-')}.json" for name in load_suite(suite).presets]
    data = [json.loads(file.read_text())["runs"] for file in files if file.is_file()]
    return [[np.asarray(run["returns"]) for run in runs] for runs in data if len(runs) >= 5]


def lowered(returns: np.ndarray, runs: list[np.ndarray]) -> np.ndarray:
    """The same with a drop by a fifth of what the preset scores."""
    return returns - 0.2 * abs(float(np.mean([r.mean() for r in runs])))


def test_on_real_seeds_false_alarms_are_rare_and_a_drop_of_a_fifth_is_seen() -> None:
    """500 pairs of five seeds each, resampled from the published results."""
    rng, presets = np.random.default_rng(3), published()
    assert len(presets) >= 10
    alarms, caught = 0, 0
    for i in range(500):
        runs = presets[i % len(presets)]
        scores = np.array([returns.mean() for returns in runs])
        a, b = (scores[rng.integers(len(runs), size=5)] for _ in range(2))
        alarms += is_worse(a, b)
        caught += is_worse(a, lowered(b, runs))
    assert alarms / 500 <= 0.08
    assert caught / 500 >= 0.80


def test_on_real_pairs_of_single_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of one preset, by their episodes: the same bounds hold over the presets together."""
    monkeypatch.setattr(significance, "SAMPLES", 500)
    rng, presets = np.random.default_rng(4), published()
    alarms, caught = 0, 0
    for i in range(500):
        runs = presets[i % len(presets)]
        one, two = rng.choice(len(runs), size=2, replace=False)
        alarms += is_worse(runs[one], runs[two], "episodes")
        caught += is_worse(runs[one], lowered(runs[two], runs), "episodes")
    assert alarms / 500 <= 0.08
    assert caught / 500 >= 0.80


def test_the_command_fails_for_a_worse_setting_and_not_for_other_seeds(tmp_path: Path) -> None:
    """Bit flipping without hindsight, a measured control, against the preset; and seeds against seeds."""
    preset, control = RESULTS / "dqn-bit-flip.json", RESULTS / "dqn-bit-flip-plain.json"
    data = json.loads(preset.read_text())
    halves = []
    for name, runs in (("first", data["runs"][:3]), ("second", data["runs"][3:]), ("one", data["runs"][:1])):
        halves.append(str(tmp_path / f"{name}.json"))
        Path(halves[-1]).write_text(json.dumps(data | {"runs": runs}))
    codes = [
        main(["compare", str(a), str(b), "--fail-on-regression", "-o", str(tmp_path / "out.txt")])
        for a, b in ((preset, control), (control, preset), halves[:2], halves[1:])
    ]
    assert codes == [1, 0, 0, 0]


# Numbers


def compared(tmp_path: Path, a: list[float], b: list[float], **options: float) -> dict[str, object]:
    write_seeds(tmp_path / "a", a)
    write_seeds(tmp_path / "b", b)
    result = compare_returns(match(runs_of(tmp_path / "a"), runs_of(tmp_path / "b")), **options)  # type: ignore[arg-type]
    (task,) = result.results
    return {"task": task, "verdict": result.verdict, "p": task.p.worse, "unit": task.samples.unit}


def test_numbers_equal_an_independent_computation(tmp_path: Path) -> None:
    a, b = [500.0, 480.0, 490.0, 470.0, 495.0], [400.0, 380.0, 410.0, 390.0, 485.0]
    found = compared(tmp_path, a, b)
    task = found["task"]
    assert task.mean_a == pytest.approx(statistics.fmean(a))  # type: ignore[attr-defined]
    assert task.delta.value == pytest.approx(statistics.fmean(b) - statistics.fmean(a))  # type: ignore[attr-defined]
    wins = sum(y > x for x in a for y in b) / 25
    assert task.probability.value == pytest.approx(wins)  # type: ignore[attr-defined]
    assert (found["verdict"], found["unit"]) == ("worse", "runs")
    # Only divisions that also put 485 with A are as far behind, or further.
    assert found["p"] == pytest.approx(3 / 252, abs=2 / 252)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [([500.0] * 5, [500.0] * 5, "no difference"), ([300.0] * 5, [400.0] * 5, "better"),
     ([-200.0, -210.0, -190.0], [-400.0, -410.0, -390.0], "worse")],
)  # fmt: skip
def test_clear_cases(tmp_path: Path, a: list[float], b: list[float], verdict: str) -> None:
    assert compared(tmp_path, a, b)["verdict"] == verdict


def test_a_tolerance_lets_small_drops_pass(tmp_path: Path) -> None:
    a, b = [500.0] * 5, [490.0] * 5
    assert compared(tmp_path / "x", a, b)["verdict"] == "worse"
    assert compared(tmp_path / "y", a, b, tolerance=0.05)["verdict"] == "no difference"


def test_one_run_on_each_side_is_compared_by_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, final in (("a", 500.0), ("b", 300.0), ("c", 470.0)):
        (run,) = write_seeds(tmp_path / name, [final])
        rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
        rows[-1]["returns"] = [final + offset for offset in (-3, -2, -1, 0, 0, 1, 2, 3)]
        (run / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-on-regression"]) == 1
    out = capsys.readouterr().out
    assert "8 ep." in out
    assert "episodes (ep.) were compared instead" in out
    assert "return: this run of B is worse than that of A" in out
    # 6 % less is certain for these two policies, but says nothing of seeds
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c"), "--fail-on-regression"]) == 0
    assert "no difference" in capsys.readouterr().out


def test_too_few_runs_without_episodes_cannot_tell(tmp_path: Path) -> None:
    found = compared(tmp_path, [500.0, 490.0], [10.0, 20.0], which="best")  # type: ignore[arg-type]
    assert (found["unit"], found["verdict"]) == ("runs", "cannot tell")


def test_speed_is_judged_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_seeds(tmp_path / "a", [100.0, 110.0, 90.0, 100.0], seconds=10.0)
    write_seeds(tmp_path / "b", [100.0, 110.0, 90.0, 100.0], seconds=20.0)
    matched = match(runs_of(tmp_path / "a"), runs_of(tmp_path / "b"))
    speed = compare_speeds(matched)
    assert speed is not None
    assert speed.verdict == "worse"
    assert (speed.results[0].mean_a, speed.results[0].mean_b) == (200.0, 100.0)
    sides = [str(tmp_path / "a"), str(tmp_path / "b")]
    codes = [
        main(["compare", *sides, "--fail-on-regression", "--on", on]) for on in ("return", "speed", "both")
    ]
    assert codes == [0, 1, 1]
    assert main(["compare", *sides]) == 0


# What is compared with what


def test_runs_are_paired_by_what_they_are(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a" / "1", [1.0] * 3)
    write_seeds(tmp_path / "a" / "2", [1.0] * 3, env="Pendulum-v1")
    write_seeds(tmp_path / "b" / "1", [1.0] * 3)
    write_seeds(tmp_path / "b" / "2", [1.0] * 3, algo="dqn")
    write_seeds(tmp_path / "c", [1.0] * 3, algo="sac", env="Pendulum-v1")
    a, b, c = (runs_of(tmp_path / name) for name in "abc")
    both = match(a, b)
    assert [task[0] for task in both.tasks] == ["ppo · CartPole-v1"]
    assert (both.only_a, both.only_b) == (["ppo · Pendulum-v1"], ["dqn · CartPole-v1"])
    assert [(name, len(x), len(y)) for name, x, y in match(a, c).tasks] == [("Pendulum-v1", 3, 3)]
    with pytest.raises(AxiomError, match="nothing to compare: A has runs on CartPole-v1, B on Pendulum-v1"):
        match(b, c)


def test_manifests_hold_results_or_name_runs(tmp_path: Path) -> None:
    paths = write_seeds(tmp_path / "runs", [100.0, 200.0])
    (tmp_path / "named.json").write_text(json.dumps({
        "config": {"hyperparams": {"learning_rate": 0.5}},
        "runs": [{"run_dir": f"runs/{path.name}"} for path in paths],
    }))  # fmt: skip
    runs = runs_of(tmp_path / "named.json")
    assert [run.final for run in runs] == [100.0, 200.0]
    changed = "hyperparams.learning_rate: 0.00025 instead of 0.5"
    assert [list(map(str, drift_of(run))) for run in runs] == [[changed]] * 2
    (tmp_path / "held.json").write_text(json.dumps({
        "preset": "ppo/cartpole",
        "runs": [{"seed": 3, "returns": [1.0, 3.0], "global_step": 1000, "seconds": 4.0,
                  "curve": [{"global_step": 500, "elapsed_s": 2.0, "return_mean": 1.0}]}],
    }))  # fmt: skip
    (run,) = runs_of(tmp_path / "held.json")
    assert (run.algo, run.env_id, run.preset, run.seed) == ("ppo", "CartPole-v1", "ppo/cartpole", "3")
    assert (run.final, run.steps, run.steps_per_second, list(run.returns)) == (2.0, 1000, 250.0, [1.0, 3.0])
    assert (list(run.eval_steps), list(run.eval_means)) == ([500, 1000], [1.0, 2.0])


def test_the_published_results_are_manifests() -> None:
    data = json.loads((RESULTS / "ppo-cartpole.json").read_text())
    runs = runs_of(RESULTS / "ppo-cartpole.json")
    assert [run.final for run in runs] == [entry["return_mean"] for entry in data["runs"]]
    assert {(run.algo, run.env_id) for run in runs} == {("ppo", "CartPole-v1")}


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "not a manifest"), ('{"runs": 3}', "not a manifest"),
     ('{"runs": []}', "no run in it"), ('{"runs": [{}]}', "run 1: neither run_dir nor return_mean"),
     ('{"runs": [{"run_dir": "nowhere"}]}', "not a run directory"), ("[" * 100_000, "cannot be read")],
)  # fmt: skip
def test_bad_manifests_are_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(AxiomError, match=message):
        runs_of(tmp_path / "m.json")


def test_what_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError, match="no such run"):
        runs_of(tmp_path / "nowhere")
    assert main(["compare", str(tmp_path)]) == 2
    assert "required: B" in capsys.readouterr().err


def test_the_command_in_every_notation_and_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_seeds(tmp_path / "a", [500.0, 480.0, 490.0, 470.0])
    write_seeds(tmp_path / "b", [300.0, 280.0, 290.0, 270.0])
    sides = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main([*sides, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["regression"] is True
    (task,) = data["return"]["tasks"]
    assert (task["mean_a"], task["mean_b"], task["difference"], task["verdict"]) == (
        485.0,
        285.0,
        -200.0,
        "worse",
    )
    assert task["p_worse"] == pytest.approx(1 / 70)
    assert main([*sides, "--format", "markdown"]) == 0
    assert "| ppo · CartPole-v1 | 4 | 485.0 | 285.0 | \u2212200.0 [" in capsys.readouterr().out
    code = (
        "import sys; from rl_training.cli import main; code = main(sys.argv[1:]);"
        "print(code, [m for m in ('torch', 'matplotlib', 'gymnasium') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code, *sides, "--fail-on-regression"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 []"
    assert "return: B is worse than A beyond noise (p = 0.014)" in done.stdout
