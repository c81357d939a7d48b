"""Action-value networks: dueling and noisy layers, masks, encoders, and what heads make of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Generator

from rl_training.policies.build_q import build_q_policy
from rl_training.policies.config import NetworkConfig
from rl_training.policies.noisy import Noise, NoisyLinear
from rl_training.policies.q_heads import C51Head, ImplicitQuantileHead, QHead, QuantileHead
from rl_training.policies.q_networks import QPolicy
from rl_training.types import Spec

VECTOR = spaces.Box(-1.0, 1.0, (3,))


def policy(space: spaces.Space[Any] = VECTOR, actions: int = 4, start: int = 0, **options: Any) -> QPolicy:
    torch.manual_seed(0)
    network = NetworkConfig(hidden=options.pop("hidden", (8, 8)))
    return build_q_policy(Spec(space, spaces.Discrete(actions, start=start)), network, **options)


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def test_noisy_layers_are_their_means_without_noise() -> None:
    layer = NoisyLinear(3, 2, sigma=0.6)
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    np.testing.assert_allclose(layer.weight_sigma.detach().numpy(), 0.6 / np.sqrt(3.0), rtol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_noisy_layers_have_the_weights_of_the_paper(shared: bool) -> None:
    """w = μ + σ ∘ f(ε_out) f(ε_in)ᵀ, b = μ + σ ∘ f(ε_out), with f(x) = sign(x) √|x|."""
    layer = NoisyLinear(3, 2)
    with torch.no_grad():
        layer.weight_sigma.copy_(torch.rand(2, 3))
        layer.bias_sigma.copy_(torch.rand(2))
    x = torch.randn(4, 3)
    drawn = torch.randn(1 if shared else 4, 5, generator=seeded(3))
    scaled = (drawn.sign() * drawn.abs().sqrt()).expand(4, 5)
    expected = torch.stack(
        [
            (layer.weight + layer.weight_sigma * torch.outer(f[3:], f[:3])) @ row
            + layer.bias
            + layer.bias_sigma * f[3:]
            for row, f in zip(x, scaled, strict=True)
        ]
    )
    torch.testing.assert_close(layer(x, Noise(seeded(3), shared)), expected)


def test_noisy_policies_differ_between_rows_and_stand_still_when_deterministic() -> None:
    noisy = policy(noisy_sigma=3.0)
    obs = torch.zeros(64, 3)
    assert len(noisy.act(obs, generator=seeded()).actions.unique()) > 1
    assert len(noisy.act(obs, deterministic=True).actions.unique()) == 1
    plain = policy()
    assert len(plain.act(obs, generator=seeded()).actions.unique()) == 1


@pytest.mark.parametrize("hidden", [(8, 8), ()])
def test_dueling_outputs_are_value_plus_centred_advantages(hidden: tuple[int, ...]) -> None:
    head = policy(dueling=True, hidden=hidden).q.head
    features = torch.randn(5, 16 if hidden else 3)
    own, common = (features[:, :8], features[:, 8:]) if hidden else (features, features)
    assert head.state is not None
    advantage, value = head.actions(own), head.state(common)
    expected = value + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(head(features).outputs, expected)
    torch.testing.assert_close(head(features).outputs.mean(1, keepdim=True), value)


def test_values_of_each_head() -> None:
    assert torch.equal(QHead(2, 2).values(torch.tensor([[1.0, 2.0]])), torch.tensor([[1.0, 2.0]]))
    c51 = C51Head(2, 1, size=3).set_support(-1.0, 1.0)
    logits = torch.log(torch.tensor([[[0.25, 0.25, 0.5]]]))
    assert c51.values(logits).item() == pytest.approx(0.25)
    qr = QuantileHead(2, 1, size=4).set_fractions(4)
    assert qr.fractions.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert qr.values(torch.tensor([[[0.0, 1.0, 2.0, 5.0]]])).item() == 2.0


def test_mixtures() -> None:
    probs = torch.tensor([[0.25, 0.75]])
    assert QHead(2, 2).mix(torch.tensor([[4.0, 8.0]]), probs).item() == 7.0
    c51 = C51Head(2, 2, size=2).set_support(0.0, 1.0)
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]))
    np.testing.assert_allclose(c51.mix(logits, probs).softmax(-1).numpy(), [[0.8, 0.2]], rtol=1e-6)


def test_implicit_quantiles_depend_on_their_fraction_and_on_nothing_random_without_noise() -> None:
    torch.manual_seed(0)
    head = ImplicitQuantileHead(8, 2).set_fractions(5)
    features = torch.rand(3, 8)
    outputs, taus = head(features)
    assert outputs.shape == (3, 2, 5)
    assert taus is not None
    np.testing.assert_allclose(taus[0].tolist(), [0.1, 0.3, 0.5, 0.7, 0.9], rtol=1e-6)
    assert torch.equal(outputs, head(features).outputs)
    # One fraction by hand.
    waves = torch.cos(torch.arange(1, 65) * torch.pi * taus[1, 3])
    by_hand = head.actions(features[1] * torch.relu(head.embed(waves)))
    torch.testing.assert_close(outputs[1, :, 3], by_hand)
    drawn, other = head(features, Noise(seeded(1))), head(features, Noise(seeded(2)))
    assert drawn.taus is not None
    assert bool(((drawn.taus >= 0) & (drawn.taus < 1)).all())
    assert not torch.equal(drawn.outputs, other.outputs)


@pytest.mark.parametrize("head", ["scalar", "c51", "qr", "iqn"])
@pytest.mark.parametrize("dueling", [False, True])
def test_every_head_chooses_only_allowed_actions(head: Any, dueling: bool) -> None:
    space = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
    masked = policy(space, head=head, dueling=dueling, size=5)
    obs = {"obs": torch.randn(64, 3), "action_mask": torch.eye(4).repeat(16, 1)}
    allowed = torch.arange(64) % 4
    assert torch.equal(masked.act(obs).actions, allowed)
    assert torch.equal(masked.random_actions(obs, seeded()), allowed)
    free = masked.action_values({**obs, "action_mask": torch.ones(64, 4)})
    torch.testing.assert_close(masked.values(obs), free[torch.arange(64), allowed])


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    plain = policy()
    counts = torch.bincount(plain.random_actions(torch.zeros(4000, 3), seeded()), minlength=4)
    assert bool(((counts > 850) & (counts < 1150)).all())
    space = spaces.Dict({"obs": VECTOR, "action_mask": spaces.MultiBinary(4)})
    obs = {"obs": torch.zeros(4000, 3), "action_mask": torch.tensor([[1, 0, 1, 0]]).repeat(4000, 1)}
    counts = torch.bincount(policy(space).random_actions(obs, seeded()), minlength=4)
    assert counts[1] == counts[3] == 0
    assert 1850 < counts[0] < 2150
    nothing = {**obs, "action_mask": torch.zeros(4000, 4)}
    assert len(policy(space).random_actions(nothing, seeded()).unique()) == 4


def test_actions_are_counted_from_the_spaces_start() -> None:
    offset = policy(start=3)
    actions = offset.act(torch.randn(16, 3)).actions
    assert bool((actions < 4).all())
    assert torch.equal(offset.env_actions(actions), actions + 3)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Box(0, 255, (36, 36, 1), np.uint8), torch.zeros(2, 36, 36, 1, dtype=torch.uint8)),
        (spaces.Discrete(5), torch.tensor([0, 4])),
        (
            spaces.Dict({"a": VECTOR, "b": spaces.Discrete(2)}),
            {"a": torch.zeros(2, 3), "b": torch.tensor([0, 1])},
        ),
    ],
    ids=["image", "choice", "dict"],
)
def test_encoders_are_those_of_every_policy(space: spaces.Space[Any], obs: Any) -> None:
    torch.manual_seed(0)
    network = NetworkConfig()
    for options in ({}, {"dueling": True, "noisy_sigma": 0.5, "head": "c51", "size": 7}):
        q = build_q_policy(Spec(space, spaces.Discrete(4)), network, **options)  # type: ignore[arg-type]
        assert q.action_values(obs).shape == (2, 4)
    if space.shape == (36, 36, 1):
        assert q.q.branch is None  # the encoder's dense layer is the last hidden one
