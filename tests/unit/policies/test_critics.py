"""Critic ensembles are the same functions as separate networks, and so are their normalisations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.policies.batch_renorm import BatchRenorm, RenormMLP
from rl_training.policies.critics import CriticEnsemble


def separate(ensemble: CriticEnsemble, member: int, layer_norm: bool = False) -> nn.Sequential:
    """One critic of an ensemble, as the network it would be on its own."""
    layers: list[nn.Module] = []
    for i, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        linear = nn.Linear(weight.shape[1], weight.shape[2])
        linear.load_state_dict({"weight": weight[member].T, "bias": bias[member, 0]})
        layers.append(linear)
        if i + 1 < len(ensemble.weights):
            if layer_norm:
                assert ensemble.layer_norms is not None
                norm, ours = nn.LayerNorm(weight.shape[2]), ensemble.layer_norms[i]
                norm.load_state_dict({"weight": ours.scale[member, 0], "bias": ours.shift[member, 0]})
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("outputs", [1, 4])
def test_an_ensemble_is_so_many_separate_networks(layer_norm: bool, outputs: int) -> None:
    torch.manual_seed(0)
    ensemble = CriticEnsemble(3, 5, (16, 8), outputs, norm="layer" if layer_norm else "none")
    for parameter in ensemble.parameters():  # normalisation starts as the identity, which would hide mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(7, 5)
    values = ensemble(x)
    assert values.shape == (3, 7, outputs)
    values.square().sum().backward()
    for member in range(3):
        network = separate(ensemble, member, layer_norm)
        expected = network(x)
        torch.testing.assert_close(values[member], expected)
        expected.square().sum().backward()
        for layer, linear in ((0, network[0]), (-1, network[-1])):
            assert isinstance(linear, nn.Linear)
            assert linear.weight.grad is not None
            gradient = ensemble.weights[layer].grad
            assert gradient is not None
            torch.testing.assert_close(gradient[member], linear.weight.grad.T)
    torch.testing.assert_close(ensemble.first(x), values[:1])


def test_members_are_drawn_on_their_own_within_torchs_bounds() -> None:
    torch.manual_seed(0)
    ensemble = CriticEnsemble(2, 4, (400,))
    weight = ensemble.weights[0]
    assert not torch.equal(weight[0], weight[1])
    assert 0.49 < weight.abs().max().item() <= 0.5  # 1/√4
    assert ensemble.weights[1].abs().max().item() <= 0.05  # 1/√400


def test_orthogonal_weights_are_orthogonal_for_each_member() -> None:
    ensemble = CriticEnsemble(2, 8, (8,))
    ensemble.init_orthogonal()
    for weight in ensemble.weights[0]:
        torch.testing.assert_close(weight.T @ weight, 2.0 * torch.eye(8), atol=1e-5, rtol=0)
    assert not ensemble.biases[0].any()


def test_batch_renorm_is_batch_norm_until_it_is_warm() -> None:
    torch.manual_seed(0)
    norm = BatchRenorm((1, 3), momentum=0.1, warmup=2)
    x = torch.randn(32, 3) * 2 + 1
    expected = F.batch_norm(x, None, None, training=True, eps=1e-3)
    torch.testing.assert_close(norm(x, True), expected)
    torch.testing.assert_close(norm.mean, 0.1 * x.mean(0, keepdim=True))
    torch.testing.assert_close(norm.var, 0.9 + 0.1 * x.var(0, keepdim=True, correction=0))
    again = (x - norm.mean) / torch.sqrt(norm.var + 1e-3)
    torch.testing.assert_close(norm(x), again)


def test_warm_batch_renorm_agrees_with_the_running_statistics_within_its_bounds() -> None:
    norm = BatchRenorm((1, 1), warmup=0, eps=0.0)
    norm.mean.fill_(1.0)
    norm.var.fill_(4.0)
    x = torch.tensor([[0.0], [2.0], [4.0], [6.0]])  # mean 3, deviation √5
    torch.testing.assert_close(norm(x, True), (x - 1.0) / 2.0)  # r = √5/2 and d = 1: nothing is clipped
    norm.mean.fill_(1.0)
    norm.var.fill_(0.01)
    far = norm(x, True)  # r would be 22 and d 20: they are 3 and 5
    torch.testing.assert_close(far, (x - 3.0) / 5.0**0.5 * 3.0 + 5.0)


def test_batch_renorms_correction_carries_no_gradient() -> None:
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))

    def gradient(function: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        (function(leaf) * torch.arange(32.0).reshape(16, 2)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    norm = BatchRenorm((1, 2), warmup=0)
    r = (x.var(0, correction=0) + 1e-3).sqrt() / (norm.var + 1e-3).sqrt()
    plain = gradient(lambda v: F.batch_norm(v, None, None, training=True, eps=1e-3))
    torch.testing.assert_close(gradient(lambda v: norm(v, True)), plain * r, atol=1e-4, rtol=1e-4)


def test_a_renormalised_mlp_uses_the_running_statistics_unless_told_otherwise() -> None:
    torch.manual_seed(0)
    mlp = RenormMLP(3, (8,))
    x = torch.randn(64, 3) + 5
    trained = mlp(x, True)
    assert trained.mean(0).abs().max() < 1e-5
    row = mlp(x[:1])
    torch.testing.assert_close(mlp(x)[:1], row)  # what a row becomes does not depend on the others
    assert int(mlp.norms[0].batches) == 1
