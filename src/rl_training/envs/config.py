"""The `env` section: how environments are stepped and what is wrapped around them."""

from __future__ import annotations

from dataclasses import field

from rl_training.envs.kinds import BACKENDS, BackendName
from rl_training.schema import Bool, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, config


@config
class AtariConfig:
    """How ALE games are played and seen. Read only with `preprocess: true`; the same in every backend."""

    preprocess: Bool = False
    """Play by the Atari protocol: grey frames as `(frame_stack, size, size)`, everything below applied."""
    screen_size: PositiveInt = 84
    """Height and width to which the grey screen is scaled by averaging over areas."""
    max_pool: Bool = True
    """See the brighter of the last two screens of a step: many games draw objects every other frame."""
    noop_max: NonNegativeInt = 30
    """A game starts with a random number of idle frames below this; 0: none."""
    fire_reset: Bool = False
    """Press FIRE at the start of a game, where that is an action."""
    sticky_actions: Fraction = 0.0
    """Probability with which a frame repeats the last action instead of taking the new one."""
    full_action_space: Bool = False
    """All 18 actions instead of those that the game uses."""
    episodic_life: Bool = False
    """For the learner, a lost life ends the episode; the game, statistics and evaluations go on."""
    threads: NonNegativeInt = 0
    """Threads of the ale backend; 0: one a core, and no more than envs."""


@config
class EnvConfig:
    """Backend, wrappers and normalisation. Everything here is applied the same way in every backend."""

    backend: BackendName = "auto"
    """sync: one process; async: a process an env; native: CartPole only; ale: Atari only, in threads, games
    start anew after a resume; batched: classic control and your own, as tensors on `device`; auto: sync, for
    CartPole from 16 envs on native, and batched for what exists as tensors only."""
    worker_timeout: PositiveFloat = 60.0
    """Seconds after which an async worker that does not answer is reported as hung."""
    max_worker_restarts: NonNegativeInt = 0
    """Restart async workers that die, hang or raise this often in all; their episodes are truncated."""
    frame_skip: PositiveInt = 1
    """Repeat each action this many times and sum the rewards; one agent step."""
    frame_stack: PositiveInt = 1
    """Stack the last n observations along a new first axis (images: along the channels)."""
    pixels: Bool = False
    """Show the picture that the env renders (`rgb_array`) instead of its observation."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """The Atari protocol."""
    grayscale: Bool = False
    """Turn RGB images into one grey channel."""
    resize: tuple[PositiveInt, PositiveInt] | None = None
    """Resize images to (height, width)."""
    max_episode_steps: PositiveInt | None = None
    """Time limit in agent steps; null: the env's registered limit."""
    normalize_obs: Bool = False
    """Normalise observations by running statistics that live in the policy and are saved with it."""
    normalize_reward: Bool = False
    """Divide the learner's rewards by the running deviation of the discounted return."""
    clip_reward: PositiveFloat | None = None
    """Clip the learner's rewards to [-c, c]. Episode statistics always use raw rewards."""
    reward_scale: PositiveFloat = 1.0
    """Multiply the learner's rewards. Episode statistics always use raw rewards."""

    def problems(self, env_id: str) -> list[str]:
        """What is impossible in combination with the env or within this section."""
        if not self.atari.preprocess:
            kind = BACKENDS.get(self.backend)
            needs = f"env.backend: {self.backend!r} needs env.atari.preprocess: true"
            return [needs] if kind is not None and kind.atari_only else []
        problems = []
        if self.pixels:
            problems.append("env.pixels: env.atari.preprocess shows the screen already")
        if not env_id.startswith("ALE/"):
            problems.append(f"env.atari.preprocess: {env_id!r} is no ALE game (those are called ALE/Pong-v5)")
        if self.grayscale or self.resize is not None:
            key = "grayscale" if self.grayscale else "resize"
            problems.append(f"env.{key}: env.atari.preprocess does this already; see env.atari.screen_size")
        return problems
