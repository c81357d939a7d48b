"""DQN: what targets are made of, which weights and discounts reach the loss, and when the target follows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training import registry
from rl_training.algorithms.base import Context
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.policies.config import NetworkConfig
from rl_training.policies.exploration import EpsilonGreedy, RepeatedEpsilonGreedy
from rl_training.types import Spec, TransitionBatch

HEADS = ["scalar", "c51", "qr", "iqn"]
SPEC = Spec(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(3))
MASKED = Spec(
    spaces.Dict({"obs": spaces.Box(-1.0, 1.0, (3,)), "action_mask": spaces.MultiBinary(3)}),
    spaces.Discrete(3),
)


def dqn(spec: Spec = SPEC, hidden: tuple[int, ...] = (8, 8), **hyperparams: Any) -> DQN:
    values = {"num_atoms": 11, "num_quantiles": 5, **hyperparams}
    context = Context(spec, DQNConfig(**values), NetworkConfig(hidden=hidden), torch.device("cpu"), seed=1)
    return DQN.from_context(context)


def batch(size: int = 6, mask: Tensor | None = None) -> TransitionBatch:
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, size, 3, generator=generator)
    return TransitionBatch(
        obs if mask is None else {"obs": obs, "action_mask": torch.ones(size, 3)},
        torch.arange(size) % 3,
        rewards=torch.randn(size, generator=generator),
        next_obs=next_obs if mask is None else {"obs": next_obs, "action_mask": mask},
        discount=torch.full((size,), 0.9),
        weights=torch.ones(size),
        index=torch.zeros(2, size, dtype=torch.int64),
    )


def separate(algorithm: DQN) -> DQN:
    """Move the target network away from the learning one."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in algorithm.target_parameters:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return algorithm


def q_values(algorithm: DQN, network: Any, obs: Tensor) -> np.ndarray:
    with torch.no_grad():
        return algorithm.policy.q.head.values(network(obs).outputs).numpy()


def test_targets_take_the_target_networks_maximum() -> None:
    algorithm, data = separate(dqn()), batch()
    target = q_values(algorithm, algorithm.target, data.next_obs)
    expected = data.rewards.numpy() + 0.9 * target.max(1)
    np.testing.assert_allclose(algorithm.targets(data).numpy(), expected, rtol=1e-6)


def test_double_targets_value_the_learning_networks_choice() -> None:
    algorithm, data = separate(dqn(double=True)), batch()
    online = q_values(algorithm, algorithm.policy.q, data.next_obs)
    target = q_values(algorithm, algorithm.target, data.next_obs)
    chosen = online.argmax(1)
    assert (chosen != target.argmax(1)).any()
    expected = data.rewards.numpy() + 0.9 * target[np.arange(6), chosen]
    np.testing.assert_allclose(algorithm.targets(data).numpy(), expected, rtol=1e-6)


def test_munchausen_targets() -> None:
    tau, alpha, low = 0.03, 0.9, -1.0
    algorithm, data = separate(dqn(munchausen=True)), batch()
    next_q = q_values(algorithm, algorithm.target, data.next_obs).astype(np.float64)
    here_q = q_values(algorithm, algorithm.target, data.obs).astype(np.float64)

    def log_policy(q: np.ndarray) -> np.ndarray:
        shifted = (q - q.max(1, keepdims=True)) / tau
        return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))

    logpi, logpi_next = log_policy(here_q), log_policy(next_q)
    bonus = alpha * np.clip(tau * logpi[np.arange(6), data.actions.numpy()], low, 0.0)
    soft = (np.exp(logpi_next) * (next_q - tau * logpi_next)).sum(1)
    expected = data.rewards.numpy() + bonus + 0.9 * soft
    np.testing.assert_allclose(algorithm.targets(data).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["c51", "qr"])
def test_munchausen_means_agree_for_distributions(head: str) -> None:
    """The mean of a distributional target is what the scalar rule gives for the means."""
    algorithm = separate(dqn(munchausen=True, head=head, num_atoms=201, v_min=-20.0, v_max=20.0))
    data = batch()
    q = algorithm.policy.q.head
    targets = algorithm.targets(data)
    means = (targets @ q.support if head == "c51" else targets.mean(1)).numpy()  # type: ignore[union-attr,operator]
    tau = 0.03
    with torch.no_grad():
        values, here = (
            q.values(algorithm.target(data.next_obs).outputs),
            q.values(algorithm.target(data.obs).outputs),
        )
    bonus = 0.9 * (tau * torch.log_softmax(here / tau, 1)[torch.arange(6), data.actions]).clamp(-1.0, 0.0)
    expected = data.rewards + bonus + 0.9 * tau * torch.logsumexp(values / tau, 1)  # the same soft maximum
    np.testing.assert_allclose(means, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"double": True}, {"munchausen": True}], ids=str)
