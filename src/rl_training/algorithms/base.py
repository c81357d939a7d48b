"""What every algorithm is: an update rule with networks, optimisers and schedules, and a public lifecycle.

An algorithm knows nothing of environments, buffers, files or loops. Its lifecycle methods (`learn`, `save`,
`evaluate`, …) are one-line calls into `rl_training.api`, which knows them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from rl_training.algorithms.generators import go_on_from
from rl_training.algorithms.optim import (
    Adam,
    GuardedOptimizer,
    descend,
    load_optimizer_state,
    optimizer_state,
)
from rl_training.errors import ConfigError
from rl_training.functional.schedules import scheduled
from rl_training.policies.config import NetworkConfig
from rl_training.policies.encoders import set_precision
from rl_training.policies.exploration import Exploration
from rl_training.schema import Bool, Fraction, NonNegativeInt, PositiveInt, ScheduleKind, config
from rl_training.types import Averaging, Batch, Obs, RolloutBatch, Spec, TransitionBatch, UpdateResult

__all__ = [
    "Adam",
    "Algorithm",
    "Context",
    "OffPolicyAlgorithm",
    "OffPolicyHyperparams",
    "OnPolicyAlgorithm",
    "OnPolicyHyperparams",
    "Scheduled",
    "descend",
]


@dataclass(frozen=True, slots=True)
class Context:
    """All that an algorithm is told about its surroundings."""

    spec: Spec
    hyperparams: Any
    network: NetworkConfig
    device: torch.device
    seed: int = 0
    normalize_obs: bool = False
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"


class Scheduled:
    """A hyperparameter that changes over the run, on the device so that no update reads the host."""

    def __init__(self, initial: float, kind: ScheduleKind, device: torch.device) -> None:
        self.initial, self.kind = initial, kind
        self.value = torch.tensor(initial, dtype=torch.float32, device=device)

    def set_progress(self, progress: float) -> None:
        """Move to `progress` in [0, 1] of the schedule's horizon."""
        if self.kind != "constant":
            self.value.fill_(scheduled(self.initial, self.kind, progress))


