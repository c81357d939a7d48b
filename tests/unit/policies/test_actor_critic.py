"""The actor-critic's contract over all action spaces, observation kinds and network choices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.build import build_actor_critic
from rl_training.policies.config import NetworkConfig
from rl_training.policies.heads import StateDependentHead
from rl_training.types import Spec

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
CASES: dict[str, tuple[spaces.Space[Any], str]] = {
    "discrete": (spaces.Discrete(5), "auto"),
    "discrete_start": (spaces.Discrete(3, start=5), "auto"),
    "multi_discrete": (spaces.MultiDiscrete([3, 2, 4]), "auto"),
    "multi_discrete_even": (spaces.MultiDiscrete([3, 3], start=[1, 2]), "auto"),
    "multi_discrete_2d": (spaces.MultiDiscrete([[2, 3], [4, 2]]), "auto"),
    "multi_binary": (spaces.MultiBinary(4), "auto"),
    "multi_binary_2d": (spaces.MultiBinary([2, 3]), "auto"),
    "gaussian": (BOX, "gaussian"),
    "gaussian_2d": (spaces.Box(-1, 1, (2, 3), np.float32), "auto"),
    "squashed": (BOX, "squashed_gaussian"),
    "state_dependent": (BOX, "state_dependent"),
}


def make(
    action_space: spaces.Space[Any] = CASES["discrete"][0],
    obs_space: spaces.Space[Any] = VECTOR,
    normalize_obs: bool = False,
    seed: int = 0,
    **network: Any,
) -> ActorCritic:
    torch.manual_seed(seed)
    return build_actor_critic(
        Spec(obs_space, action_space), NetworkConfig(**network), normalize_obs=normalize_obs
    )


def case(name: str, **kwargs: Any) -> ActorCritic:
    action_space, distribution = CASES[name]
    return make(action_space, distribution=distribution, **kwargs)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observations(n: int = 16) -> Tensor:
    return torch.randn(n, 4, generator=generator(1))


def perturb(policy: ActorCritic) -> ActorCritic:
    """Away from the near-uniform start, so that modes and probabilities differ."""
    with torch.no_grad():
        policy.policy_head.linear.weight.mul_(100.0)
    return policy


@pytest.mark.parametrize("name", CASES)
def test_act_and_evaluate_actions_agree(name: str) -> None:
    policy = perturb(case(name))
    obs = observations()
    out = policy.act(obs, generator=generator())
    logprobs, entropy, values = policy.evaluate_actions(obs, out.actions)
    assert out.logprobs is not None
    assert out.logprobs.shape == entropy.shape == values.shape == (16,)
    assert out.actions.shape == (16, *policy.action_shape)
    torch.testing.assert_close(out.logprobs, logprobs)
    torch.testing.assert_close(out.values, values)
    torch.testing.assert_close(policy.values(obs), values)


@pytest.mark.parametrize("name", CASES)
def test_env_actions_lie_in_the_action_space(name: str) -> None:
    policy = perturb(case(name))
    actions = policy.env_actions(policy.act(observations(64), generator=generator()).actions).detach().numpy()
    for action in actions:
        assert CASES[name][0].contains(action), action


@pytest.mark.parametrize("name", CASES)
def test_deterministic_act_is_the_likeliest_action_and_repeats(name: str) -> None:
    policy = perturb(case(name))
    obs = observations()
    mode = policy.act(obs, deterministic=True)
    assert torch.equal(mode.actions, policy.act(obs, deterministic=True, generator=generator(9)).actions)
    if name == "squashed":
        return  # its mode is the median, not the density's peak
    for seed in range(20):
        sampled = policy.act(obs, generator=generator(seed))
        assert (mode.logprobs >= sampled.logprobs - 1e-5).all()


def test_deterministic_squashed_act_is_tanh_of_the_mean() -> None:
    policy = perturb(case("squashed"))
    obs = observations()
    mean = policy.policy_head.linear(policy.core(obs))
    torch.testing.assert_close(policy.act(obs, deterministic=True).actions, mean.tanh())


@pytest.mark.parametrize("name", CASES)
def test_sampling_follows_the_generator(name: str) -> None:
    policy = case(name)
    obs = observations(64)
    first = policy.act(obs, generator=generator(1)).actions
    assert torch.equal(first, policy.act(obs, generator=generator(1)).actions)
    assert not torch.equal(first, policy.act(obs, generator=generator(2)).actions)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_every_parameter_gets_a_gradient(name: str, shared: bool) -> None:
    policy = perturb(case(name, shared=shared))
    obs = observations()
    actions = policy.act(obs, generator=generator()).actions.detach()
    logprobs, entropy, values = policy.evaluate_actions(obs, actions)
    (logprobs.square().sum() + entropy.square().sum() + values.square().sum()).backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("encoder", ["nature_cnn", "impala_cnn"])
def test_every_parameter_of_a_cnn_policy_gets_a_gradient(encoder: str) -> None:
    policy = perturb(make(obs_space=IMAGE, encoder=encoder, shared=False))
    obs = torch.randint(0, 256, (4, 40, 40, 3), dtype=torch.uint8, generator=generator())
    logprobs, entropy, values = policy.evaluate_actions(obs, torch.tensor([0, 1, 2, 3]))
    (logprobs.sum() + entropy.sum() + values.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy.parameters())


def test_discrete_start_is_added_for_the_env_alone() -> None:
    policy = case("discrete_start")
    actions = policy.act(observations(200), generator=generator()).actions
    assert sorted(actions.unique().tolist()) == [0, 1, 2]
    assert policy.env_actions(torch.tensor([0, 2])).tolist() == [5, 7]


def test_gaussian_actions_are_clipped_for_the_env_alone() -> None:
    policy = case("gaussian")
    assert policy.env_actions(torch.tensor([[-3.0, -3.0], [0.5, 9.0]])).tolist() == [[-1.0, 0.0], [0.5, 5.0]]
    raw = policy.act(observations(200), generator=generator()).actions
    assert raw[:, 0].abs().max() > 1


def test_squashed_actions_are_rescaled_to_asymmetric_bounds() -> None:
    policy = case("squashed")
    env_actions = policy.env_actions(torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]))
    assert env_actions.tolist() == [[-1.0, 0.0], [1.0, 5.0], [0.0, 2.5]]


def test_multi_binary_actions_become_small_integers() -> None:
    policy = case("multi_binary")
    actions = policy.act(observations(), generator=generator()).actions
    assert actions.dtype == torch.float32
    assert set(actions.unique().tolist()) == {0.0, 1.0}
    assert policy.env_actions(actions).dtype == torch.int8


def masked_obs(mask: list[int], n: int = 500) -> dict[str, Tensor]:
    return {"obs": observations(n), "action_mask": torch.tensor(mask, dtype=torch.int8).expand(n, len(mask))}


def test_masked_discrete_actions_are_never_taken() -> None:
    obs_space = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(5)})
    policy = make(obs_space=obs_space)
    assert policy.encoder.out_dim == 4
    obs = masked_obs([1, 0, 0, 1, 0])
    out = policy.act(obs, generator=generator())
    assert sorted(out.actions.unique().tolist()) == [0, 3]
    logprobs, entropy, _ = policy.evaluate_actions(obs, out.actions)
    torch.testing.assert_close(entropy, torch.full((500,), math.log(2)), atol=1e-2, rtol=0)
    torch.testing.assert_close(logprobs, out.logprobs)


def test_masked_multi_discrete_actions_with_a_dict_observation() -> None:
    obs_space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(9), "a": VECTOR, "b": spaces.Discrete(3)},
    )
    policy = make(CASES["multi_discrete"][0], obs_space)
    assert policy.encoder.out_dim == 7
    obs = masked_obs([1, 0, 1, 0, 1, 1, 1, 0, 0])
    obs = {"a": obs["obs"], "b": torch.zeros(500, dtype=torch.int64), "action_mask": obs["action_mask"]}
    actions = policy.act(obs, generator=generator()).actions
    assert [sorted(column.unique().tolist()) for column in actions.T] == [[0, 2], [1], [0, 1]]


@pytest.mark.parametrize(
    ("action_space", "size", "message"),
    [
        (spaces.Discrete(4), 5, "must be one row of 4"),
        (spaces.MultiDiscrete([2, 3]), 6, "must be one row of 5"),
        (BOX, 2, "needs Discrete or MultiDiscrete actions"),
    ],
)
def test_masks_that_do_not_fit_are_refused(action_space: spaces.Space, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(action_space, spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(size)}))


def test_the_normaliser_is_applied_everywhere_and_ignores_the_mask() -> None:
    obs_space = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(5)})
    policy, plain = make(obs_space=obs_space, normalize_obs=True), make()
    assert policy.normalizer is not None
    obs = masked_obs([1, 1, 1, 1, 1], n=32)
    obs["obs"] = obs["obs"] * 50 + 7
    policy.normalizer.update(obs)
    assert policy.normalizer.mean.shape == (4,)
    normal = (obs["obs"] - obs["obs"].mean(0)) / obs["obs"].std(0, correction=0)
    plain.load_state_dict({k: v for k, v in policy.state_dict().items() if not k.startswith("normalizer")})
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(policy.values(obs), plain.values(normal), **close)
    ours, theirs = policy.act(obs, deterministic=True), plain.act(normal, deterministic=True)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, **close)
    for mine, other in zip(
        policy.evaluate_actions(obs, ours.actions), plain.evaluate_actions(normal, ours.actions), strict=True
    ):
        torch.testing.assert_close(mine, other, **close)


def test_acting_does_not_move_the_statistics() -> None:
    policy = make(normalize_obs=True)
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    policy.train()
    policy.act(observations(), generator=generator())
    policy.evaluate_actions(observations(), torch.zeros(16, dtype=torch.int64))
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())


def test_normalising_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.normalize_obs: nothing to normalise in Discrete"):
        make(obs_space=spaces.Discrete(4), normalize_obs=True)


def test_normalised_bytes_are_not_scaled_twice() -> None:
    policy = make(obs_space=spaces.Box(0, 255, (4,), np.uint8), normalize_obs=True)
    assert policy.encoder.scale == 1.0
    assert make(obs_space=spaces.Box(0, 255, (4,), np.uint8)).encoder.scale == 1 / 255


def test_orthogonal_init_gains() -> None:
    policy = make()
    gains = {
        policy.core.layers[1]: math.sqrt(2),
        policy.policy_head.linear: 0.01,
        policy.value_head.linear: 1,
    }
    for layer, gain in gains.items():
        singular = torch.linalg.svdvals(layer.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=1e-6)
        assert (layer.bias == 0).all()
    plain = make(orthogonal_init=False).policy_head.linear
    assert torch.linalg.svdvals(plain.weight).max() > 0.1


def test_defaults_for_vectors_and_images() -> None:
    vector = make()
    assert [layer.out_features for layer in vector.core.layers] == [64, 64]
    assert vector.critic_core is not None
    image = make(obs_space=IMAGE)
    assert len(image.core.layers) == 0
    assert image.critic_core is None
    assert image.critic_encoder is None
    mixed = make(obs_space=spaces.Dict({"image": IMAGE, "vector": VECTOR}))
    assert [layer.in_features for layer in mixed.core.layers] == [516, 64]
    assert mixed.critic_encoder is None


def test_widths_activation_and_log_std_are_taken_from_the_config() -> None:
    policy = make(BOX, hidden=(32,), critic_hidden=(16, 8), activation="relu", log_std_init=-1.5)
    assert [layer.out_features for layer in policy.core.layers] == [32]
    assert policy.critic_core is not None
    assert [layer.out_features for layer in policy.critic_core.layers] == [16, 8]
    assert policy.core.activation is torch.relu_
    assert policy.policy_head.log_std.tolist() == [-1.5, -1.5]


def test_a_shared_encoder_may_carry_a_critic_core_of_its_own() -> None:
    policy = make(obs_space=IMAGE, hidden=(32,), critic_hidden=(16,), shared=True)
    assert policy.critic_encoder is None
    assert policy.critic_core is not None
    obs = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8, generator=generator())
    torch.testing.assert_close(policy.values(obs), policy.act(obs).values)


def test_building_depends_on_the_seed_alone() -> None:
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    for key, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])
    assert not torch.equal(first.core.layers[0].weight, other.core.layers[0].weight)
    assert not torch.equal(first.core.layers[0].weight, first.critic_core.layers[0].weight)


def test_state_dict_holds_parameters_and_statistics_only() -> None:
    policy = make(spaces.MultiDiscrete([3, 2], start=[1, 1]), spaces.Discrete(4))
    assert set(policy.state_dict()) == {name for name, _ in policy.named_parameters()}


@pytest.mark.parametrize(
    ("action_space", "network", "message"),
    [
        (spaces.Text(3), {}, r"action space Text\(.*not supported; supported are Discrete"),
        (spaces.Box(0, 5, (2,), np.int32), {}, "not supported"),
        (spaces.Discrete(2), {"distribution": "squashed_gaussian"}, "is for Box actions, not Discrete"),
        (VECTOR, {"distribution": "squashed_gaussian"}, "needs finite bounds"),
    ],
)
def test_unsupported_actions_are_named(action_space: spaces.Space, network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(action_space, **network)


def noise_of(policy: ActorCritic, obs: Tensor, out_actions: Tensor) -> Tensor:
    return out_actions - policy.act(obs, deterministic=True).actions


def test_state_dependent_noise_is_constant_within_its_window_and_changes_after() -> None:
    policy = case("state_dependent", sde_sample_freq=3)
    obs, rng, state = observations(4), generator(), policy.initial_state(4)
    noises = []
    for _ in range(7):
        out = policy.act(obs, state, generator=rng)
        state = out.state
        noises.append(noise_of(policy, obs, out.actions))
    assert noises[0].abs().min() > 0
    for same in ((0, 1), (1, 2), (3, 4), (4, 5)):
        torch.testing.assert_close(noises[same[0]], noises[same[1]])
    for different in ((2, 3), (5, 6)):
        assert ((noises[different[0]] - noises[different[1]]).abs() > 1e-4).all()


def test_state_dependent_noise_without_a_period_lasts_until_its_episode_ends() -> None:
    policy = case("state_dependent", sde_sample_freq=0)
    obs, rng = observations(3), generator()
    first = policy.act(obs, None, generator=rng)
    second = policy.act(obs, first.state, generator=rng)
    assert torch.equal(first.actions, second.actions)
    state = policy.reset_state(second.state, torch.tensor([False, True, False]))
    third = policy.act(obs, state, generator=rng)
    changed = (third.actions != second.actions).all(dim=1)
    assert changed.tolist() == [False, True, False]


def test_state_dependent_noise_differs_between_envs_and_keeps_the_state_when_deterministic() -> None:
    policy = case("state_dependent")
    obs = observations(1).expand(2, 4)
    out = policy.act(obs, policy.initial_state(2), generator=generator())
    assert not torch.equal(out.actions[0], out.actions[1])
    assert policy.act(obs, out.state, deterministic=True).state is out.state


def test_state_dependent_deviation_is_that_of_a_gaussian_for_features_of_one() -> None:
    head = StateDependentHead(50, 2, log_std_init=-1.0)
    entropy = head(torch.ones(1, 50)).entropy()
    assert entropy.item() == pytest.approx(2 * (0.5 + 0.5 * math.log(2 * math.pi) - 1.0), abs=1e-4)


def test_state_dependent_noise_does_not_shape_the_features() -> None:
    policy = case("state_dependent")
    _, entropy, _ = policy.evaluate_actions(observations(), torch.zeros(16, 2))
    entropy.sum().backward()
    assert policy.policy_head.log_std.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in policy.core.parameters())


def test_policies_without_state_have_none() -> None:
    policy = make()
    assert policy.initial_state(3) is None
    assert policy.reset_state(None, torch.tensor([True])) is None
    assert policy.act(observations()).state is None
    assert not isinstance(policy.policy_head, StateDependentHead)


@pytest.mark.parametrize("name", CASES)
def test_evaluate_actions_traces_as_one_graph(name: str) -> None:
    """No value is read back to the host: the tracer would break the graph there."""
    policy = perturb(case(name))
    obs = observations()
    actions = policy.act(obs, generator=generator()).actions.detach()
    torch.compiler.reset()
    traced = torch.compile(policy.evaluate_actions, backend="eager", fullgraph=True)(obs, actions)
    for mine, other in zip(traced, policy.evaluate_actions(obs, actions), strict=True):
        torch.testing.assert_close(mine, other)


def test_policy_runs_in_inference_mode_and_then_trains() -> None:
    policy = perturb(case("squashed", normalize_obs=True))
    with torch.inference_mode():
        policy.normalizer.update(observations())
        out = policy.act(observations(), generator=generator())
    with torch.no_grad():
        actions = out.actions.clone()
    logprobs, entropy, values = policy.evaluate_actions(observations(), actions)
    (logprobs.sum() + entropy.sum() + values.sum()).backward()
    assert all(isinstance(p, nn.Parameter) and p.grad is not None for p in policy.parameters())
