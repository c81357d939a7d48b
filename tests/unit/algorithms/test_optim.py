"""The gradient step: torch's own numbers, clipped, with a state that torch can read, and none on NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.algorithms.optim import Adam, descend, load_optimizer_state, optimizer_state

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(step))
    loss: Tensor = model(x).square().mean() * 50.0
    return loss


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_adam_takes_the_steps_of_torchs_adam(max_norm: float | None) -> None:
    ours, theirs = network(), network()
    options = {"betas": (0.8, 0.99), "eps": 1e-5}
    adam = Adam(list(ours.parameters()), torch.tensor(0.01), **options)  # type: ignore[arg-type]
    plain = torch.optim.Adam(theirs.parameters(), lr=0.01, **options)  # type: ignore[arg-type]
    for step in range(5):
        norm = descend(loss_of(ours, step), adam, list(ours.parameters()), max_norm)
        plain.zero_grad()
        loss_of(theirs, step).backward()  # type: ignore[no-untyped-call]
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or 1e9)
        plain.step()
        torch.testing.assert_close(norm, expected)
        for mine, their in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, their, atol=1e-6, rtol=1e-6)
    state = plain.state_dict()["state"]
    for index, moments in optimizer_state(adam).items():
        for name, value in moments.items():
            torch.testing.assert_close(value, state[int(index)][name], atol=1e-6, rtol=1e-5)


def test_adam_goes_on_from_the_state_of_torchs_adam_and_of_its_own() -> None:
    plain_model, model = network(), network()
    plain = torch.optim.Adam(plain_model.parameters(), lr=0.01, fused=True)
    for step in range(3):
        descend(loss_of(plain_model, step), plain, list(plain_model.parameters()))
    model.load_state_dict(plain_model.state_dict())
    adam = Adam(list(model.parameters()), 0.01)
    assert optimizer_state(adam) == {}
    load_optimizer_state(adam, optimizer_state(plain))
    for step in range(3, 6):
        descend(loss_of(plain_model, step), plain, list(plain_model.parameters()))
        descend(loss_of(model, step), adam, list(model.parameters()))
    assert float(optimizer_state(adam)["3"]["step"]) == 6.0
    for mine, theirs in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    twin = network()
    twin.load_state_dict(model.state_dict())
    again = Adam(list(twin.parameters()), 0.01)
    load_optimizer_state(again, optimizer_state(adam))
    descend(loss_of(twin, 6), again, list(twin.parameters()))  # and the state it was loaded from stays apart
    assert float(optimizer_state(adam)["0"]["step"]) == 6.0
    descend(loss_of(model, 6), adam, list(model.parameters()))
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "make",
    [lambda p: Adam(p, 0.1), lambda p: torch.optim.SGD(p, lr=0.1, fused=True)],
    ids=["adam", "any fused optimiser"],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_moves_nothing(make: Make, bad: float) -> None:
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = make([parameter])
    descend(parameter.square().sum(), optimizer, [parameter], 1.0)
    kept = parameter.detach().clone()
    state = {
        key: {k: v.clone() for k, v in s.items() if v is not None}
        for key, s in optimizer_state(optimizer).items()
    }
    norm = descend((parameter * torch.tensor([1.0, bad])).sum(), optimizer, [parameter], 1.0)
    assert not norm.isfinite()
    assert torch.equal(parameter, kept)
    for key, moments in state.items():
        assert all(
            torch.equal(value, optimizer_state(optimizer)[key][name]) for name, value in moments.items()
        )
    descend(parameter.square().sum(), optimizer, [parameter], 1.0)
    assert not torch.equal(parameter, kept)


@pytest.mark.parametrize(("max_norm", "expected"), [(1.0, [2.4, 3.2]), (None, [0.0, 0.0]), (9.0, [0.0, 0.0])])
def test_gradients_are_clipped_to_the_norm_on_request(max_norm: float | None, expected: list[float]) -> None:
    parameter = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([parameter], lr=1.0, fused=True)
    norm = descend(0.5 * parameter.square().sum(), optimizer, [parameter], max_norm)
    assert norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_parameter_that_the_loss_does_not_know_stays_and_others_in_the_graph_get_no_gradient() -> None:
    used, unused, other = (nn.Parameter(torch.ones(2)) for _ in range(3))
    adam = Adam([used, unused], 0.1)
    descend((used * other).sum(), adam, [used, unused])
    assert torch.equal(unused, torch.ones(2))
    assert used[0].item() == pytest.approx(0.9)
    assert other.grad is None


def test_gradients_in_another_memory_order_reach_their_own_weights() -> None:
    """Images in channels-last memory give such gradients; a fused kernel would take them as they lie."""
    generator = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.zeros(4, 3, 2, 2))
    slopes = torch.randn(4, 3, 2, 2, generator=generator)
    loss = (parameter.permute(0, 2, 3, 1) * slopes.permute(0, 2, 3, 1).contiguous()).sum()
    (gradient,) = torch.autograd.grad(loss, [parameter], retain_graph=True)
    assert gradient.stride() != parameter.stride()
    descend(loss, Adam([parameter], 0.1), [parameter])
    torch.testing.assert_close(parameter.detach(), -0.1 * slopes.sign(), atol=1e-5, rtol=0)
