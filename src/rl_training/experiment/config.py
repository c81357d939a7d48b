"""`TrainConfig`: everything a run is described by. `layers` puts one together."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from rl_training import registry
from rl_training.envs.config import EnvConfig
from rl_training.errors import ConfigError
from rl_training.policies.config import IntrinsicConfig, NetworkConfig
from rl_training.schema import (
    Bool,
    Float,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    config,
    section_of,
    section_problems,
)

KeyPath = tuple[str, ...]


def _device_name(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"expected auto, cpu, cuda or cuda:N, got {value!r}")
    return value


def _compile_setting(value: Any) -> Any:
    if isinstance(value, bool):  # what YAML takes a bare on or off for
        return "on" if value else "off"
    return value


CompileSetting = Annotated[Literal["auto", "on", "off"], BeforeValidator(_compile_setting)]
DeviceName = Annotated[str, BeforeValidator(_device_name)]


@config
class EvaluationConfig:
    """Evaluation during training, in envs and with seeds of its own."""

    every_steps: NonNegativeInt = 10_000
    """Evaluate every so many steps, and at the end; 0 turns evaluation off."""
    episodes: PositiveInt = 10
    """Full episodes an evaluation."""
    num_envs: PositiveInt = 4
    """Envs that play them side by side."""
    deterministic: Bool = True
    """Take the most likely action rather than a sample."""
    video: Bool = False
    """Record the first episode of every evaluation in the run's folder `videos` (extra: video)."""
    max_episode_steps: PositiveInt = 100_000
    """Cut an episode that does not end by itself after so many steps, with a warning, and count it so."""


@config
class CheckpointConfig:
    """When the state of the run is saved. A final checkpoint is always written."""

    every_steps: NonNegativeInt = 50_000
    """Save every so many steps; 0: only the best and the last."""
    keep_last: PositiveInt = 3
    """How many of the newest checkpoints to keep, besides the best."""
    keep_every: NonNegativeInt = 0
    """Also keep one checkpoint every so many steps, for ever; 0: none."""
    on_error: Literal["stop", "continue"] = "stop"
    """When a checkpoint or a metric cannot be written: stop, or warn and try again at the next one."""


@config
class LoggingConfig:
    """What is written while training, besides checkpoints."""

    every_steps: PositiveInt = 2_000
    """A line in metrics.jsonl every so many steps (at the end of the iteration that crosses them)."""
    tensorboard: Bool = True
    """Also write TensorBoard event files."""
    wandb: Bool = False
    """Also log to Weights & Biases (extra: wandb)."""
    csv: Bool = False
    """Also write metrics.csv when training ends."""


@config
class StoppingConfig:
    """Reasons to stop before the step budget is used up."""

    target_return: Float | None = None
    """Stop when an evaluation's mean return reaches this."""
    patience: PositiveInt | None = None
    """Stop after this many evaluations without improvement."""
    min_delta: NonNegativeFloat = 0.0
    """What counts as an improvement for `patience`."""
    max_seconds: PositiveFloat | None = None
    """Stop after this much wall-clock time, counted over resumes."""


