"""ALE's own vector env: many games in C++ threads, without its autoreset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from rl_training.envs.backends import Env
from rl_training.envs.config import EnvConfig
from rl_training.envs.kinds import BACKENDS, BackendKind
from rl_training.errors import EnvError

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from rl_training.types import Array, Obs

_NEVER = 2**30  # agent steps: time limits are applied by `VectorEnv`


class AleBackend:
    """Ended games are reset at once, so that no step is lost to a reset.

    The first game of an env is played from its seed and is the same in every backend; later ones go on with
    the generator of the first. ALE's env hands out single frames, which are stacked here: its own stacks
    begin with black frames, where ours repeat the first one.
    """

    kind: ClassVar[BackendKind] = BACKENDS["ale"]
    direct: bool = False
    restarts: int = 0

    def __init__(
        self, spec: EnvSpec, num_envs: int, settings: EnvConfig, env_kwargs: Mapping[str, Any]
    ) -> None:
        if env_kwargs:
            raise EnvError(
                f"env.backend 'ale' takes no env_kwargs ({', '.join(env_kwargs)}): use sync or async"
            )
        atari = settings.atari
        # A subclass, because the constructor writes into the `metadata` that all vector envs share.
        games = type("Games", (AtariVectorEnv,), {"metadata": dict(AtariVectorEnv.metadata)})
        self.env: Any = games(
            spec.kwargs["game"],
            num_envs,
            num_threads=atari.threads,
            max_num_frames_per_episode=_NEVER,
            repeat_action_probability=atari.sticky_actions,
            full_action_space=atari.full_action_space,
            img_height=atari.screen_size,
            img_width=atari.screen_size,
            stack_num=1,
            frameskip=settings.frame_skip,
            maxpool=atari.max_pool,
            noop_max=atari.noop_max,
            episodic_life=False,  # would end the game with every life
            life_loss_info=False,
            reward_clipping=False,  # the learner's rewards are clipped where everybody's are
            use_fire_reset=atari.fire_reset,
        )
        size = atari.screen_size
        self._stacks = np.zeros((num_envs, settings.frame_stack, size, size), np.uint8)
        self.obs: Obs = self._stacks
        self.rewards = np.zeros(num_envs)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.truncated = np.zeros(num_envs, np.bool_)
        self.life_lost = np.zeros(num_envs, np.bool_) if atari.episodic_life else None
        self._lives = np.zeros(num_envs, np.int32)

    def reset(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin a new game in some envs, from a seed of its own or (-1) as the game's generator goes on."""
        chosen = np.zeros(len(self._lives), np.bool_)
        chosen[list(indices)] = True
        in_order = np.asarray(seeds, np.int64)[np.argsort(indices)]
        frames, info = self.env.reset(seed=in_order, options={"reset_mask": chosen})
        self._stacks[chosen] = frames[chosen]
        self._lives[chosen] = info["lives"][chosen]

    def step(self, actions: Array, indices: Sequence[int] | None = None) -> None:
        """Step all games."""
        if indices is not None:
            raise EnvError("the ale backend steps all envs or none")
        frames, self.rewards[:], self.terminated[:], _, info = self.env.step(actions)
        self.truncated.fill(False)
        stacks, lives = self._stacks, info["lives"]
        for k in range(stacks.shape[1] - 1):
            stacks[:, k] = stacks[:, k + 1]
        stacks[:, -1] = frames[:, 0]
        if self.life_lost is not None:
            self.life_lost[:] = (lives > 0) & (lives < self._lives) & ~self.terminated
        self._lives[:] = lives

    def capture(self, indices: Sequence[int]) -> list[Any]:
        """Nothing: ALE's vector env does not show its state."""
        return [None for _ in indices]

    def restore(self, indices: Sequence[int], states: Sequence[Any]) -> list[str | None]:
        """Nothing."""
        return ["the ale backend cannot be restored" for _ in indices]

    def success(self, i: int) -> bool | None:
        """Games have scores, not goals."""
        return None

    def judge(self) -> Env:
        """There is no env that judges."""
        raise EnvError("env.backend 'ale' has no envs with goals")

    def render(self) -> list[Any]:
        """Nothing: ALE's vector env does not draw."""
        raise EnvError("env.backend 'ale' cannot render: use sync")

    def close(self) -> None:
        """End the threads."""
        self.env = None
