"""PPO's and A2C's losses against numbers worked out by hand, and PPO's gradient against the paper's form."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_training.functional.losses import a2c_loss, ppo_loss, standardized


def by_hand() -> dict[str, Tensor]:
    """Four samples with ratios 1.5, 0.5, 1.5 and 1.1, at clip 0.2: clipped, free, free and inside."""
    return {
        "logprobs": torch.tensor([1.5, 0.5, 1.5, 1.1]).log() - 0.7,
        "old_logprobs": torch.full((4,), -0.7),
        "advantages": torch.tensor([2.0, 2.0, -1.0, 1.0]),
        "returns": torch.tensor([1.0, 1.0, 0.0, 2.0]),
        "values": torch.tensor([0.0, 0.0, 1.0, 2.0]),
        "new_values": torch.tensor([0.5, -1.0, 0.1, 2.1]),
        "entropy": torch.tensor([0.1, 0.2, 0.3, 0.4]),
    }


def test_policy_loss_is_the_clipped_surrogate() -> None:
    # min(A*r, A*clip(r)): min(3, 2.4) = 2.4; min(1, 1.6) = 1; min(-1.5, -1.2) = -1.5; min(1.1, 1.1) = 1.1
    # mean = 3/4 = 0.75
    assert ppo_loss(by_hand(), 0.2, 0.0, 0.5)["policy_loss"].item() == pytest.approx(-0.75)


def test_value_loss_takes_the_worse_of_clipped_and_unclipped() -> None:
    # new values clipped to values +- 0.2: [0.2, -0.2, 0.8, 2.1]; squared errors
    # unclipped [0.25, 4, 0.01, 0.01], clipped [0.64, 1.44, 0.64, 0.01]: max [0.64, 4, 0.64, 0.01], sum 5.29
    assert ppo_loss(by_hand(), 0.2, 0.0, 0.5)["value_loss"].item() == pytest.approx(0.5 * 5.29 / 4)
    # without clipping the sum is 4.27
    unclipped = ppo_loss(by_hand(), 0.2, 0.0, 0.5, clip_value_loss=False)
    assert unclipped["value_loss"].item() == pytest.approx(0.5 * 4.27 / 4)


def test_loss_combines_its_parts_with_the_coefficients() -> None:
    out = ppo_loss(by_hand(), 0.2, 0.1, 0.5)
    assert out["entropy_loss"].item() == pytest.approx(0.25)
    # -0.75 - 0.1*0.25 + 0.5*0.66125
    assert out["loss"].item() == pytest.approx(-0.75 - 0.025 + 0.330625)


def test_diagnostics() -> None:
    out = ppo_loss(by_hand(), 0.2, 0.0, 0.5)
    # |r - 1| > 0.2 for 1.5, 0.5 and 1.5
    assert out["clip_fraction"].item() == pytest.approx(0.75)
    # mean of (r - 1) - log r
    expected = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5, 1.1)) / 4
    assert out["approx_kl"].item() == pytest.approx(expected, rel=1e-5)


def test_gradients_by_hand() -> None:
    minibatch = by_hand()
    learned = {name: minibatch[name].requires_grad_() for name in ("logprobs", "new_values", "entropy")}
    out = ppo_loss(minibatch, 0.2, 0.1, 0.5)
    assert not out["approx_kl"].requires_grad
    assert not out["clip_fraction"].requires_grad
    out["loss"].backward()
    # -A*r/4 where not clipped: [0, -1/4, 1.5/4, -1.1/4]
    assert minibatch["logprobs"].grad is not None
    torch.testing.assert_close(learned["logprobs"].grad, torch.tensor([0.0, -0.25, 0.375, -0.275]))
    # 0.5*(new - return)/4 where the unclipped error is the larger: [0, -2/8, 0, 0.1/8]
    torch.testing.assert_close(learned["new_values"].grad, torch.tensor([0.0, -0.25, 0.0, 0.0125]))
    torch.testing.assert_close(learned["entropy"].grad, torch.full((4,), -0.025))


def test_coefficients_may_be_tensors() -> None:
    numbers = ppo_loss(by_hand(), 0.2, 0.1, 0.5)
    tensors = ppo_loss(by_hand(), torch.tensor(0.2), torch.tensor(0.1), torch.tensor(0.5))
    for name, value in numbers.items():
        torch.testing.assert_close(tensors[name], value)


def test_no_entropy_bonus_leaves_entropy_out_of_the_graph() -> None:
    minibatch = by_hand()
    minibatch["logprobs"].requires_grad_()
    minibatch["entropy"].requires_grad_()
    ppo_loss(minibatch, 0.2, 0.0, 0.5)["loss"].backward()
    assert minibatch["entropy"].grad is None
    assert minibatch["logprobs"].grad is not None


def as_in_the_paper(minibatch: dict[str, Tensor], clip: float, ent: float, vf: float) -> Tensor:
    ratio = (minibatch["logprobs"] - minibatch["old_logprobs"]).exp()
    advantages = minibatch["advantages"]
    policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
    old, new, returns = minibatch["values"], minibatch["new_values"], minibatch["returns"]
    kept = old + (new - old).clamp(-clip, clip)
    value = 0.5 * torch.max((new - returns) ** 2, (kept - returns) ** 2).mean()
    return policy - ent * minibatch["entropy"].mean() + vf * value


@given(st.integers(0, 2**31), st.integers(1, 40), st.floats(0.05, 0.5), st.floats(0, 0.1), st.floats(0, 1))
def test_equals_the_loss_as_the_paper_writes_it(
    seed: int, size: int, clip: float, ent: float, vf: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    names = ("logprobs", "old_logprobs", "advantages", "returns", "values", "new_values", "entropy")
    ours = {name: torch.randn(size, generator=generator, dtype=torch.float64) * 0.5 for name in names}
    theirs = {name: tensor.clone() for name, tensor in ours.items()}
    learned = ("logprobs", "new_values")
    losses = (ppo_loss(ours, clip, ent, vf)["loss"], as_in_the_paper(theirs, clip, ent, vf))
    torch.testing.assert_close(*losses)

    for minibatch in (ours, theirs):
        for name in learned:
            minibatch[name].requires_grad_()
    ppo_loss(ours, clip, ent, vf)["loss"].backward()
    as_in_the_paper(theirs, clip, ent, vf).backward()
    for name in learned:
        torch.testing.assert_close(ours[name].grad, theirs[name].grad)


def test_a2c_loss_by_hand() -> None:
    minibatch = {
        "logprobs": torch.tensor([-1.0, -0.5]),
        "advantages": torch.tensor([2.0, -4.0]),
        "returns": torch.tensor([1.0, 3.0]),
        "new_values": torch.tensor([0.0, 1.0]),
        "entropy": torch.tensor([0.5, 0.7]),
    }
    out = a2c_loss(minibatch, 0.1, 0.5)
    assert out["policy_loss"].item() == pytest.approx(0.0)  # -(2·-1 + -4·-0.5) / 2
    assert out["value_loss"].item() == pytest.approx(1.25)  # ½ · (1 + 4) / 2
    assert out["entropy_loss"].item() == pytest.approx(0.6)
    assert out["loss"].item() == pytest.approx(0.5 * 1.25 - 0.1 * 0.6)


def test_standardized_by_hand() -> None:
    # mean 3, deviation √((4 + 0 + 4) / 2) = 2
    assert standardized(torch.tensor([1.0, 3.0, 5.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0])