@config
class TrainConfig:
    """A complete description of a training run. Only `algo` and `env_id` are required."""

    algo: str
    """Algorithm id; `axiomrl list algorithms` shows them."""
    env_id: str
    """Gymnasium environment id; `axiomrl list envs` shows those installed."""
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_timesteps: PositiveInt = 100_000
    """Agent steps over all envs; the iteration that reaches it is completed."""
    num_envs: PositiveInt = 8
    """Envs stepped side by side."""
    output_dir: str = "runs"
    """Where the run directory is created."""
    device: DeviceName = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """tf32: faster matrix products on a GPU, of numbers rounded to 10 bits; bf16: image encoders in bfloat16,
    the rest in fp32."""
    threads: NonNegativeInt = 1
    """CPU threads for torch; one is fastest for small networks, 0 (one a core) for image encoders."""
    compile: CompileSetting = "auto"
    """Compile updates (on a GPU: capture them as CUDA graphs); auto: where that pays, on a GPU always."""
    collection: Literal["serial", "pipelined"] = "serial"
    """Collect and learn in turn, or collect the next in another process while learning from the last."""
    learners: PositiveInt = 1
    """Processes that train together, each with its share of the envs and of every minibatch; their gradients
    are averaged before each step (on-policy, on a CPU)."""
    deterministic: Bool | Literal["auto"] = "auto"
    """Only bit-reproducible kernels; auto: on the CPU yes, on a GPU no."""
    on_nan: Literal["raise", "skip-update"] = "raise"
    """What to do when an update meets NaN or infinity; the weights are never touched by it."""
    tags: tuple[str, ...] = ()
    """Free labels, kept in the run's metadata."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the env's constructor."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Backend, wrappers, normalisation."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Networks."""
    hyperparams: Any = None
    """The algorithm's own hyperparameters."""
    intrinsic: IntrinsicConfig = field(default_factory=IntrinsicConfig)
    """A reward for novelty (on-policy algorithms)."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation during training."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Metrics."""
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    """Early stopping and budgets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hyperparams", _hyperparams(registry.algorithm(self.algo), self.hyperparams))
        problems = self.hyperparams.problems(self.num_envs) + self.env.problems(self.env_id)
        if self.intrinsic.kind != "none" and registry.algorithm(self.algo).family != "on-policy":
            problems.append(
                f"intrinsic.kind: {self.algo!r} is not on-policy; a bonus that fades cannot be replayed"
            )
        problems += self._collection_problems() + self._learners_problems()
        for name in ("target_return", "patience"):
            if getattr(self.stopping, name) is not None and not self.evaluation.every_steps:
                problems.append(f"stopping.{name}: needs evaluations, but evaluation.every_steps is 0")
        if problems:
            raise ConfigError(problems)

    def _collection_problems(self) -> list[str]:
        """Why experience cannot be collected in another process, if it cannot."""
        if self.collection == "serial":
            return []
        batched, bonus = self.env.backend == "batched", self.intrinsic.kind != "none"
        reasons = {
            "env.backend 'batched': such envs are stepped where the policy learns": batched,
            "intrinsic.kind: a bonus depends on what was learned last": bonus,
        }
        return [
            f"collection: 'pipelined' cannot be combined with {reason}; use serial"
            for reason, applies in reasons.items()
            if applies
        ]

    def _learners_problems(self) -> list[str]:
        """Why several processes cannot train together, if they cannot."""
        if self.learners == 1:
            return []
        entry = registry.algorithm(self.algo)
        if entry.family != "on-policy":
            return [
                f"learners: {self.algo!r} is not on-policy, and only rollouts are learned from together; "
                "use learners: 1"
            ]
        reasons = {
            f"algo {self.algo!r}: {entry.cls.alone_only}; use learners: 1": bool(entry.cls.alone_only),
            "collection 'pipelined': a learner collects by itself; use collection: serial, or learners: 1": (
                self.collection != "serial"
            ),
            "intrinsic.kind: a bonus is of what one learner has seen; use learners: 1": (
                self.intrinsic.kind != "none"
            ),
            f"threads {self.threads}: learners have a thread each; use threads: 1": self.threads != 1,
        }
        found = [
            f"learners: {self.learners} cannot be combined with {reason}"
            for reason, applies in reasons.items()
            if applies
        ]
        if self.num_envs % self.learners:
            why = f"{self.learners} does not divide num_envs: {self.num_envs}"
            found.append(f"learners: {why}; use {self._nearest_learners()}")
        elif problems := self.hyperparams.problems(self.num_envs // self.learners):
            why = f"for each of {self.learners}, {problems[0]}"
            found.append(f"learners: {why}; use learners: {self._nearest_learners()}")
        return found

    def _nearest_learners(self) -> str:
        """The next smaller and the next larger number of learners among which envs can be shared out."""
        possible = [
            number
            for number in range(1, self.num_envs + 1)
            if self.num_envs % number == 0 and not self.hyperparams.problems(self.num_envs // number)
        ]
        smaller = [number for number in possible or [1] if number < self.learners]
        larger = [number for number in possible if number > self.learners]
        return " or ".join(map(str, smaller[-1:] + larger[:1]))


def _hyperparams(entry: registry.AlgorithmEntry, given: Any) -> Any:
    """Validate hyperparameters given as an object or a mapping (or not at all)."""
    expected = entry.cls.Hyperparams
    if given is not None and not isinstance(given, Mapping | expected):
        raise ConfigError(f"hyperparams: expected {expected.__name__} or a mapping, got {given!r}")
    values = to_dict(given) if isinstance(given, expected) else dict(given or {})
    problems = contradictions(entry, values)
    problems += section_problems(expected, entry.hyperparams(values), ("hyperparams",))
    if problems:
        raise ConfigError(problems)
    return given if isinstance(given, expected) else expected(**entry.hyperparams(values))


def contradictions(entry: registry.AlgorithmEntry, values: Mapping[str, Any]) -> list[str]:
    """What an algorithm id fixes and `values` denies."""
    return [
        f"hyperparams.{key}: {values[key]!r} contradicts the algorithm {entry.id!r}, "
        f"which is defined by {key}: {fixed!r}"
        for key, fixed in entry.fixed.items()
        if values.get(key, fixed) != fixed
    ]


def to_dict(cfg: Any) -> dict[str, Any]:
    """A configuration as plain data, in the order of its fields, ready for YAML or JSON."""
    return {f.name: plain(getattr(cfg, f.name)) for f in dataclasses.fields(cfg)}


def leaves(
    cls: type[Any], prefix: KeyPath = ()
) -> Iterable[tuple[KeyPath, dataclasses.Field[Any], type[Any]]]:
    """Every field of a config class that is not itself a section: its path, field and owner."""
    for f in dataclasses.fields(cls):
        if (section := section_of(f)) is not None:
            yield from leaves(section, (*prefix, f.name))
        else:
            yield (*prefix, f.name), f, cls


def plain(value: Any) -> Any:
    """A value as plain data: sections become mappings, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
