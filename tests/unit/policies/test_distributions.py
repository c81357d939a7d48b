"""Every distribution against torch.distributions, or against numbers worked out another way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as oracle

from rl_training.policies.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    StateDependentGaussian,
    frozen,
    mask_logits,
)
from rl_training.policies.heads import MultiCategoricalHead


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LOGITS = torch.tensor([[0.0, 1.0, -2.0, 0.5], [3.0, -3.0, 0.0, 10.0]])


def test_categorical_matches_oracle() -> None:
    ours, theirs = Categorical.from_logits(LOGITS), oracle.Categorical(logits=LOGITS)
    actions = torch.tensor([2, 0])
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode().tolist() == [1, 3]


def test_categorical_sample_frequencies() -> None:
    probs = torch.tensor([0.5, 0.25, 0.2, 0.05])
    draws = Categorical.from_logits(probs.log().expand(200_000, 4)).sample(seeded())
    frequencies = torch.bincount(draws, minlength=4) / 200_000
    torch.testing.assert_close(frequencies, probs, atol=0.005, rtol=0)


def test_sampling_depends_on_the_generator_alone() -> None:
    dist = Categorical.from_logits(torch.zeros(64, 10))
    torch.manual_seed(1)
    first = dist.sample(seeded(7))
    torch.manual_seed(2)
    assert torch.equal(first, dist.sample(seeded(7)))
    assert not torch.equal(first, dist.sample(seeded(8)))


def test_masked_actions_have_probability_zero_and_are_never_sampled() -> None:
    mask = torch.tensor([0, 1, 1, 0], dtype=torch.int8)
    logits = torch.tensor([50.0, 0.0, 1.0, 50.0]).expand(100_000, 4)
    dist = Categorical.from_logits(mask_logits(logits, mask))
    assert set(dist.sample(seeded()).unique().tolist()) == {1, 2}
    assert dist.logprobs.exp()[0, [0, 3]].tolist() == [0.0, 0.0]
    allowed = oracle.Categorical(logits=torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(dist.entropy()[0], allowed.entropy())
    torch.testing.assert_close(dist.log_prob(torch.full((100_000,), 2))[0], allowed.log_prob(torch.tensor(1)))


def test_masked_gradients_are_finite_and_zero_where_masked() -> None:
    logits = torch.randn(5, 4, generator=seeded(), requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]])
    dist = Categorical.from_logits(mask_logits(logits, mask))
    loss = dist.entropy().sum() + dist.log_prob(torch.tensor([0, 0, 0, 0, 0])).sum()
    assert torch.isfinite(loss)
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[mask == 0] == 0).all()
    assert (logits.grad[3] != 0).all()


def test_a_row_with_every_action_masked_is_uniform() -> None:
    dist = Categorical.from_logits(mask_logits(torch.tensor([[5.0, 0.0, -5.0]]), torch.zeros(1, 3)))
    torch.testing.assert_close(dist.logprobs.exp(), torch.full((1, 3), 1 / 3))


SIZES = [3, 2, 5]


def ragged(logits: torch.Tensor, mask: torch.Tensor | None = None) -> MultiCategorical:
    """A MultiCategorical over `SIZES` whose logits are given: the head's linear layer is the identity."""
    head = MultiCategoricalHead(10, SIZES)
    with torch.no_grad():
        head.linear.weight.copy_(torch.eye(10))
        head.linear.bias.zero_()
    return head(logits, mask)


def test_multi_categorical_with_unequal_sizes_matches_oracle() -> None:
    logits = torch.randn(6, 10, generator=seeded())
    ours = ragged(logits)
    theirs = [oracle.Categorical(logits=part) for part in logits.split(SIZES, dim=1)]
    actions = torch.tensor([[2, 1, 4], [0, 0, 0], [1, 1, 3], [2, 0, 2], [0, 1, 1], [1, 0, 4]])
    log_prob = sum(dist.log_prob(actions[:, i]) for i, dist in enumerate(theirs))
    torch.testing.assert_close(ours.log_prob(actions), log_prob)
    torch.testing.assert_close(ours.entropy(), sum(dist.entropy() for dist in theirs))
    assert torch.equal(ours.mode(), torch.stack([dist.logits.argmax(-1) for dist in theirs], dim=1))


