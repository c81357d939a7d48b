"""Activations: the quick ways give the numbers, gradients and traces of the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.policies.activations import tanh

MANY = 40_000
"""Enough that NumPy computes them."""


def spread(count: int = MANY) -> torch.Tensor:
    return torch.cat([torch.linspace(-12, 12, count), torch.linspace(-1e-3, 1e-3, 101), torch.zeros(1)])


@pytest.mark.parametrize("count", [10, MANY])
def test_tanh_is_the_nearest_float_or_its_neighbour(count: int) -> None:
    x = spread(count)
    exact = torch.tanh(x.double())
    unit = torch.finfo(torch.float32).eps * exact.abs().clamp_min(1e-38)
    assert float(((tanh(x).double() - exact).abs() / unit).max()) <= 1.0


def test_tanh_of_what_is_no_number() -> None:
    x = torch.zeros(MANY)
    x[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    y = tanh(x)
    assert y[:2].tolist() == [1.0, -1.0]
    assert y[2].isnan()
    assert y[3:].eq(0).all()


def test_gradients_and_their_gradients_are_those_of_torch() -> None:
    x = spread().requires_grad_()
    assert type(tanh(x).grad_fn).__name__ == "_TanhBackward"  # or this would compare torch with itself
    weights = torch.linspace(-1, 1, len(x))
    results = []
    for function in (tanh, torch.tanh):
        (first,) = torch.autograd.grad((function(x) * weights).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * weights).sum(), x)
        results.append((first, second))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("count", [10, 5_000, MANY])
def test_a_gradient_to_come_changes_no_bit(count: int) -> None:
    x = spread(count)
    assert torch.equal(tanh(x), tanh(x.clone().requires_grad_()).detach())


def test_the_memory_of_the_result_is_aligned_and_its_own() -> None:
    x = spread()
    before = x.clone()
    assert tanh(x).data_ptr() % 64 == 0
    assert torch.equal(x, before)


def test_a_trace_of_it_holds_the_operation_and_not_its_result() -> None:
    graph = make_fx(tanh)(torch.zeros(MANY))
    x = spread(MANY)[:MANY]
    torch.testing.assert_close(graph(x), torch.tanh(x))


def test_an_exported_program_takes_batches_of_any_size() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tanh(x)

    batch = {"x": {0: torch.export.Dim("batch", min=1, max=10**6)}}
    program = torch.export.export(Layer(), (torch.zeros(64, 64),), dynamic_shapes=batch)
    for rows in (1, 700):
        x = spread()[: rows * 50].view(rows, 50)
        x = torch.nn.functional.pad(x, (0, 14))
        torch.testing.assert_close(program.module()(x), torch.tanh(x))
