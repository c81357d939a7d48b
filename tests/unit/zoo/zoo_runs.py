"""Run directories written by hand, so that every number in them is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

NAME = "ppo__CartPole-v1__seed7__20260102T030405Z"
STEPS = (1000, 2000, 4000)
# The three lines cover 1 s, 3 s and 4 s of training.
ELAPSED = (1.0, 4.0, 8.0)
SHARES = {
    "env": (0.5, 0.1, 0.25),
    "inference": (0.1, 0.1, 0.25),
    "learn": (0.3, 0.7, 0.25),
    "evaluate": (0.0, 0.1, 0.125),
    "save": (0.0, 0.0, 0.0625),
    "other": (0.1, 0.0, 0.0625),
}
RETURNS = (21.25, 143.5, 251.75)


def metrics() -> list[dict[str, Any]]:
    """Three log lines."""
    return [
        {
            "global_step": STEPS[i],
            "elapsed_s": ELAPSED[i],
            "steps_per_second": 1000.0 * (i + 1),
            **{f"time/{part}": shares[i] for part, shares in SHARES.items()},
            "rollout/return_mean": RETURNS[i],
            "rollout/length_mean": RETURNS[i] + 1,
            "train/policy_loss": -0.0123 * (i + 1),
            "train/approx_kl": 4.5e-07 * (i + 1),
            "train/ent_coef": 0.25,
        }
        for i in range(3)
    ]


def evaluations() -> list[dict[str, Any]]:
    """Three evaluations, the second the best."""
    return [
        {
            "global_step": step,
            "elapsed_s": elapsed,
            "return_mean": mean,
            "return_std": std,
            "returns": returns,
        }
        for step, elapsed, mean, std, returns in (
            (1000, 1.5, 110.0, 8.165, [100.0, 110.0, 120.0]),
            (2000, 5.0, 480.0, 16.330, [460.0, 480.0, 500.0]),
            (4000, 9.25, 452.5, 38.891, [425.0, 480.0]),
        )
    ]


def metadata() -> dict[str, Any]:
    """A finished run."""
    return {
        "schema_version": 1,
        "status": "completed",
        "created_at_utc": "2026-01-02T03:04:05+00:00",
        "ended_at_utc": "2026-01-02T03:04:15+00:00",
        "command": ["axiomrl", "train", "--preset", "ppo/cartpole", "--tags", "two words"],
        "preset": "ppo/cartpole",
        "tags": ["first", "second"],
        "system": {"platform": "Linux-6.1", "python": "3.11.7"},
        "versions": {"axiomrl": "0.1.0", "torch": "2.13.0+cpu"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "is_dirty": True},
        "hardware": {"cpu": "A Processor", "cores": 2, "ram_bytes": 8 * 2**30, "gpus": []},
        "latest_checkpoint": "checkpoints/step_4000",
        "best_checkpoint": "checkpoints/step_2000",
        "stop_reason": None,
        "resume_grade": {"grade": "exact", "reason": "every env is where it was"},
        "resumes": [
            {"at_utc": "2026-01-02T03:04:09+00:00", "step": 2000, "grade": "numeric", "reason": "torch"}
        ],
    }


def config() -> dict[str, Any]:
    """A resolved config, shortened."""
    return {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 7,
        "total_timesteps": 4096,
        "tags": ["first"],
        "hyperparams": {"learning_rate": 0.00025, "target_kl": None, "normalize_advantages": True},
        "evaluation": {"every_steps": 1000, "episodes": 3},
    }


def write_run(parent: Path, *, name: str = NAME, **replaced: Any) -> Path:
    """A run directory; `replaced` overrides its parts, None leaves one out."""
    parts = {"metadata": metadata(), "config": config(), "metrics": metrics(), "evaluations": evaluations()}
    parts |= replaced
    path = parent / name
    for step, content in ((2000, b"x" * 2048), (4000, b"x" * 512)):
        folder = path / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("")
        (folder / "policy.safetensors").write_bytes(content)
    if parts["metadata"] is not None:
        (path / "metadata.json").write_text(json.dumps(parts["metadata"]))
    if parts["config"] is not None:
        (path / "config.yaml").write_text(yaml.safe_dump(parts["config"], sort_keys=False))
    for file in ("metrics", "evaluations"):
        if parts[file] is not None:
            (path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in parts[file]))
    return path


def write_seeds(
    parent: Path,
    finals: Sequence[float],
    *,
    algo: str = "ppo",
    env: str = "CartPole-v1",
    preset: str | None = None,
    status: str = "completed",
    seconds: float = 10.0,
    spread: float = 0.0,
    **settings: Any,
) -> list[Path]:
    """Runs that differ in their seed: two evaluations each, half the final score and the final score."""
    paths = []
    for seed, final in enumerate(finals):
        rows = [
            {
                "global_step": step, "elapsed_s": seconds * step / 2000, "return_mean": mean,
                "return_std": spread, "returns": [mean - spread, mean + spread],
            }
            for step, mean in ((1000, final / 2), (2000, final))
        ]  # fmt: skip
        logged = [{"global_step": 2000, "elapsed_s": seconds, "rollout/return_mean": final}]
        own = config() | {"algo": algo, "env_id": env, "seed": seed} | settings
        data = metadata() | {"preset": preset, "status": status, "resumes": []}
        name = f"{algo}__{env}__seed{seed}__20260102T030405Z"
        parts = {"config": own, "metadata": data, "metrics": logged, "evaluations": rows}
        paths.append(write_run(parent, name=name, **parts))
    return paths