class Algorithm(ABC):
    """An update rule. Subclasses implement `build` and `update`; the rest is shared."""

    family: ClassVar[str]
    Hyperparams: ClassVar[type[Any]]
    eager_only: ClassVar[str] = ""
    """Why updates can be neither compiled nor captured, where they cannot: shapes that change, say."""

    alone_only: ClassVar[str] = ""
    """Why several learners cannot train together, where they cannot: its steps are no means, say."""

    policy: Any
    """What acts. It is saved, loaded and exported; the collector and the evaluator see nothing else."""
    networks: dict[str, torch.nn.Module]
    """What learning needs beside the policy: critics, target networks, …"""
    hyperparams: Any
    averaging: Averaging | None = None
    """Where several learners train together: means over all of them."""
    generator: torch.Generator
    """What an update draws from, where it is random; saved with the rest."""
    session: Any = None
    """What `api` remembers between lifecycle calls (config, env, run); None when built from a context."""

    def __init__(self, config: Any = None, *, env: Any = None, **overrides: Any) -> None:
        from rl_training import api

        self.session = api.open_session(type(self), config, env, overrides)
        self._setup(self.session.context)

    @classmethod
    def from_context(cls, context: Context) -> Self:
        """Build the bare update rule, without a configuration or an environment."""
        algorithm = cls.__new__(cls)
        algorithm._setup(context)
        return algorithm

    def _setup(self, context: Context) -> None:
        self.context = context
        self.hyperparams = context.hyperparams
        self.schedules: dict[str, Scheduled] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.networks: dict[str, torch.nn.Module] = {}
        self.num_updates = 0
        self.generator = torch.Generator(context.device).manual_seed(context.seed)
        with torch.random.fork_rng(devices=[]):  # weights depend on the seed alone
            torch.manual_seed(context.seed)
            self.build(context)
        if context.precision == "bf16":
            for network in (self.policy, *self.networks.values()):
                set_precision(network, torch.bfloat16)

    @abstractmethod
    def build(self, context: Context) -> None:
        """Create networks, optimisers and schedules."""

    @abstractmethod
    def update(self, batch: Batch) -> UpdateResult:
        """Learn from one batch, in place and without reading a value back to the host.

        Updates of one `kind` run the same operations on tensors of the same shapes, so that they can be
        recorded once and repeated. Of what is no tensor an update changes `num_updates` alone.
        """

    def kind(self, number: int) -> Hashable:
        """Which branches update `number`, counted from 1, takes: all that counters decide in `update`."""
        return None

    def after_epoch(self, last: UpdateResult) -> bool:
        """Called with the last update's result between passes over the data; False ends them early.

        The place to look at a value.
        """
        return True

    def schedule(self, initial: float, kind: ScheduleKind, name: str) -> Tensor:
        """Declare a scheduled hyperparameter and get the tensor that follows it."""
        self.schedules[name] = Scheduled(initial, kind, self.context.device)
        return self.schedules[name].value

    def join(self, averaging: Averaging | None) -> None:
        """From here on learn together with others, or with None alone again."""
        for name, optimizer in self.optimizers.items():
            if isinstance(optimizer, GuardedOptimizer):
                optimizer.averaging = averaging
            elif averaging is not None:
                raise ConfigError(f"learners: several need GuardedOptimizers, which {name!r} is not")
        self.averaging = averaging

    def set_progress(self, progress: float) -> None:
        """Move every schedule to `progress` in [0, 1] of the run."""
        for schedule in self.schedules.values():
            schedule.set_progress(progress)

    def state_dict(self) -> dict[str, Any]:
        """Networks (with their normaliser) and optimisers; schedules follow from the trainer's progress."""
        return {
            "policy": dict(self.policy.state_dict()),
            "networks": {name: dict(network.state_dict()) for name, network in self.networks.items()},
            "optimizers": {name: optimizer_state(opt) for name, opt in self.optimizers.items()},
            "algorithm": {"num_updates": self.num_updates, "generator": self.generator.get_state()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, weights_only: bool = False) -> None:
        """Restore what `state_dict` gave; `weights_only` leaves the optimisers fresh."""
        self.policy.load_state_dict(state["policy"])
        for name, network in self.networks.items():
            network.load_state_dict(state["networks"][name])
        if not weights_only:
            self.num_updates = int(state["algorithm"]["num_updates"])
            go_on_from(self.generator, state["algorithm"]["generator"])
            for name, optimizer in self.optimizers.items():
                load_optimizer_state(optimizer, state["optimizers"][name])

    # The public lifecycle. Each method is one late call into the layer that knows runs and environments.

    def learn(
        self, total_timesteps: int | None = None, callbacks: Any = (), *, progress: bool = False
    ) -> Self:
        """Train until `total_timesteps` (default: the config's) and write a run directory."""
        from rl_training import api

        api.learn(self, total_timesteps=total_timesteps, callbacks=callbacks, progress=progress)
        return self

    def evaluate(
        self, num_episodes: int = 10, *, seed: int | None = None, deterministic: bool | None = None
    ) -> dict[str, Any]:
        """Run full episodes in fresh environments; the same mapping as `axiomrl eval --json`.

        Unless `deterministic` says otherwise, actions are chosen as in the evaluations of training.
        """
        from rl_training import api

        return api.evaluate_algorithm(self, num_episodes=num_episodes, seed=seed, deterministic=deterministic)

    def predict(self, obs: Obs, state: Any = None, *, deterministic: bool = True) -> tuple[Any, Any]:
        """The env's action for one observation or a batch of them, and the next recurrent state."""
        from rl_training import api

        return api.predict(self, obs, state, deterministic=deterministic)

    def save(self, path: str | PathLike[str], *, include_buffer: bool = True) -> None:
        """Write a checkpoint that works wherever it is copied."""
        from rl_training import api

        api.save(self, path, include_buffer=include_buffer)

    @classmethod
    def load(cls, path: str | PathLike[str], env: Any = None, *, device: str = "auto") -> Self:
        """Load a trained agent from a run directory or checkpoint."""
        from rl_training import api

        return api.load_as(cls, path, env=env, device=device)


@config
class OnPolicyHyperparams:
    """What the on-policy trainer needs to know of any on-policy algorithm."""

    num_steps: PositiveInt = 128
    """Steps collected in each env before an update."""
    num_minibatches: PositiveInt = 4
    """Minibatches an epoch; num_steps * num_envs must be divisible by it."""
    update_epochs: PositiveInt = 4
    """Passes over each rollout."""
    gamma: Fraction = 0.99
    """Discount factor."""
    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        batch = self.num_steps * num_envs
        if batch % self.num_minibatches:
            return [
                f"hyperparams.num_minibatches: {self.num_minibatches} does not divide the batch of "
                f"num_steps * num_envs = {self.num_steps} * {num_envs} = {batch}"
            ]
        return []


@config
class OffPolicyHyperparams:
    """What the off-policy trainer needs to know of any off-policy algorithm."""

    buffer_size: PositiveInt = 1_000_000
    """Transitions kept for replay."""
    buffer_storage: Literal["device", "memory", "disk"] = "device"
    """Where they are kept: where the networks are, in main memory, or in a file of the run directory."""
    batch_size: PositiveInt = 256
    """Transitions an update learns from."""
    learning_starts: NonNegativeInt = 1_000
    """Steps taken at random before the first update."""
    train_every: PositiveInt = 1
    """Steps (over all envs) between two rounds of updates."""
    gradient_steps: PositiveInt = 1
    """Updates a round: gradient_steps / train_every is the update-to-data ratio."""
    gamma: Fraction = 0.99
    """Discount factor."""
    n_step: PositiveInt = 1
    """Steps a return looks ahead before it is bootstrapped."""
    prioritized: Bool = False
    """Draw transitions by the size of their last error instead of uniformly."""
    priority_alpha: Fraction = 0.6
    """How much priorities count: 0 is uniform."""
    priority_beta: Fraction = 0.4
    """How much the bias of prioritised sampling is corrected at first; grows to 1 over the run."""
    her: Literal["none", "future", "final", "episode"] = "none"
    """Hindsight: replay for goals that the episode achieved later (future), last (final), ever (episode)."""
    her_goals: PositiveInt = 4
    """Replays for such goals to each one for the true goal."""

    def problems(self, num_envs: int) -> list[str]:
        """What is impossible in combination with the rest of the configuration."""
        if self.buffer_size < 2 * num_envs:
            return [f"hyperparams.buffer_size: {self.buffer_size} is too small for {num_envs} envs"]
        if self.her != "none" and self.prioritized:
            return [
                f"hyperparams.her: {self.her!r} cannot be combined with hyperparams.prioritized: "
                "the last error of a transition says nothing about other goals"
            ]
        return []


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from replayed transitions, whoever took them."""

    family = "off-policy"
    hyperparams: OffPolicyHyperparams
    exploration: Exploration | None = None
    """What the collector adds to the policy's actions; None: the policy explores by itself."""

    @staticmethod
    def _transitions(batch: Batch) -> TransitionBatch:
        if not isinstance(batch, TransitionBatch):
            raise TypeError(f"an off-policy update needs a TransitionBatch, got {type(batch).__name__}")
        return batch


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from fresh rollouts only."""

    family = "on-policy"
    hyperparams: OnPolicyHyperparams
    sequence_length: int | None = None
    """Steps of the sequences it learns from, in order of time; None: single transitions, in any order."""

    @abstractmethod
    def update(self, batch: Batch) -> UpdateResult: ...

    def before_epochs(self, rollout: RolloutBatch) -> UpdateResult | None:
        """Called once with the whole rollout, before the passes over its minibatches; may look at values."""
        return None

    @staticmethod
    def _rollout(batch: Batch) -> RolloutBatch:
        if not isinstance(batch, RolloutBatch):
            raise TypeError(f"an on-policy update needs a RolloutBatch, got {type(batch).__name__}")
        return batch
