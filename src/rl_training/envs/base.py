"""What training sees of many envs, wherever they are stepped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from rl_training.envs.snapshot import Grade
from rl_training.errors import EnvError
from rl_training.types import GoalTask, Spec, StepResult

if TYPE_CHECKING:
    from rl_training.types import Array, Obs


class VectorEnv(ABC):
    """Steps `num_envs` copies of an env and starts a new, explicitly seeded episode wherever one ended.

    Arrays it hands out are its own and change at the next call. Built by `make_vector_env`.
    """

    def __init__(
        self, backend: str, spec: Spec, num_envs: int, *, seed: int, render_fps: float = 30.0
    ) -> None:
        self.backend = backend
        self.spec = spec
        self.num_envs = num_envs
        self.seed = seed
        self.render_fps = render_fps
        self._limit: int | None = None
        self._action_shape = (num_envs, *(spec.action_space.shape or ()))
        self._closed = False
        self._started = False

    @property
    def time_limit(self) -> int | None:
        """Steps after which an episode is truncated here, if it is."""
        return self._limit

    @property
    @abstractmethod
    def episode_seeds(self) -> Array:
        """The seed each env's current episode started from."""

    @abstractmethod
    def observations(self) -> Obs:
        """What every env shows now: what the last `reset` or `step` gave as `obs`."""

    @abstractmethod
    def reset(self, *, seed: int | None = None) -> Obs:
        """Begin the next episode in every env, or with `seed` the first episode of another series."""

    @abstractmethod
    def cap_episodes(self, steps: int) -> None:
        """Truncate episodes after so many steps if nothing else ends them; native backends know their own."""

    @abstractmethod
    def step(self, actions: Array) -> StepResult:
        """Take one action in every env; envs whose episode ended already show their next one."""

    @abstractmethod
    def goal_task(self) -> GoalTask:
        """How the env judges goals; a ConfigError says why it does not."""

    @abstractmethod
    def render(self) -> list[Any]:
        """One frame an env, in the render mode the envs were made with."""

    @property
    @abstractmethod
    def resume_grade(self) -> Grade:
        """What `load_state_dict` can promise for the state as it is now, and why."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to put every env back."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> Grade:
        """Put every env back; says whether that was `exact`, or why some began their next `episode`."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the envs and end their processes; may be called twice."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError("the vector env is closed")

    def _check_step(self, shape: tuple[int, ...]) -> None:
        """Refuse actions of another shape, and steps before a reset or after the end."""
        if shape != self._action_shape:
            raise EnvError(f"actions have shape {tuple(shape)}, {self._action_shape} is needed")
        if self._closed or not self._started:
            self._check_open()
            raise EnvError("step() was called before reset()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
