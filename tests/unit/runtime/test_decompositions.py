"""What stands in for operations in compiled updates gives the same numbers."""

from __future__ import annotations

import math

import pytest
import torch

from rl_training.runtime.decompositions import DECOMPOSED

aten = torch.ops.aten
tanh, baddbmm, adam = (
    DECOMPOSED[f] for f in (aten.tanh.default, aten.baddbmm.default, aten._fused_adam_.default)
)


def test_tanh_is_off_by_a_few_units_in_the_last_place() -> None:
    sizes = torch.cat([torch.linspace(0, 12, 1_000_001), torch.logspace(-37, 1, 100_001)])
    exact = sizes.double().tanh()
    unit = torch.nextafter(exact.float(), torch.tensor(2.0)).double() - exact.float().double()
    assert ((tanh(sizes).double() - exact).abs() / unit).max() < 7.0
    torch.testing.assert_close(tanh(-sizes), -tanh(sizes), rtol=0.0, atol=0.0)


def test_tanh_keeps_its_range_and_what_is_no_number() -> None:
    ends = tanh(torch.tensor([-math.inf, -50.0, 0.0, 50.0, math.inf, math.nan]))
    assert ends[:5].tolist() == pytest.approx([-1.0, -1.0, 0.0, 1.0, 1.0], abs=1e-7)
    assert ends.abs().nan_to_num().max() <= 1.0
    assert ends[5].isnan()
    assert tanh(torch.zeros(2, dtype=torch.float64)) is NotImplemented


def test_biases_are_added_to_products() -> None:
    bias, left, right = torch.randn(2, 1, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    expected = torch.baddbmm(bias.double(), left.double(), right.double(), beta=0.5, alpha=2.0)
    torch.testing.assert_close(baddbmm(bias, left, right, beta=0.5, alpha=2.0), expected.float())


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.95)])
@pytest.mark.parametrize("step", [1.0, 100_000.0])
def test_adam_takes_the_step_of_torchs_own(betas: tuple[float, float], step: float) -> None:
    tensors = [torch.randn(1000), torch.randn(1000), torch.randn(1000), torch.rand(1000)]
    given = {"lr": 1e-3, "beta1": betas[0], "beta2": betas[1], "eps": 1e-8}
    rest = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
    ours, theirs = ([[t.clone()] for t in tensors] for _ in range(2))
    count = [torch.tensor(step)]
    adam(*ours, [], count, **given, **rest, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0))
    torch._fused_adam_(
        *theirs, [], count, **given, **rest, grad_scale=torch.tensor(2.0), found_inf=torch.tensor(0.0)
    )
    for i in (0, 2, 3):  # weights and both moments
        torch.testing.assert_close(ours[i], theirs[i])
