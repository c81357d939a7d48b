"""An env that breaks on command; importing this module registers it as `axiom/Fragile-v0`."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.envs.toy import Identity, Step

Fault = Literal["none", "raise", "hang", "die", "stop", "segfault", "nan", "nan_reward"]


class Fragile(Identity):
    """`Identity` that breaks on command, for fault tests.

    It happens at step `at` of the episode with seed `seed`, or of any one; 0 is `reset`, -1 the constructor.
    """

    def __init__(self, fault: Fault = "none", at: int = 3, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(-1.0, 4.0, (1,), np.float32)
        self.fault, self.at, self.only_seed = fault, at, seed
        if at == -1:
            self._break()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, or break."""
        self._episode_seed = seed
        result = super().reset(seed=seed, options=options)
        if self._is_time():
            self._break()
        return result

    def step(self, action: Any) -> Step:
        """Step, or break."""
        obs, reward, terminated, truncated, info = super().step(action)
        if self._is_time():
            self._break()
            reward = np.nan if self.fault == "nan_reward" else reward
        return obs, reward, terminated, truncated, info

    def show(self) -> Any:
        """The number as a vector, or NaN."""
        broken = self.fault == "nan" and self._is_time()
        return np.array([np.nan if broken else self.target], dtype=np.float32)

    def _is_time(self) -> bool:
        return self._steps == self.at and self.only_seed in (None, self._episode_seed)

    def _break(self) -> None:
        if self.fault == "raise":
            raise RuntimeError("broken on command")
        if self.fault == "hang":
            time.sleep(3600.0)
        if self.fault == "die":
            os._exit(7)
        if self.fault in ("stop", "segfault"):
            faulthandler.disable()  # its report would only clutter the output of tests
            os.kill(os.getpid(), signal.SIGSTOP if self.fault == "stop" else signal.SIGSEGV)


gymnasium.register("axiom/Fragile-v0", entry_point=f"{__name__}:Fragile")
