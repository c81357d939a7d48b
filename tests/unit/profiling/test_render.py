"""What `axiomrl profile` prints, on fixed numbers."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from profiles import ASYNC, COMPILE, MORE, NATIVE, THREADS, make_profile, trial

from rl_training.profiling.compare import Comparison, Trial
from rl_training.profiling.data import to_data
from rl_training.profiling.render import NOTHING, STOPPED, WIDTH, as_text, bar
from rl_training.profiling.tuning import Tuned

TEXT = """\
ppo on CartPole-v1
  num_envs: 8, env.backend: sync, threads: {threads}, device: cpu, compile: auto,
  collection: serial, learners: 1

part       seconds   share  µs/step
env           2.50   25.0%     39.1
inference     2.00   20.0%     31.2
transfer      0.00    0.0%      0.0
learn         5.00   50.0%     78.1
overhead      0.50    5.0%      7.8
all          10.00  100.0%    156.2
64,000 steps and 2,000 updates: 6,400 steps/s

|==== env 25% =====| inference 20% |============= learn 50% =============|=o=|

limit: learn, 50% of the time

ceiling                     steps/s  reached
envs alone, random actions   32,000      20%
updates alone, one batch     12,800      50%
  400 updates/s, one for 32.0 steps

tried                steps/s  present  ratio
env.backend: native    1,400    1,000   1.40  same results
  faster, but the whole run less so than with compile: on
threads: 2             1,100    1,000   1.10  same algorithm
  20 s to start
  pays from 214,500 steps on, and the run has 100,000
compile: on            2,500    1,000   2.50  same algorithm
  23.6 s to start the first time, 4.5 s from then on
  measured twice, this is the second time; the first ratio was 2.60
num_envs: 32           2,000    1,000   2.00  changes the data
ratio: taken in each turn, then the median of the turns, as are both speeds
whole run: total_timesteps with its start, without evaluations and checkpoints
not tried, too little to gain: env.backend: async
not possible: num_envs: 64 (OutOfMemoryError: CUDA out of memory. Tried to
  allocate 20.00 GiB.)

suggestion: compile: on makes the whole run 2.26 times as fast, same algorithm
  axiomrl train --preset 'a b' --compile on
suggestion: num_envs: 32 makes the whole run 1.99 times as fast, but it
  changes what is learnt from
  axiomrl train --preset 'a b' --num-envs 32
