"""Plans for the runner, which trains nothing in them: `fake_axiomrl.py` stands in for training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.zoo import runner
from rl_training.zoo.display import NoDisplay
from rl_training.zoo.jobs import Job
from rl_training.zoo.manifest import Plan
from rl_training.zoo.runner import Runner
from rl_training.zoo.suites import Protocol

FAKE = Path(__file__).with_name("fake_axiomrl.py")
SOURCE = Path(runner.__file__).parents[2]


def make_plan(folder: Path, seeds: tuple[int, ...] = (1, 2, 3), *arguments: str) -> Plan:
    facts = {"preset": "ppo/x", "algo": "ppo", "env_id": "X-v0"}
    protocol = Protocol(episodes=2)
    jobs = [Job("ppo/x", s, arguments, folder / f"seed{s}", 5, protocol, facts) for s in seeds]
    return Plan("x", folder, ["axiomrl", "zoo", "run", "x"], jobs, protocol, {"ppo/x": (20.0, 21.0)})


class Events(NoDisplay):
    """Keeps what would be shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def event(self, text: str) -> None:
        self.lines.append(text)


def run(plan: Plan, width: int = 2, display: NoDisplay | None = None) -> tuple[Runner, dict[str, Any]]:
    made = Runner(plan, width, display or NoDisplay())
    return made, made.run()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