def test_multi_categorical_sample_frequencies_and_ranges() -> None:
    logits = torch.randn(10, generator=seeded(3))
    draws = ragged(logits.expand(100_000, 10)).sample(seeded())
    for i, part in enumerate(logits.split(SIZES)):
        frequencies = torch.bincount(draws[:, i]) / 100_000
        torch.testing.assert_close(frequencies, part.softmax(0), atol=0.007, rtol=0)


def test_multi_categorical_masks_each_component() -> None:
    mask = torch.tensor([0, 1, 1, 1, 0, 0, 0, 0, 0, 1])
    draws = ragged(torch.zeros(5_000, 10), mask.expand(5_000, 10)).sample(seeded())
    assert [sorted(draws[:, i].unique().tolist()) for i in range(3)] == [[1, 2], [0], [4]]


def test_multi_categorical_with_one_component_fully_masked_stays_in_range() -> None:
    mask = torch.tensor([1, 1, 1, 0, 0, 1, 1, 1, 1, 1])
    draws = ragged(torch.zeros(5_000, 10), mask.expand(5_000, 10)).sample(seeded())
    assert sorted(draws[:, 1].unique().tolist()) == [0, 1]


def test_bernoulli_matches_oracle() -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0], [30.0, -30.0, 0.1]])
    actions = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    theirs = oracle.Bernoulli(logits=logits)
    torch.testing.assert_close(Bernoulli(logits).log_prob(actions), theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(Bernoulli(logits).entropy(), theirs.entropy().sum(-1))
    assert Bernoulli(logits).mode().tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    draws = Bernoulli(logits[0].expand(100_000, 3)).sample(seeded())
    torch.testing.assert_close(draws.mean(0), logits[0].sigmoid(), atol=0.006, rtol=0)


def test_diagonal_gaussian_matches_oracle() -> None:
    mean, log_std = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([0.3, -2.0])
    theirs = oracle.Independent(oracle.Normal(mean, log_std.exp()), 1)
    ours = DiagonalGaussian(mean, log_std)
    actions = torch.tensor([[0.0, -1.2], [9.0, 0.1]])
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    draws = DiagonalGaussian(mean[0].expand(100_000, 2), log_std).sample(seeded())
    torch.testing.assert_close(draws.mean(0), mean[0], atol=0.02, rtol=0)
    torch.testing.assert_close(draws.std(0), log_std.exp(), atol=0, rtol=0.01)


def test_squashed_gaussian_matches_oracle() -> None:
    mean, log_std = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([0.3, -1.0])
    base = oracle.Independent(oracle.Normal(mean.double(), log_std.double().exp()), 1)
    theirs = oracle.TransformedDistribution(base, oracle.TanhTransform())
    actions = torch.tensor([[0.1, -0.9], [0.99, 0.3]])
    ours = SquashedGaussian(mean, log_std)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions.double()).float())
    torch.testing.assert_close(ours.mode(), mean.tanh())
    sampled, log_prob = ours.sample_with_log_prob(seeded())
    torch.testing.assert_close(log_prob, theirs.log_prob(sampled.double()).float(), rtol=1e-4, atol=1e-4)


def test_squashed_log_prob_from_the_pre_tanh_value_is_exact_where_tanh_saturates() -> None:
    _, log_prob = SquashedGaussian(torch.tensor([[20.0]]), torch.tensor([-20.0])).sample_with_log_prob()
    # At u = 20 and noise ~0: -log σ - log √2π - z²/2 - log(1 - tanh²u), and log(1 - tanh²u) = 2(log 2 - u)
    best = 20.0 - 0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 20.0)
    assert best - 15.0 < log_prob.item() <= best + 1e-3


@pytest.mark.parametrize("action", [-1.0, 1.0])
def test_squashed_log_prob_and_gradients_are_finite_at_the_bounds(action: float) -> None:
    mean = torch.tensor([[0.3]], requires_grad=True)
    log_std = torch.tensor([-0.5], requires_grad=True)
    log_prob = SquashedGaussian(mean, log_std).log_prob(torch.tensor([[action]]))
    u = math.copysign(math.atanh(1 - 2**-23), action)
    normal = oracle.Normal(0.3, math.exp(-0.5)).log_prob(torch.tensor(u)).item()
    assert log_prob.item() == pytest.approx(normal + 2 * math.log(math.cosh(u)), rel=1e-3)
    log_prob.sum().backward()
    for parameter in (mean, log_std):
        assert parameter.grad is not None
        assert 1 < parameter.grad.abs().item() < 1e4


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 1.0])
def test_squashed_entropy_agrees_with_monte_carlo(log_std: float) -> None:
    mean = torch.tensor([[0.7, -0.2]], dtype=torch.float64)
    dist = SquashedGaussian(mean.expand(400_000, 2), torch.full((2,), log_std, dtype=torch.float64))
    _, log_prob = dist.sample_with_log_prob(seeded())
    entropy = SquashedGaussian(mean.float(), torch.full((2,), log_std)).entropy()
    assert entropy.item() == pytest.approx(-log_prob.mean().item(), abs=0.02)


