"""Where the time goes: a stopwatch with a few named hands, always on."""

from __future__ import annotations

from time import perf_counter

PARTS = ("env", "inference", "learn", "evaluate", "save")


class Profiler:
    """Adds up seconds by part; what no part claims is `other`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._window_start = perf_counter()
        self._window_step = 0

    def start(self, step: int) -> None:
        """Begin a window of measurement at `step`."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._window_start, self._window_step = perf_counter(), step

    def add(self, part: str, seconds: float) -> None:
        """Book `seconds` on `part`."""
        self.seconds[part] += seconds

    def report(self, step: int) -> dict[str, float]:
        """Shares of the window's time and its steps per second; starts the next window."""
        elapsed = max(perf_counter() - self._window_start, 1e-9)
        shares = {f"time/{part}": seconds / elapsed for part, seconds in self.seconds.items()}
        shares["time/other"] = max(0.0, 1.0 - sum(shares.values()))
        rate = (step - self._window_step) / elapsed
        self.start(step)
        return {"steps_per_second": rate, **shares}