def test_forbidden_next_actions_are_not_bootstrapped_from(options: dict[str, Any]) -> None:
    mask = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 2)
    data = batch(mask=mask)
    algorithm = separate(dqn(MASKED, **options))
    targets = algorithm.targets(data)
    assert isinstance(data.next_obs, dict)
    only = q_values(algorithm, algorithm.target, data.next_obs["obs"])[mask.bool().numpy()]
    bonus = algorithm._munchausen_bonus(data).numpy() if options.get("munchausen") else 0.0
    np.testing.assert_allclose(targets.numpy(), data.rewards.numpy() + bonus + 0.9 * only, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_a_discount_of_zero_leaves_the_reward_alone(head: str) -> None:
    algorithm = separate(dqn(head=head, v_min=-4.0, v_max=4.0))
    data = batch()
    targets = algorithm.targets(replace(data, discount=torch.zeros(6)))
    support = getattr(algorithm.policy.q.head, "support", None)
    means = targets @ support if support is not None else targets.reshape(6, -1).mean(1)
    torch.testing.assert_close(means, data.rewards, atol=1e-6, rtol=1e-5)
    other = algorithm.targets(replace(data, discount=torch.full((6,), 0.5)))
    assert not torch.allclose(other, targets)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("options", [{}, {"dueling": True, "double": True}, {"munchausen": True}], ids=str)
def test_weights_reach_the_loss_of_every_head(head: str, options: dict[str, Any]) -> None:
    """Samples of weight zero move nothing, and twice the weights are twice the loss."""

    def updated(data: TransitionBatch) -> tuple[float, Tensor]:
        algorithm = separate(dqn(head=head, **options))
        loss = algorithm.update(data).metrics["loss"].item()
        return loss, torch.cat([p.detach().flatten() for p in algorithm.parameters])

    data = batch()
    before = torch.cat([p.detach().flatten() for p in dqn(head=head, **options).parameters])
    loss, after = updated(data)
    assert not torch.equal(after, before)
    nothing, still = updated(replace(data, weights=torch.zeros(6)))
    assert nothing == 0.0
    assert torch.equal(still, before)
    assert updated(replace(data, weights=torch.full((6,), 2.0)))[0] == pytest.approx(2 * loss, rel=1e-5)
    # The last three samples are out of it: others in their place change nothing.
    first_half = replace(data, weights=torch.tensor([1.0, 1, 1, 0, 0, 0]))
    swapped = replace(first_half, rewards=data.rewards + torch.tensor([0.0, 0, 0, 1, 1, 1]))
    assert torch.equal(updated(first_half)[1], updated(swapped)[1])


@pytest.mark.parametrize("head", HEADS)
def test_priorities_are_the_errors_and_only_given_when_asked_for(head: str) -> None:
    data = batch()
    assert dqn(head=head).update(data).priorities is None
    algorithm = separate(dqn(head=head, prioritized=True))
    with torch.no_grad():
        q = algorithm.policy.q
        gaps = (
            q.head.pick(q.head.values(q(data.obs).outputs)[..., None], data.actions)
            if head != "scalar"
            else None
        )
    priorities = algorithm.update(data).priorities
    assert priorities is not None
    assert priorities.shape == (6,)
    assert bool((priorities >= 0).all())
    assert bool((priorities > 0).any())
    if head == "qr":
        assert gaps is not None
        again = separate(dqn(head=head))
        expected = (again.targets(data).mean(1) - gaps.squeeze(-1)).abs()
        torch.testing.assert_close(priorities, expected)


def test_hard_and_soft_targets() -> None:
    hard = dqn(target_update_every=3)
    first = [p.clone() for p in hard.target_parameters]
    for _ in range(2):
        hard.update(batch())
    assert all(torch.equal(a, b) for a, b in zip(first, hard.target_parameters, strict=True))
    hard.update(batch())
    assert all(torch.equal(a, b) for a, b in zip(hard.parameters, hard.target_parameters, strict=True))

    soft = dqn(target_update_every=1, tau=0.25)
    first = [p.clone() for p in soft.target_parameters]
    soft.update(batch())
    for before, online, target in zip(first, soft.parameters, soft.target_parameters, strict=True):
        torch.testing.assert_close(target, 0.75 * before + 0.25 * online)


def test_a_resumed_update_draws_what_it_would_have_drawn() -> None:
    for options in ({"noisy": True}, {"head": "iqn"}):
        first, second = dqn(**options), dqn(**options)
        first.update(batch())
        second.load_state_dict(first.state_dict())
        for algorithm in (first, second):
            algorithm.update(batch())
        assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))