def test_state_dependent_gaussian_marginal() -> None:
    mean, features = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, 2.0, -1.0]])
    std = torch.tensor([[0.1, 1.0], [0.2, 0.5], [0.3, 0.1]])
    scale = (features.square() @ std.square()).sqrt()
    theirs = oracle.Independent(oracle.Normal(mean, scale), 1)
    ours = StateDependentGaussian(mean, features, std)
    actions = torch.tensor([[1.5, 0.0]])
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-4, atol=1e-4)
    many = StateDependentGaussian(mean.expand(100_000, 2), features.expand(100_000, 3), std)
    draws = many.sample(seeded())
    torch.testing.assert_close(draws.mean(0), mean[0], atol=0.03, rtol=0)
    torch.testing.assert_close(draws.std(0), scale[0], atol=0, rtol=0.01)


def test_state_dependent_noise_is_linear_in_the_features() -> None:
    noise = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]])
    dist = StateDependentGaussian(torch.zeros(1, 2), torch.tensor([[2.0, 1.0]]), torch.full((2, 2), 0.5))
    assert dist.sample_from(noise).tolist() == [[2.5, 1.5]]


def test_kl_matches_oracle() -> None:
    other = torch.tensor([[1.0, 0.0, 0.0, -0.5], [0.0, -1.0, 2.0, 1.0]])
    p, q = Categorical.from_logits(LOGITS), Categorical.from_logits(other)
    expected = oracle.kl_divergence(oracle.Categorical(logits=LOGITS), oracle.Categorical(logits=other))
    torch.testing.assert_close(p.kl(q), expected)
    torch.testing.assert_close(MultiCategorical(p.logprobs[None]).kl(MultiCategorical(q.logprobs[None])),
                               expected.sum()[None])  # fmt: skip
    expected = oracle.kl_divergence(oracle.Bernoulli(logits=LOGITS), oracle.Bernoulli(logits=other))
    torch.testing.assert_close(Bernoulli(LOGITS).kl(Bernoulli(other)), expected.sum(-1))

    log_stds = torch.tensor([-1.0, 0.3, 0.0, 0.1]), torch.tensor([0.5, -0.2, 0.0, 0.7])
    expected = oracle.kl_divergence(
        oracle.Normal(LOGITS, log_stds[0].exp()), oracle.Normal(other, log_stds[1].exp())
    ).sum(-1)
    for kind in (DiagonalGaussian, SquashedGaussian):
        torch.testing.assert_close(kind(LOGITS, log_stds[0]).kl(kind(other, log_stds[1])), expected)


def test_kl_of_masked_and_of_state_dependent_distributions() -> None:
    mask = torch.tensor([0, 1, 1, 0])
    p, q = (Categorical.from_logits(mask_logits(x, mask)) for x in (LOGITS, LOGITS.flip(-1)))
    allowed = [oracle.Categorical(logits=x[:, 1:3]) for x in (LOGITS, LOGITS.flip(-1))]
    torch.testing.assert_close(p.kl(q), oracle.kl_divergence(*allowed))

    features = torch.tensor([[1.0, 2.0]])
    narrow, wide = (StateDependentGaussian(torch.zeros(1, 1), features, s * torch.ones(2, 1)) for s in (1, 2))
    expected = oracle.kl_divergence(oracle.Normal(0.0, math.sqrt(5)), oracle.Normal(0.0, math.sqrt(20)))
    torch.testing.assert_close(narrow.kl(wide), expected[None], rtol=1e-5, atol=1e-6)


def test_a_frozen_distribution_stays_when_the_parameters_it_was_made_of_move() -> None:
    log_std = torch.nn.Parameter(torch.zeros(4))
    now = DiagonalGaussian(LOGITS, log_std)
    old = frozen(now)
    with torch.no_grad():
        log_std.fill_(1.0)
    assert old.log_std.tolist() == [0.0] * 4
    assert not old.log_std.requires_grad
    assert (old.kl(now) > 0).all()
