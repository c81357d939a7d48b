"""Where the time goes: a stopwatch with a few named hands, always on."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

PARTS = ("env", "inference", "learn", "evaluate", "save")


class Profiler:
    """Adds up seconds by part; what no part claims is `other`."""

    def __init__(self, parts: Sequence[str] = PARTS) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self._window_start = perf_counter()
        self._window_step = 0

    def start(self, step: int) -> None:
        """Begin a window of measurement at `step`."""
        self.take()
        self._window_start, self._window_step = perf_counter(), step

    def add(self, part: str, seconds: float) -> None:
        """Book `seconds` on `part`."""
        self.seconds[part] += seconds

    def take(self) -> dict[str, float]:
        """What has been booked so far; all hands go back to zero."""
        seconds, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return seconds

    def report(self, step: int) -> dict[str, float]:
        """Shares of the window's time and its steps per second; starts the next window."""
        elapsed = max(perf_counter() - self._window_start, 1e-9)
        shares = {f"time/{part}": seconds / elapsed for part, seconds in self.seconds.items()}
        shares["time/other"] = max(0.0, 1.0 - sum(shares.values()))
        rate = (step - self._window_step) / elapsed
        self.start(step)
        return {"steps_per_second": rate, **shares}