def test_exploration_is_epsilon_greedy_unless_the_network_is_noisy() -> None:
    explorer = dqn(exploration_initial=0.8, exploration_final=0.2, exploration_fraction=0.5).exploration
    assert isinstance(explorer, EpsilonGreedy)
    explorer.set_progress(0.25)
    assert explorer.epsilon == pytest.approx(0.5)
    assert type(explorer) is EpsilonGreedy
    assert dqn(noisy=True).exploration is None


def test_random_actions_are_repeated_where_nothing_forbids_it() -> None:
    assert isinstance(dqn(exploration_repeats=True).exploration, RepeatedEpsilonGreedy)
    with pytest.raises(ConfigError, match="action mask may forbid"):
        dqn(MASKED, exploration_repeats=True)
    with pytest.raises(ConfigError, match="noisy networks take no random actions"):
        TrainConfig(
            algo="noisy_dqn",
            env_id="CartPole-v1",
            hyperparams={"exploration_repeats": True},  # type: ignore[arg-type]
        )


def test_learning_rate_follows_its_schedule() -> None:
    algorithm = dqn(learning_rate=1e-2, learning_rate_schedule="linear")
    algorithm.set_progress(1.0)
    before = [p.clone() for p in algorithm.parameters]
    algorithm.update(batch())
    assert all(torch.equal(a, b) for a, b in zip(before, algorithm.parameters, strict=True))
    algorithm.set_progress(0.5)
    algorithm.update(batch())
    assert float(algorithm.optimizer.param_groups[0]["lr"]) == pytest.approx(5e-3)
    assert not all(torch.equal(a, b) for a, b in zip(before, algorithm.parameters, strict=True))


def test_rainbow_is_all_six() -> None:
    config = TrainConfig(algo="rainbow", env_id="CartPole-v1")
    hp = config.hyperparams
    assert (hp.head, hp.double, hp.dueling, hp.noisy, hp.prioritized, hp.n_step) == (
        "c51",
        True,
        True,
        True,
        True,
        3,
    )
    algorithm = dqn(**registry.algorithm("rainbow").hyperparams({}))
    names = dict(algorithm.policy.named_parameters())
    assert {"q.branch.weight_sigma", "q.head.state.weight_sigma", "q.head.actions.weight_sigma"} <= set(names)
    assert names["q.head.actions.weight"].shape == (3 * 11, 8)
    assert names["q.head.state.weight"].shape == (11, 8)
    assert names["q.branch.weight"].shape == (16, 8)


def test_an_ids_own_defaults_can_be_changed_but_what_defines_it_cannot() -> None:
    def hyperparams(algo: str, **values: Any) -> DQNConfig:
        config: DQNConfig = TrainConfig(algo=algo, env_id="CartPole-v1", hyperparams=values).hyperparams
        return config

    assert hyperparams("dqn").n_step == 1
    assert hyperparams("n_step_dqn").n_step == 3
    assert hyperparams("n_step_dqn", n_step=5).n_step == 5
    assert hyperparams("double_dqn").double
    with pytest.raises(ConfigError, match="contradicts the algorithm 'double_dqn'"):
        hyperparams("double_dqn", double=False)
    with pytest.raises(ConfigError, match="no maximum"):
        hyperparams("double_dqn", munchausen=True)
    with pytest.raises(ConfigError, match="cover nothing"):
        hyperparams("c51", v_min=1.0, v_max=1.0)


def test_settings_of_a_critic_are_refused() -> None:
    context = Context(SPEC, DQNConfig(), NetworkConfig(critic_hidden=(4,), shared=True), torch.device("cpu"))
    with pytest.raises(ConfigError) as caught:
        DQN.from_context(context)
    assert [p.split(":")[0] for p in caught.value.problems] == ["network.critic_hidden", "network.shared"]


def test_entropy_of_a_uniform_policy_is_worth_its_temperature() -> None:
    """Equal values: the soft maximum lies τ log n above them."""
    algorithm, data = dqn(munchausen=True, munchausen_tau=0.5), batch()
    with torch.no_grad():
        for parameter in algorithm.target_parameters:
            parameter.zero_()
    bonus = 0.9 * max(0.5 * math.log(1 / 3), -1.0)
    expected = data.rewards.numpy() + bonus + 0.9 * 0.5 * math.log(3.0)
    np.testing.assert_allclose(algorithm.targets(data).numpy(), expected, rtol=1e-5)


def test_the_page_lists_every_id_hyperparameter_and_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms" / "dqn.md").read_text(encoding="utf-8")
    assert [name for name in DQNConfig.__dataclass_fields__ if f"| `{name}` |" not in page] == []
    assert [
        e.id for e in registry.algorithms().values() if e.cls is DQN and f"| `{e.id}` |" not in page
    ] == []
    assert [name for name in dqn().update(batch()).metrics if f"| `train/{name}` |" not in page] == []
