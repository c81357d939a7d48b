"""Every moment of a profile run belongs to one part, and being watched changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.experiment.config import TrainConfig
from rl_training.profiling.bench import Bench
from rl_training.runtime import stopwatch
from rl_training.runtime.stopwatch import PARTS, PIPELINED_PARTS, Stopwatch, measured, updating

PPO: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "num_envs": 2, "network": {"hidden": [8]},
    "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 3},
}  # fmt: skip
DQN: dict[str, Any] = {
    "algo": "dqn", "env_id": "CartPole-v1", "num_envs": 2, "network": {"hidden": [8]},
    "hyperparams": {"learning_starts": 8, "batch_size": 8, "buffer_size": 200, "train_every": 4},
}  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: now[0])
    return now


def test_an_inner_part_is_not_counted_twice(clock: list[float]) -> None:
    watch = Stopwatch()
    clock[0] = 1.0  # overhead
    watch.enter("learn")
    clock[0] = 3.0
    watch.enter("transfer")
    clock[0] = 3.5
    watch.leave()
    clock[0] = 4.0
    watch.leave()
    clock[0] = 4.25
    watch.mark()
    assert watch.seconds == {"env": 0, "inference": 0, "transfer": 0.5, "learn": 2.5, "overhead": 1.25}
    assert watch.total == 4.25


def test_what_learning_asks_of_the_policy_is_learning(clock: list[float]) -> None:
    watch = Stopwatch()
    watch.enter("learn")
    watch.enter("inference")
    clock[0] = 2.0
    watch.leave()
    watch.leave()
    assert (watch.seconds["learn"], watch.seconds["inference"]) == (2.0, 0.0)


def test_every_change_of_parts_waits_for_the_device(clock: list[float]) -> None:
    def wait() -> None:  # what was launched takes a second
        clock[0] += 1.0

    watch = Stopwatch(wait)
    act = watch.wrap(lambda: None, "act", "inference")
    act()
    act()
    assert watch.seconds["inference"] == 2.0  # and not the part that comes next
    assert watch.calls["act"] == 2


def test_a_failure_leaves_the_part(clock: list[float]) -> None:
    watch = Stopwatch()

    def fail() -> None:
        clock[0] += 1.0
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        watch.wrap(fail, "step", "env")()
    clock[0] += 2.0
    watch.mark()
    assert (watch.seconds["env"], watch.seconds["overhead"]) == (1.0, 2.0)


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_parts_add_up_and_being_watched_changes_nothing(settings: dict[str, Any]) -> None:
    with Bench(TrainConfig(**settings)) as watched, Bench(TrainConfig(**settings)) as alone:
        trainer = watched.trainer
        untouched = [dict(vars(o)) for o in (trainer, trainer.envs, trainer.algorithm.policy)]
        with measured(trainer) as watch:
            for _ in range(8):
                trainer.advance()
        after = [vars(o).keys() for o in (trainer, trainer.envs, trainer.algorithm.policy)]
        assert after == [before.keys() for before in untouched]
        for _ in range(8):
            alone.trainer.advance()
        ours, theirs = (b.trainer.algorithm.policy.state_dict() for b in (watched, alone))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert watch.total == pytest.approx(sum(watch.seconds.values()))
    assert list(watch.seconds) == list(PARTS)
    assert all(watch.seconds[part] > 0 for part in ("env", "inference", "learn", "overhead"))
    assert watch.seconds["transfer"] == 0  # there is but one memory
    assert watch.calls["iterate"] == 8
    rollout, updates = (8 * 16, 8 * 6) if settings is PPO else (8 * 2, 7)  # the first one is before learning
    assert (watch.calls["step"], watch.calls[updating(trainer)[1]]) == (rollout, updates)


@pytest.mark.parametrize("settings", [PPO, DQN], ids=["ppo", "dqn"])
def test_waiting_for_a_sampler_is_a_part_of_its_own(settings: dict[str, Any]) -> None:
    with Bench(TrainConfig(**settings, collection="pipelined", logging={"every_steps": 1})) as bench:
        trainer = bench.trainer
        trainer.advance()
        begun = dict(trainer.collector.seconds)
        with measured(trainer) as watch:
            for _ in range(8):
                trainer.advance()
    assert list(watch.seconds) == list(PIPELINED_PARTS)
    assert watch.calls["_wait"] == 8
    assert min(watch.seconds[part] for part in ("wait", "learn", "overhead")) > 0.0
    assert watch.seconds["env"] == watch.seconds["inference"] == 0.0  # which are the sampler's
    assert watch.sampler == {part: trainer.collector.seconds[part] - begun[part] for part in begun}
    assert min(watch.sampler.values()) > 0.0


@pytest.mark.parametrize("storage", ["", "device"])
def test_every_place_where_data_goes_to_a_device_is_measured_there(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the device were another than the host's memory."""
    settings = DQN | {"hyperparams": DQN["hyperparams"] | {"buffer_storage": storage}} if storage else PPO
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with Bench(TrainConfig(**settings)) as bench:
        trainer, cpu = bench.trainer, bench.trainer.device
        crossings = stopwatch._crossings(trainer)
        monkeypatch.setattr(stopwatch, "_crossings", lambda trainer: crossings)
        trainer.device = torch.device("cuda")
        with measured(trainer) as watch:
            trainer.device = cpu
            for _ in range(6):
                trainer.advance()
    assert watch.seconds["transfer"] > 0
    names = {name for _, name, _ in crossings}
    assert all(watch.calls[name] for name in names)
    if storage:
        assert names == {"to_device", "to_host", "add"}
    else:
        assert names == {"to_host", "observe", "_publish"}
        assert watch.calls["to_host"] == watch.calls["step"] == 6 * 16