"""
FULL = "OutOfMemoryError: CUDA out of memory. Tried to\nallocate 20.00 GiB."


def test_text() -> None:
    compiled = trial(COMPILE, 2.5, 2.5, 2.5, start_up_s=4.5)
    assert compiled.comparison is not None
    compiled = dataclasses.replace(
        compiled,
        comparison=dataclasses.replace(compiled.comparison, first_start_up_s=23.6),
        first=trial(COMPILE, 2.6).comparison,
    )
    profile = make_profile(
        trial(NATIVE, 1.3, 1.4, 1.5),
        trial(THREADS, 1.1, 1.1, 0.9, start_up_s=20.0),
        compiled,
        trial(MORE, 2.0, 2.0, 2.0),
        Trial(ASYNC, skipped="it could not bring anything"),
        Trial(dataclasses.replace(MORE, value=64), error=FULL),
    )
    expected = TEXT.replace("{threads}", str(profile.config.threads))
    assert as_text(profile, ["axiomrl", "train", "--preset", "a b"]) == expected


def test_a_report_fits_a_terminal() -> None:
    big = 1e9
    parts = {"wait": 9e5, "env": 0.0, "inference": 0.0, "transfer": 2.0, "learn": 9e5, "overhead": 3.0}
    slow = Comparison((big,) * 3, (1.2 * big,) * 3, 10**15, 123.4, 0.5, first_start_up_s=456.7)
    noise = Trial(NATIVE, slow, at_most=1.0, first=slow)
    wordy = dataclasses.replace(NATIVE, key="collection", value="pipelined", note="words " * 30)
    command = ["axiomrl", "train", "--config", "some/where/far away/mine.yaml"]
    command += [f"--hyperparams.learning-rate=1e-{n}" for n in range(8)]
    profile = dataclasses.replace(
        make_profile(
            noise, Trial(COMPILE, slow), Trial(wordy, slow), Trial(MORE, slow),
            *(Trial(dataclasses.replace(ASYNC, value=f"value{n}"), skipped="no") for n in range(9)),
            *(Trial(dataclasses.replace(ASYNC, value=n), error="why " * 99) for n in range(2)),
            tuned=Tuned((NATIVE, ASYNC, THREADS, COMPILE, MORE), slow),
        ),
        parts=parts, sampler={"env": 1.0, "inference": 1.0, "idle": 1.0}, update_speed=None,
        steps_per_second=big / 3, problems={"updates": "RuntimeError: " + "why " * 50},
    )  # fmt: skip
    text = as_text(profile, command)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    for option in ("--compile on", "--num-envs 32"):  # a shell reads what is broken as one line
        assert shlex.join([*command, *option.split()]) in " ".join(text.replace("\\\n", "").split())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Trial(NATIVE, Comparison((1.0,) * 3, (1.48,) * 3, 9), at_most=1.14),
         "noise: the parts that it helps leave room for 1.14 at most"),
        (trial(NATIVE, 0.99, 1.3, 1.3), "in too few turns"),
        (trial(NATIVE, 1.1, 1.1, 1.1, start_up_s=8.0), "with its start the whole run is 1.02 times as fast"),
    ],
    ids=["noise", "unsteady", "start"],
)  # fmt: skip
def test_what_looks_faster_and_is_not_taken_says_why(found: Trial, words: str) -> None:
    profile = make_profile(found)
    assert f"\n  {words}\n" in as_text(profile)
    assert as_text(profile).endswith(f"\n{NOTHING}\n")
    assert to_data(profile)["suggestion"] is None
    assert to_data(profile)["candidates"][0]["at_most"] == (1.14 if found.is_noise else None)


def test_ceilings_that_are_not_known() -> None:
    profile = dataclasses.replace(
        make_profile(), env_steps_per_second=None, problems={"env": "OSError: too many open files"}
    )
    text, ceilings = as_text(profile), to_data(profile)["ceilings"]
    assert "updates alone, one batch   12,800      50%\n  400 updates/s, one for 32.0 steps\n" in text
    assert "\nenv alone: could not be measured (OSError: too many open files)\n" in text
    assert ceilings["env"] == {"steps_per_second": None, "error": "OSError: too many open files"}
    assert ceilings["updates"]["error"] is None


def test_what_was_stopped_suggests_nothing() -> None:
    stopped = make_profile(trial(NATIVE, 1.5, 1.5), complete=False)
    text = as_text(stopped, ["axiomrl", "train"])
    assert "\nenv.backend: native    1,500    1,000   1.50  same results\n" in text
    assert text.endswith(f"\n\n{STOPPED}\n")
    assert (to_data(stopped)["complete"], to_data(stopped)["suggestion"]) == (False, None)


def test_bars_are_proportional_whatever_the_shares() -> None:
    shares = {"env": 0.5, "inference": 0.25, "transfer": 0.125, "learn": 0.125}
    assert bar(shares, width=65) == (
        "|=========== env 50% ===========| inference 25% |=t=====|=learn=|".replace("=t=====", "===t===")
    )
    for tiny in (0.0, 1e-9, 0.003, 0.02, 0.4):
        line = bar({"env": 1 - 2 * tiny, "learn": tiny, "overhead": tiny})
        assert len(line) == WIDTH
        assert line[0] == line[-1] == "|"


@pytest.mark.parametrize(
    "ratios", [(1.04, 1.04, 1.04), (0.99, 1.3, 1.3), (0.5, 0.5, 0.5)], ids=["little", "unsteady", "slower"]
)
def test_nothing_found(ratios: tuple[float, ...]) -> None:
    profile = make_profile(trial(NATIVE, *ratios), trial(MORE, *ratios), Trial(ASYNC, error="not here"))
    text = as_text(profile)
    assert text.endswith("\n\nnothing found that is faster\n")
    assert "\nnot possible: env.backend: async (not here)\n" in text
    assert to_data(profile)["suggestion"] is None


def test_what_does_not_repay_its_start_is_not_suggested() -> None:
    slow = trial(COMPILE, 2.0, 2.0, 2.0, start_up_s=34.5, steps=20_000)
    profile = make_profile(slow, trial(NATIVE, 1.2, 1.2, 1.2, steps=20_000))
    text = as_text(profile)
    assert "  34.5 s to start\n  pays from 68,000 steps on, and the run has 20,000\n" in text
    assert "suggestion: env.backend: native makes the whole run 1.19 times as fast" in text
    assert "suggestion: compile" not in text
    data = to_data(profile)
    assert data["suggestion"]["key"] == "env.backend"
    assert {key: data["candidates"][0][key] for key in ("faster", "ratio", "pays_from_step")} == {
        "faster": False, "ratio": 2.0, "pays_from_step": 68_000,
    }  # fmt: skip
    assert data["candidates"][0]["run_ratio"] == pytest.approx(20.5 / 44.5)
    assert data["candidates"][0]["present_start_up_s"] == 0.5
    assert as_text(make_profile(slow)).endswith("nothing found that is faster\n")


def test_on_a_gpu_watching_means_waiting() -> None:
    profile = dataclasses.replace(make_profile(), steps_per_second=9600.0)
    text = as_text(profile)
    assert "2,000 updates: 6,400 steps/s; 9,600 when not watched\n" in text
    assert "updates alone, one batch     12,800      75%" in text
    assert to_data(profile)["training"]["steps_per_second"] == 9600.0


@pytest.mark.parametrize(
    ("wait", "env", "limit"),
    [
        (6.0, 7.0, "sampler env, for which the learner waits 60% of the time"),
        (6.0, 1.0, "sampler inference, for which the learner waits 60% of the time"),
        (3.0, 7.0, "learn, 65% of the time"),
    ],
)
def test_a_wait_for_the_sampler_is_named_after_what_takes_it_long(
    wait: float, env: float, limit: str
) -> None:
    parts = {
        "wait": wait,
        "env": 0.0,
        "inference": 0.0,
        "transfer": 0.0,
        "learn": 9.5 - wait,
        "overhead": 0.5,
    }
    sampler = {"env": env, "inference": 8.0 - env, "idle": 2.0}
    profile = dataclasses.replace(make_profile(), parts=parts, sampler=sampler)
    text = as_text(profile)
    inference = (8.0 - env) / 10
    assert (
        f"limit: {limit}\nsampler: env {env / 10:.0%}, inference {inference:.0%}, idle 20% of its own time\n"
        in text
    )
    assert [line.split()[0] for line in text.splitlines()[5:9]] == ["wait", "learn", "overhead", "all"]
    training = to_data(profile)["training"]
    assert training["limit"] == limit.split(",")[0]
    assert training["sampler"]["env"] == {"seconds": env, "share": env / 10}


def test_autotune_is_reported() -> None:
    comparison = Comparison((1000.0,), (1500.0,), 3000, start_up_s=1.0, present_start_up_s=0.0)
    kept = make_profile(tuned=Tuned((NATIVE, THREADS), comparison))
    assert as_text(kept).endswith(
        "autotune: env.backend: native, threads: 2: the whole run 1.00 times as fast\n"
    )
    none = make_profile(tuned=Tuned((), None))
    assert as_text(none).endswith("autotune: the present settings are kept\n")
