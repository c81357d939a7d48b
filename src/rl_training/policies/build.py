"""Networks from a Spec: the only place that reads spaces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from torch import nn

from rl_training.errors import ConfigError
from rl_training.policies.actions import BinaryActions, BoundedActions, OffsetActions, SameActions
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.cores import MLP
from rl_training.policies.encoder_registry import BUILT_IN, encoder_name, find_encoder
from rl_training.policies.encoders import (
    DictEncoder,
    DrqCNN,
    Encoder,
    FlatEncoder,
    ImpalaCNN,
    NatureCNN,
    OneHotEncoder,
    SmallDrqCNN,
)
from rl_training.policies.heads import (
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    PolicyHead,
    SquashedGaussianHead,
    StateDependentHead,
    ValueHead,
)
from rl_training.policies.images import ImageLayout, image_layout
from rl_training.policies.memory import Memory, MemorySize
from rl_training.policies.normalizer import ObsNormalizer
from rl_training.policies.recurrent import RecurrentActorCritic
from rl_training.types import ACTION_MASK

if TYPE_CHECKING:
    from rl_training.policies.config import NetworkConfig
    from rl_training.types import Spec

Space = spaces.Space[Any]

_CNNS: dict[str, type[NatureCNN | ImpalaCNN | DrqCNN]] = {
    "nature_cnn": NatureCNN,
    "impala_cnn": ImpalaCNN,
    "drq_cnn": DrqCNN,
    "drq_cnn_small": SmallDrqCNN,
}
_OBSERVATIONS = "Box, Discrete, MultiDiscrete, MultiBinary and flat Dicts of these"
_ACTIONS = "Discrete, MultiDiscrete, MultiBinary and Box of floats"
_GAUSSIANS = {"auto": GaussianHead, "gaussian": GaussianHead, "squashed_gaussian": SquashedGaussianHead}


def build_actor_critic(
    spec: Spec, network: NetworkConfig, *, normalize_obs: bool = False, memory: MemorySize | None = None
) -> ActorCritic:
    """The actor-critic for an env, one that remembers if it has a `memory`.

    Its weights depend on torch's seed and on nothing else.
    """
    space, leaf, masked = encoded_space(spec)
    name = encoder_name(network.encoder)
    encoder = build_encoder(name, space, normalized=normalize_obs)
    is_cnn = is_image_encoder(encoder, name, space)
    has_cnn = is_cnn or any(isinstance(module, nn.Conv2d) for module in encoder.modules())

    hidden = network.hidden if network.hidden is not None else () if is_cnn else (64, 64)
    critic_hidden = hidden if network.critic_hidden is None else network.critic_hidden
    activation = network.activation or "tanh"
    shared = has_cnn if network.shared is None else network.shared

    memories = {} if memory is None else _build_memories(memory, encoder.out_dim, shared)
    width = encoder.out_dim if memory is None else memory.hidden_size
    core = MLP(width, hidden, activation)
    critic_encoder = None
    if not shared and _has_parameters(encoder):  # one without parameters computes the same for both
        critic_encoder = build_encoder(name, space, normalized=normalize_obs)
    own_core = not shared or network.critic_hidden is not None
    critic_core = MLP(width, critic_hidden, activation) if own_core else None
    policy_head = _build_policy_head(spec.action_space, core.out_dim, network)
    squashed = isinstance(policy_head, SquashedGaussianHead)
    policy = (RecurrentActorCritic if memories else ActorCritic)(
        encoder=encoder,
        core=core,
        policy_head=policy_head,
        value_head=ValueHead(core.out_dim if critic_core is None else critic_core.out_dim),
        action_map=build_action_map(spec.action_space, rescale=squashed),
        action_shape=tuple(spec.action_space.shape or ()),
        critic_encoder=critic_encoder,
        critic_core=critic_core,
        normalizer=build_normalizer(spec) if normalize_obs else None,
        masked=masked,
        leaf=leaf,
        **memories,
    )
    if network.orthogonal_init is not False:
        _init_orthogonal(policy, built_in_encoder=name in BUILT_IN)
    return policy


def build_encoder(name: str, space: Space, *, normalized: bool = False) -> Encoder:
    """The encoder called `name` for observations of `space`; 'auto' and CNNs reach into a Dict."""
    if name not in BUILT_IN:
        encoder: Any = find_encoder(name)(space)
        if not isinstance(getattr(encoder, "out_dim", None), int):
            raise ConfigError(f"network.encoder: {name!r} must have an integer attribute 'out_dim'")
        return encoder  # type: ignore[no-any-return]
    if isinstance(space, spaces.Dict):
        _check_cnn_has_images(name, space)
        inner = "auto" if name == "dict" else name
        return DictEncoder({key: _build_leaf(inner, key, sub, normalized) for key, sub in space.items()})
    if name == "dict":
        raise ConfigError(f"network.encoder: 'dict' needs a Dict observation space, not {space}")
    _check_cnn_has_images(name, space)
    return _build_leaf(name, "", space, normalized)


def is_image_encoder(encoder: Encoder, name: str, space: Space) -> bool:
    """Whether an encoder ends in a layer wide enough for heads to follow it directly."""
    return isinstance(encoder, NatureCNN | ImpalaCNN) or (name not in BUILT_IN and _is_image(space))


def build_normalizer(spec: Spec, clip: float = 10.0) -> ObsNormalizer:
    """Statistics for every Box of the observation that is no image."""
    space = spec.observation_space
    if isinstance(space, spaces.Dict):
        vectors = {key: sub for key, sub in space.items() if key != ACTION_MASK and _is_vector(sub)}
        if vectors:
            return ObsNormalizer({key: sub.shape or () for key, sub in vectors.items()}, clip)
    elif isinstance(space, spaces.Box) and _is_vector(space):
        return ObsNormalizer(space.shape, clip)
    raise ConfigError(
        f"env.normalize_obs: nothing to normalise in {space}: only Box observations that are no images have "
        "running statistics (images are scaled and choices one-hot without it)"
    )


def image_layouts(space: Space) -> dict[str, ImageLayout]:
    """Where the images of an observation have their axes, by key ("": the observation is one)."""
    leaves = dict(space) if isinstance(space, spaces.Dict) else {"": space}
    return {key: image_layout(leaf.shape or ()) for key, leaf in leaves.items() if _is_image(leaf)}


def encoded_space(spec: Spec) -> tuple[Space, str | None, bool]:
    """The space encoders read, the key it lies under if it was wrapped, and whether actions are masked."""
    space = spec.observation_space
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space, None, False
    _check_mask(space[ACTION_MASK], spec.action_space)
    rest = {key: sub for key, sub in space.items() if key != ACTION_MASK}
    if not rest:
        raise ConfigError("the observation holds nothing but an action mask")
    if set(rest) == {"obs"}:
        return rest["obs"], "obs", True
    return spaces.Dict(rest), None, True


def _check_mask(mask: Space, action_space: Space) -> None:
    if isinstance(action_space, spaces.Discrete):
        wanted = int(action_space.n)
    elif isinstance(action_space, spaces.MultiDiscrete):
        wanted = int(action_space.nvec.sum())
    else:
        raise ConfigError(f"an action mask needs Discrete or MultiDiscrete actions, not {action_space}")
    if mask.shape != (wanted,):
        raise ConfigError(f"the action mask {mask} must be one row of {wanted} for actions of {action_space}")


def _build_leaf(name: str, key: str, space: Space, normalized: bool) -> Encoder:
    if isinstance(space, spaces.Discrete):
        return OneHotEncoder([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return OneHotEncoder(space.nvec.flatten().tolist(), space.start.flatten().tolist())
    if isinstance(space, spaces.MultiBinary):
        return FlatEncoder(math.prod(space.shape))
    if isinstance(space, spaces.Box):
        # Bytes come scaled to [0, 1], by the largest value the space declares.
        raw_bytes = space.dtype == np.uint8 and not (normalized and _is_vector(space))
        scale = 1.0 / max(1.0, float(space.high.max())) if raw_bytes else 1.0
        if name == "mlp" or not _is_image(space):
            return FlatEncoder(math.prod(space.shape), scale)
        layout = image_layout(space.shape)
        return _CNNS[_auto_cnn(layout) if name == "auto" else name](layout, scale)
    where = f" under the key {key!r}" if key else ""
    raise ConfigError(f"observation space {space}{where} is not supported; supported are {_OBSERVATIONS}")


def _auto_cnn(layout: ImageLayout) -> str:
    return "nature_cnn" if min(layout.height, layout.width) >= NatureCNN.min_size else "impala_cnn"


def _check_cnn_has_images(name: str, space: Space) -> None:
    leaves = space.values() if isinstance(space, spaces.Dict) else [space]
    if name in _CNNS and not any(_is_image(leaf) for leaf in leaves):
        raise ConfigError(
            f"network.encoder: {name!r} needs an image, and {space} has none; use 'auto' or 'mlp'"
        )


def _is_image(space: Space) -> bool:
    """3 axes of bytes, 3 or 4 axes around a picture of at least 8x8, or 2 axes of full-range bytes."""
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 4 or 0 in space.shape:
        return False
    layout = image_layout(space.shape)
    is_bytes = space.dtype == np.uint8
    large = min(layout.height, layout.width) >= 8
    if len(space.shape) == 2:
        return is_bytes and large and int(space.high.max()) == 255
    return large or (is_bytes and len(space.shape) == 3)


def _is_vector(space: Space) -> bool:
    return isinstance(space, spaces.Box) and not _is_image(space)


def _build_policy_head(space: Space, in_dim: int, network: NetworkConfig) -> PolicyHead:
    if network.distribution != "auto" and not isinstance(space, spaces.Box):
        raise ConfigError(f"network.distribution: {network.distribution!r} is for Box actions, not {space}")
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(in_dim, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(in_dim, space.nvec.flatten().tolist())
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(in_dim, math.prod(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        size = math.prod(space.shape)
        if network.distribution == "state_dependent":
            return StateDependentHead(in_dim, size, network.log_std_init, network.sde_sample_freq)
        return _GAUSSIANS[network.distribution](in_dim, size, network.log_std_init)
    raise ConfigError(f"action space {space} is not supported; supported are {_ACTIONS}")


def build_action_map(space: Space, *, rescale: bool) -> nn.Module:
    """From a policy's actions to the env's; `rescale`: Box actions come in [-1, 1]."""
    if isinstance(space, spaces.MultiBinary):
        return BinaryActions()
    if isinstance(space, spaces.Box):
        if rescale and not space.is_bounded():
            raise ConfigError(f"network.distribution: 'squashed_gaussian' needs finite bounds, not {space}")
        return BoundedActions(space.low, space.high, rescale)
    start = np.asarray(getattr(space, "start", 0), dtype=np.int64)
    return OffsetActions(start) if start.any() else SameActions()


def _build_memories(size: MemorySize, in_dim: int, shared: bool) -> dict[str, Any]:
    memories = {"memory": Memory(size, in_dim)}
    if not shared:
        memories["critic_memory"] = Memory(size, in_dim, "critic_")
    return memories


def _init_orthogonal(policy: ActorCritic, *, built_in_encoder: bool) -> None:
    """Orthogonal weights, zero biases: gain √2 in hidden layers, 0.01 for the policy, 1 for the value."""
    hidden: list[nn.Module | None] = [policy.core, policy.critic_core]
    if built_in_encoder:  # a user's encoder initialises itself
        hidden += [policy.encoder, policy.critic_encoder]
    gains = [(module, math.sqrt(2.0)) for module in hidden if module is not None]
    for module, gain in (*gains, (policy.policy_head, 0.01), (policy.value_head, 1.0)):
        for layer in _weight_layers(module):
            nn.init.orthogonal_(layer.weight, gain)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    memories = [module for module in policy.modules() if isinstance(module, Memory)]
    for name, parameter in (named for memory in memories for named in memory.named_parameters()):
        nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)


def _weight_layers(module: nn.Module) -> Iterator[nn.Linear | nn.Conv2d]:
    return (layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d))


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
