"""Off-policy actor-critics: targets and losses worked out by hand, and who is trained by what."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training import registry
from rl_training.algorithms.actor_critic import NextAction, OffPolicyActorCritic
from rl_training.algorithms.base import Context
from rl_training.algorithms.optim import descend
from rl_training.algorithms.tqc import truncated_quantile_loss
from rl_training.errors import ConfigError
from rl_training.policies.config import NetworkConfig
from rl_training.types import Spec, TransitionBatch

CONTINUOUS = ["sac", "redq", "tqc", "crossq", "td3", "ddpg", "drqv2"]
ALL = [*CONTINUOUS, "discrete_sac"]
VECTOR = spaces.Box(-1.0, 1.0, (3,))


def make(algo: str, obs_space: Any = VECTOR, action_space: Any = None, **hyperparams: Any) -> Any:
    entry = registry.algorithm(algo)
    if action_space is None:
        action_space = spaces.Discrete(3) if algo == "discrete_sac" else spaces.Box(-1.0, 1.0, (2,))
    given = entry.cls.Hyperparams(**entry.hyperparams(hyperparams))
    network = NetworkConfig(hidden=(8, 8))
    return entry.cls.from_context(
        Context(Spec(obs_space, action_space), given, network, torch.device("cpu"), 1)
    )


def batch(algo: str = "sac", size: int = 6, **fields: Any) -> TransitionBatch:
    g = torch.Generator().manual_seed(0)
    actions = torch.rand(size, 2, generator=g) * 2 - 1
    if algo == "discrete_sac":
        actions = torch.randint(3, (size,), generator=g)
    columns: dict[str, Any] = {
        "obs": torch.randn(size, 3, generator=g),
        "actions": actions,
        "rewards": torch.randn(size, generator=g),
        "next_obs": torch.randn(size, 3, generator=g),
        "discount": torch.full((size,), 0.9),
        "weights": torch.ones(size),
        "index": torch.zeros(2, size, dtype=torch.int64),
    }
    return TransitionBatch(**{**columns, **fields})


def parameters(algorithm: OffPolicyActorCritic) -> dict[str, Tensor]:
    modules = {"policy": algorithm.policy, **algorithm.networks}
    return {
        f"{name}.{key}": value.detach().clone()
        for name, module in modules.items()
        for key, value in module.named_parameters()
    }


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def hooked(tensors: Iterable[Tensor]) -> list[int]:
    """A list that grows whenever a gradient of one of them is computed."""
    touched: list[int] = []
    for number, tensor in enumerate(tensors):
        tensor.register_hook(lambda _, number=number: touched.append(number))
    return touched


# Targets


def test_the_target_is_the_reward_and_the_discounted_value_and_knows_nothing_else() -> None:
    algorithm = make("sac")
    b = batch(size=2, rewards=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.9, 0.0]))
    target = algorithm.bootstrap(b, torch.tensor([[10.0, 20.0], [30.0, 40.0]]))
    torch.testing.assert_close(target, torch.tensor([[10.0, 19.0], [2.0, 2.0]]))


VALUES = torch.tensor([[[1.0], [5.0]], [[2.0], [3.0]]])


def test_sac_takes_the_lowest_critic_and_adds_the_entropy() -> None:
    algorithm = make("sac", temperature=0.1)
    following = NextAction(torch.zeros(2, 2), torch.tensor([0.5, -1.0]))
    torch.testing.assert_close(algorithm.reduce(VALUES, following), torch.tensor([[0.95], [3.1]]))


def test_td3_takes_the_lowest_critic_and_nothing_else() -> None:
    torch.testing.assert_close(
        make("td3").reduce(VALUES, NextAction(torch.zeros(2, 2))), torch.tensor([[1.0], [3.0]])
    )


def test_redq_takes_the_lowest_of_a_random_subset_and_every_subset_comes() -> None:
    algorithm = make("redq", num_critics=4, subset_size=2, temperature=1.0)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1)
    following = NextAction(torch.zeros(1, 2), torch.zeros(1))
    drawn = torch.tensor([algorithm.reduce(values, following).item() for _ in range(600)])
    # Of 6 pairs 3 have the minimum 1, 2 have 2, 1 has 3.
    shares = [float((drawn == value).float().mean()) for value in (1.0, 2.0, 3.0, 4.0)]
    assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0.0], abs=0.07)
    assert algorithm.appraise(values).item() == 2.5


def test_tqc_drops_the_highest_quantiles_of_all_critics_together() -> None:
    algorithm = make("tqc", num_critics=2, num_quantiles=3, drop_quantiles=1, temperature=1.0)
    values = torch.tensor([[[5.0, 1.0, 9.0]], [[2.0, 8.0, 7.0]]])
    following = NextAction(torch.zeros(1, 2), torch.tensor([1.0]))
    torch.testing.assert_close(
        algorithm.reduce(values, following),
        torch.tensor([[0.0, 1.0, 4.0, 6.0]]),  # 9 and 8 dropped, less 1
    )
    assert algorithm.appraise(values).item() == pytest.approx(32 / 6)


def test_quantile_loss_by_hand() -> None:
    quantiles = torch.tensor([[[0.0, 1.0]]])  # τ = 1/4, 3/4
    targets = torch.tensor([[0.5, 3.0]])
    below = 0.25 * 0.125 + 0.25 * 2.5  # 0 lies below both targets: τ times Huber of 0.5 and 3
    above = 0.25 * 0.125 + 0.75 * 1.5  # 1 lies above 0.5 (1 - τ) and below 3 (τ)
    torch.testing.assert_close(
        truncated_quantile_loss(quantiles, targets), torch.tensor([[(below + above) / 4]])
    )


def test_td3_smooths_the_target_policy_with_clipped_noise() -> None:
    algorithm = make("td3", target_noise=0.2, target_noise_clip=0.1)
    b = batch(size=200)
    algorithm.policy.head.weight.data.zero_()  # the target actor must not see this
    features = algorithm.policy.features(b.next_obs)
    clean = torch.tanh(algorithm.target_head(algorithm.target_core(features)))
    actions = algorithm.next_action(b, features).actions
    gaps = actions - clean
    assert float(gaps.abs().max()) <= 0.1 + 1e-6
    assert 0.3 < float((gaps.abs() > 0.0999).float().mean()) < 0.9  # cut at half a deviation: 62 %
    assert float(clean.abs().max()) > 0.01
    assert torch.equal(
        make("ddpg").next_action(b, features).actions, make("ddpg").next_action(b, features)[0]
    )


def test_td3_keeps_smoothed_actions_in_bounds() -> None:
    algorithm = make("td3", target_noise=0.5)
    algorithm.target_head.bias.data.fill_(3.0)  # tanh 0.995
    actions = algorithm.next_action(batch(size=50), torch.zeros(50, 3)).actions
    assert float(actions.max()) == 1.0


def test_discrete_sac_takes_the_expectation_over_allowed_actions() -> None:
    algorithm = make("discrete_sac", temperature=0.5)
    probs = torch.tensor([[0.5, 0.5, 0.0]])
    logprobs = torch.tensor([[math.log(0.5), math.log(0.5), -1e8]])
    values = torch.tensor([[[1.0, 4.0, 100.0]], [[2.0, 3.0, 200.0]]])
    expected = 0.5 * 1.0 + 0.5 * 3.0 + 0.5 * math.log(2.0)
    reduced = algorithm.reduce(values, NextAction(None, logprobs))
    torch.testing.assert_close(reduced, torch.tensor([[expected]]))
    assert probs.sum() == 1.0


def test_discrete_sac_masks_both_ends_and_wants_less_entropy_where_less_is_allowed() -> None:
    space = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(3)})
    algorithm = make("discrete_sac", space, spaces.Discrete(3), target_entropy_ratio=0.5)
    b = batch("discrete_sac", size=2)
    obs = {"obs": b.obs, "action_mask": torch.tensor([[1, 1, 0], [0, 1, 0]], dtype=torch.int8)}
    following = algorithm.next_action(batch(size=2, next_obs=obs), algorithm.policy.features(obs))
    probs = following.logprobs.exp()
    assert probs[0, 2] == 0
    assert torch.equal(probs[1], torch.tensor([0.0, 1.0, 0.0]))
    wanted = algorithm.wanted_entropy(obs["action_mask"])
    torch.testing.assert_close(wanted, torch.tensor([0.5 * math.log(2.0), 0.0]))
    drawn = algorithm.policy.random_actions(
        {key: value.repeat(100, *[1] * (value.dim() - 1)) for key, value in obs.items()}, torch.Generator()
    )
    assert set(drawn[0::2].tolist()) == {0, 1}
    assert set(drawn[1::2].tolist()) == {1}
    losses = algorithm.actor_loss(batch("discrete_sac", size=2, obs=obs), algorithm.policy.features(obs))
    losses["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in algorithm.policy.own_parameters())


# Losses


def test_critic_loss_is_half_the_weighted_squared_error_of_each_critic() -> None:
    algorithm = make("ddpg")
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 1.0])
    b = batch(weights=weights)
    features = algorithm.encode(b)
    values, next_values = algorithm.evaluate_critics(b, features, algorithm.next_action(b, features.next))
    errors = values[0, :, 0] - (b.rewards + b.discount * next_values[0, :, 0])
    loss, found, _ = algorithm.critic_loss(b, features)
    torch.testing.assert_close(loss, (0.5 * weights * errors.square()).mean())
    torch.testing.assert_close(found[0], errors)


@pytest.mark.parametrize("algo", ALL)
def test_weights_reach_every_critic_and_priorities_come_back(algo: str) -> None:
    algorithm = make(algo, prioritized=True)
    before = parameters(algorithm)
    result = algorithm.update(batch(algo, weights=torch.zeros(6)))
    assert float(result.metrics["critic_loss"]) == 0.0
    assert not {name for name in changed(before, parameters(algorithm)) if name.startswith("critics")}
    assert result.priorities is not None
    assert result.priorities.shape == (6,)
    assert float(result.priorities.min()) > 0
    assert make(algo).update(batch(algo)).priorities is None


def test_sac_actor_loss_by_hand() -> None:
    """With critics that are constant, only the entropy counts, and the temperature follows the gap."""
    algorithm = make("sac", temperature=0.2, target_entropy=-3.0)
    for stack in algorithm.critics.weights:
        stack.data.zero_()
    for bias, values in zip(algorithm.critics.biases, (None, None, (1.0, 4.0)), strict=True):
        bias.data.zero_()
        if values is not None:
            bias.data[:, 0, 0] = torch.tensor(values)
    losses = algorithm.actor_loss(batch(), batch().obs)
    entropy = float(losses["entropy"])
    assert float(losses["actor_loss"]) == pytest.approx(-0.2 * entropy - 1.0, abs=1e-5)
    expected = float(losses["actor_loss"]) + math.log(0.2) * (entropy + 3.0)
    assert float(losses["loss"]) == pytest.approx(expected, abs=1e-5)
    losses["loss"].backward()
    assert float(algorithm.temperature.log.grad) == pytest.approx(entropy + 3.0, abs=1e-5)


def test_the_temperature_rises_when_entropy_is_too_low_and_falls_when_it_is_too_high() -> None:
    for target, sign in ((50.0, 1), (-50.0, -1)):
        algorithm = make("sac", target_entropy=target)
        algorithm.update(batch())
        assert math.copysign(1, float(algorithm.temperature.log)) == sign
    fixed = make("sac", learn_temperature=False, temperature=0.3)
    fixed.update(batch())
    assert float(fixed.temperature()) == pytest.approx(0.3)


def test_target_entropy_defaults() -> None:
    assert make("sac").target_entropy == -2.0
    assert make("discrete_sac").target_entropy == pytest.approx(0.5 * math.log(3))


def test_log_probs_stay_finite_and_exact_at_the_bounds() -> None:
    algorithm = make("sac")
    algorithm.policy.head.bias.data[:2] = 30.0  # tanh rounds to 1
    algorithm.policy.head.bias.data[2:] = -25.0  # clamped to -20
    features = batch().obs
    actions, logprobs = algorithm.sample(features)
    assert float(actions.min()) == 1.0
    assert logprobs.isfinite().all()
    (-logprobs.mean() + actions.sum()).backward()
    assert algorithm.policy.head.bias.grad.isfinite().all()


def test_crossq_normalises_both_ends_of_a_transition_together() -> None:
    algorithm = make("crossq")
    b = batch()
    features = algorithm.encode(b)
    following = algorithm.next_action(b, features.next)
    twin = make("crossq")  # the same weights, and statistics that have not moved
    rows = torch.cat([torch.cat([b.obs, b.actions], 1), torch.cat([b.next_obs, following.actions], 1)])
    expected = twin.critics(rows, training=True)
    values, next_values = algorithm.evaluate_critics(b, features, following)
    torch.testing.assert_close(values, expected[:, :6])
    torch.testing.assert_close(next_values, expected[:, 6:])
    assert values.requires_grad
    assert not next_values.requires_grad
    assert set(algorithm.networks) == {"critics", "temperature"}
    for _ in range(2):
        algorithm.update(batch())
    norm = algorithm.critics.batch_norms[0]
    assert int(norm.batches) == 3  # one batch an update: the actor's loss uses the running statistics
    assert int(algorithm.policy.core.norms[0].batches) == 0  # the actor waits for its delay of 3
    algorithm.update(batch())
    assert int(algorithm.policy.core.norms[0].batches) == 1


# Who is trained by what


@pytest.mark.parametrize("algo", ALL)
def test_every_network_is_trained_and_targets_follow(algo: str) -> None:
    algorithm = make(algo, policy_delay=2) if algo != "ddpg" else make(algo)
    before = parameters(algorithm)
    algorithm.update(batch(algo))
    if algo != "ddpg":
        moved = changed(before, parameters(algorithm))
        assert all(name in moved for name in before if name.startswith("critics"))
        assert not {name for name in moved if name.startswith(("policy", "temperature"))}
    algorithm.update(batch(algo))
    assert changed(before, parameters(algorithm)) == set(before)


@pytest.mark.parametrize("algo", ALL)
def test_the_actors_backward_does_no_work_for_the_critics(algo: str) -> None:
    algorithm = make(algo)
    features = algorithm.encode(batch(algo)).now.detach()
    loss = algorithm.actor_loss(batch(algo), features)["loss"]
    before = parameters(algorithm)
    touched = hooked(algorithm.critics.parameters())
    descend(loss, algorithm.actor_optimizer, algorithm.actor_parameters, None)
    assert not touched
    moved = changed(before, parameters(algorithm))
    assert moved == {name for name in before if name.startswith(("policy", "temperature"))}


def test_targets_move_by_tau_at_every_update_and_td3s_with_its_actor() -> None:
    for algo, first_moves in (("sac", True), ("td3", False)):
        algorithm = make(algo, tau=0.25)
        old = algorithm.target_critics.weights[0].clone()
        algorithm.update(batch())
        if not first_moves:
            assert torch.equal(algorithm.target_critics.weights[0], old)
            algorithm.update(batch())
        expected = 0.75 * old + 0.25 * algorithm.critics.weights[0]
        torch.testing.assert_close(algorithm.target_critics.weights[0], expected)
    assert set(make("td3").networks) == {"critics", "target_critics", "target_core", "target_head"}


@pytest.mark.parametrize("algo", ALL)
def test_a_batch_that_is_not_finite_leaves_the_critics_alone(algo: str) -> None:
    algorithm = make(algo)
    before = parameters(algorithm)
    result = algorithm.update(batch(algo, rewards=torch.full((6,), float("nan"))))
    assert not result.metrics["grad_norm"].isfinite()
    after = parameters(algorithm)
    assert not {name for name in changed(before, after) if name.startswith("critics")}
    assert all(value.isfinite().all() for value in after.values())


IMAGE = spaces.Box(0, 255, (3, 16, 16), np.uint8)
DICT = spaces.Dict({"image": IMAGE, "vector": VECTOR})


def _obs(space: Any, size: int) -> Any:
    space.seed(0)
    samples = [space.sample() for _ in range(size)]
    if isinstance(space, spaces.Dict):
        return {key: torch.from_numpy(np.stack([s[key] for s in samples])) for key in space.spaces}
    return torch.from_numpy(np.stack(samples))


@pytest.mark.parametrize("algo", ALL)
@pytest.mark.parametrize("space", [IMAGE, DICT], ids=["image", "Dict"])
def test_encoders_are_trained_by_the_critics_and_never_by_the_actor(algo: str, space: Any) -> None:
    algorithm = make(algo, space)
    obs = _obs(space, 6)
    b = batch(algo, obs=obs, next_obs=obs)
    encoder = list(algorithm.policy.encoder.parameters())
    assert encoder
    features = algorithm.encode(b).now
    assert features.requires_grad
    loss = algorithm.actor_loss(b, features.detach())["loss"]
    touched = hooked(encoder)
    descend(loss, algorithm.actor_optimizer, algorithm.actor_parameters, None)
    assert not touched
    before = parameters(algorithm)
    for _ in range(algorithm.hyperparams.policy_delay):
        algorithm.update(b)
    still = set(before) - changed(before, parameters(algorithm))
    assert not {name for name in still if "encoder" in name}
    assert ("target_encoder" in algorithm.networks) == (algo not in ("crossq", "drqv2"))


# Policies


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_actions_are_rescaled_to_any_box(algo: str) -> None:
    low, high = np.array([[-2.0, 0.0, 5.0]] * 2, np.float32), np.array([[2.0, 1.0, 9.0]] * 2, np.float32)
    algorithm = make(algo, VECTOR, spaces.Box(low, high))
    policy = algorithm.policy
    obs = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    drawn = policy.random_actions(obs, generator)
    assert drawn.shape == (500, 2, 3)
    env_actions = policy.env_actions(drawn).numpy()
    assert (env_actions >= low).all()
    assert (env_actions <= high).all()
    np.testing.assert_allclose(env_actions.mean(0), (low + high) / 2, atol=0.25)
    assert (env_actions.max(0) > low + 0.98 * (high - low)).all()
    acted = policy.act(obs, generator=generator).actions
    assert acted.shape == (500, 2, 3)
    assert float(acted.abs().max()) <= 1.0
    best = policy.act(obs, deterministic=True).actions
    assert torch.equal(best, policy.act(obs, deterministic=True).actions)
    algorithm.update(batch(size=500, obs=obs, next_obs=obs, actions=acted))


def test_the_normaliser_serves_actor_and_critics() -> None:
    entry = registry.algorithm("sac")
    context = Context(
        Spec(VECTOR, spaces.Box(-1.0, 1.0, (2,))),
        entry.cls.Hyperparams(),
        NetworkConfig(hidden=(8,)),
        torch.device("cpu"),
        normalize_obs=True,
    )
    algorithm = entry.cls.from_context(context)
    rows = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 3 + 7
    algorithm.policy.normalizer.update(rows)
    features = algorithm.encode(batch(size=1000, obs=rows, next_obs=rows, actions=torch.zeros(1000, 2)))
    torch.testing.assert_close(features.now.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.next_target.std(0), torch.ones(3), atol=1e-2, rtol=0)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        make("sac", VECTOR, spaces.Box(-np.inf, np.inf, (1,)))
    with pytest.raises(ConfigError, match="Box actions of floats"):
        make("td3", VECTOR, spaces.Box(0, 5, (1,), np.int64))
    problems = registry.algorithm("redq").cls.Hyperparams(num_critics=2, subset_size=3).problems(1)
    assert any("subset_size" in problem for problem in problems)
    problems = registry.algorithm("tqc").cls.Hyperparams(drop_quantiles=25).problems(1)
    assert any("drop_quantiles" in problem for problem in problems)


def test_exploration_is_what_the_configuration_says() -> None:
    assert make("sac").exploration is None
    assert make("td3", exploration_sigma=0.3).exploration.metrics() == {"noise_sigma": 0.3}
    ou = make("ddpg", exploration_noise="ou", exploration_sigma=0.2, exploration_correlation=5.0).exploration
    generator = torch.Generator().manual_seed(0)
    still = torch.zeros(500, 2)
    path = torch.stack([ou.explore(still, still, generator) for _ in range(60)])[30:]
    assert float(path.std()) == pytest.approx(0.2, rel=0.03)
    neighbours = float((path[1:] * path[:-1]).mean() / path.square().mean())
    assert neighbours == pytest.approx(1 - 1 / 5, abs=0.02)


# Documentation


def test_the_pages_list_every_hyperparameter_and_metric() -> None:
    folder = Path(__file__).parents[3] / "docs" / "algorithms"
    sac, td3, drqv2 = (
        (folder / f"{name}.md").read_text(encoding="utf-8") for name in ("sac", "td3", "drqv2")
    )
    shared = set(registry.algorithm("sac").cls.Hyperparams.__dataclass_fields__)
    for algo in ALL:
        fields = registry.algorithm(algo).cls.Hyperparams.__dataclass_fields__
        own_page = {"td3": td3, "ddpg": td3, "drqv2": drqv2}.get(algo, sac)
        missing = [f for f in fields if f"| `{f}` |" not in own_page and (own_page is sac or f not in shared)]
        assert missing == [], algo
        algorithm = make(algo)
        for _ in range(algorithm.hyperparams.policy_delay):
            metrics = algorithm.update(batch(algo)).metrics
        assert {"critic_loss", "q_mean", "grad_norm", "actor_loss", "actor_grad_norm"} <= set(metrics)
        assert [name for name in metrics if f"`train/{name}`" not in sac] == []
