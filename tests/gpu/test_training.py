"""What only a real GPU can show: recorded and compiled training there is exact, repeatable and resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.data.storage import pinned, seen_by
from rl_training.experiment.checkpoint import read_checkpoint
from rl_training.runtime.device import resolve_device
from rl_training.runtime.recorded import captured

OFF_POLICY = {"learning_starts": 200, "batch_size": 64, "buffer_size": 2000}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"algo": "ppo", "env_id": "CartPole-v1"},
    "ppo-batched": {"algo": "ppo", "env_id": "CartPole-v1", "env": {"backend": "batched"}, "num_envs": 64},
    "dqn": {"algo": "dqn", "env_id": "CartPole-v1", "hyperparams": OFF_POLICY},
    "sac": {"algo": "sac", "env_id": "Pendulum-v1", "hyperparams": OFF_POLICY},
    "sac-memory": {
        "algo": "sac", "env_id": "Pendulum-v1", "hyperparams": OFF_POLICY | {"buffer_storage": "memory"},
    },
    "td3": {"algo": "td3", "env_id": "Pendulum-v1", "hyperparams": OFF_POLICY},
    "td3-rounds": {
        "algo": "td3", "env_id": "Pendulum-v1",
        "hyperparams": OFF_POLICY | {"train_every": 3, "gradient_steps": 3},
    },
    "td3-odd": {
        "algo": "td3", "env_id": "Pendulum-v1", "hyperparams": OFF_POLICY, "network": {"hidden": [400, 300]},
    },
    "ddpg-ou": {
        "algo": "ddpg", "env_id": "Pendulum-v1", "hyperparams": OFF_POLICY | {"exploration_noise": "ou"},
    },
}  # fmt: skip


class Interrupt(rl_training.Callback):
    """Stops a run in the middle, as something that is to be resumed."""

    def on_update(self, trainer: Any) -> None:
        if trainer.global_step >= 1000:
            trainer.interrupt("the test")


def settings(case: str, folder: Path, mode: str) -> dict[str, Any]:
    return {
        "total_timesteps": 16_384 if case.startswith("ppo") else 2000,
        "device": "cuda", "deterministic": True, "compile": mode, "output_dir": str(folder),
        "evaluation": {"every_steps": 0}, "logging": {"tensorboard": False},
        **CASES[case],
    }  # fmt: skip


def weights_of(run_dir: Path) -> dict[str, Any]:
    """What the run has learned, and how the recording of it went."""
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["compilation"]["problems"] == []
    state = read_checkpoint(run_dir / metadata["latest_checkpoint"]).state
    return dict(state["policy"])


@pytest.mark.parametrize("mode", ["auto", "on"])
@pytest.mark.parametrize("case", CASES)
def test_recorded_training_repeats_and_resumes_to_the_bit(case: str, mode: str, tmp_path: Path) -> None:
    config = settings(case, tmp_path, mode)
    whole, again = (weights_of(rl_training.train(config).run_dir) for _ in range(2))
    stopped = rl_training.train(config, callbacks=[Interrupt()])
    resumed = weights_of(rl_training.resume(stopped.run_dir).run_dir)
    assert stopped.status == "interrupted"
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name], err_msg=name)
        np.testing.assert_array_equal(whole[name], resumed[name], err_msg=name)


def test_a_graph_draws_what_it_should_however_late_its_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a recording torch sets the generators' places on the stream that is recorded."""
    second = 2_000_000_000  # about that, in ticks of the GPU
    begin = torch.cuda.CUDAGraph.capture_begin

    def late(graph: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> None:
        torch.cuda._sleep(second // 2)
        begin(graph, *args, **kwargs)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    generator, drawn = torch.Generator("cuda").manual_seed(3), torch.zeros(8, device="cuda")

    def draw() -> list[torch.Tensor]:
        torch.cuda._sleep(second)  # the place is set, and changed before it is read
        drawn.copy_(torch.rand(8, generator=generator, device="cuda"))
        return []

    draw()  # so that what follows begins in the middle
    place = generator.get_state()
    graph = captured(draw)  # which compares, too
    found = [(graph(), drawn.tolist())[1] for _ in range(2)]
    generator.set_state(place)
    assert found == [(draw(), drawn.tolist())[1] for _ in range(2)]


def test_a_gpu_reads_pinned_memory_as_the_host_has_written_it() -> None:
    rows = pinned()((1000, 3), torch.float32)
    shown = seen_by(resolve_device("cuda"))(rows)
    rows[5] = 7.0
    assert shown.dtype == torch.float32
    assert shown[5].tolist() == [7.0, 7.0, 7.0]
    assert float(shown.sum()) == 21.0
