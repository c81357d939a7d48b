"""The observation normaliser against NumPy, and observations on their way to tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.policies.normalizer import ObsNormalizer, merge_moments
from rl_training.policies.obs import to_tensor


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 2**16))
def test_statistics_equal_numpy_over_all_batches(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(100.0, 0.1, (n, 3)).astype(np.float32) for n in sizes]
    normalizer = ObsNormalizer((3,))
    for batch in batches:
        normalizer.update(torch.from_numpy(batch))
    everything = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean.numpy(), everything.mean(0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.var.numpy(), everything.var(0), rtol=1e-6, atol=1e-12)
    assert normalizer.count.item() == sum(sizes)


def test_forward_standardises_and_clips() -> None:
    normalizer = ObsNormalizer((2,))
    normalizer.update(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))
    out = normalizer(torch.tensor([[1.0, 20.0], [2.0, 40.0], [1e6, -1e6]]))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0], [1.0, 2.0], [10.0, -10.0]]))


def test_before_any_update_it_only_clips() -> None:
    assert ObsNormalizer((2,))(torch.tensor([[0.5, -20.0]])).tolist() == [[0.5, -10.0]]


def test_time_and_env_axes_and_several_axes_of_observation_count_alike() -> None:
    obs = torch.randn(5, 4, 2, 3, generator=torch.Generator().manual_seed(0))
    normalizer = ObsNormalizer((2, 3))
    normalizer.update(obs)
    assert normalizer.count.item() == 20
    torch.testing.assert_close(normalizer.mean, obs.double().mean((0, 1)).flatten())
    flat = obs.flatten(0, 1)
    torch.testing.assert_close(normalizer(flat), (flat - flat.mean(0)) / flat.std(0, correction=0))


def test_dict_normalises_the_named_keys_alone() -> None:
    normalizer = ObsNormalizer({"b": (2,), "a": ()})
    obs = {
        "a": torch.tensor([0.0, 4.0]),
        "b": torch.tensor([[1.0, 5.0], [3.0, 9.0]]),
        "image": torch.full((2, 3), 200, dtype=torch.uint8),
        "action_mask": torch.ones(2, 2, dtype=torch.int8),
    }
    normalizer.update(obs)
    out = normalizer(obs)
    torch.testing.assert_close(out["a"], torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(out["b"], torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    assert out["image"] is obs["image"]
    assert out["action_mask"] is obs["action_mask"]
    assert torch.equal(obs["a"], torch.tensor([0.0, 4.0]))


def test_a_loaded_normaliser_normalises_the_same() -> None:
    trained, fresh = ObsNormalizer((4,)), ObsNormalizer((4,))
    obs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)) * 7 + 3
    trained.update(obs)
    fresh.load_state_dict(trained.state_dict())
    assert set(trained.state_dict()) == {"mean", "var", "count"}
    assert torch.equal(trained(obs), fresh(obs))
    assert not torch.equal(ObsNormalizer((4,))(obs), fresh(obs))


def test_updating_under_inference_mode_leaves_it_usable_in_training() -> None:
    normalizer = ObsNormalizer((2,))
    with torch.inference_mode():
        normalizer.update(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    weight = torch.ones(2, requires_grad=True)
    (normalizer(torch.tensor([[2.0, 5.0]])) * weight).sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([1.0, 1.0]))


def test_merge_moments_by_hand() -> None:
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    # {0, 2} has mean 1 and variance 1; with {7} the three have mean 3 and variance 26/3
    mean, var, count = merge_moments((one, one, two), (torch.tensor(7.0), torch.tensor(0.0), one))
    assert (mean.item(), count.item()) == (3.0, 3.0)
    assert var.item() == pytest.approx(26 / 3)


@pytest.mark.parametrize("offset", range(0, 64, 4))
def test_to_tensor_gives_the_same_bits_wherever_the_array_lies(offset: int) -> None:
    """Shared memory of async workers, say, begins anywhere, and a matrix product may round by that."""
    layer = torch.nn.Linear(4, 16)
    memory = np.zeros(2 * 4 * 4 + 128, dtype=np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    array = memory[begin : begin + 32].view(np.float32).reshape(2, 4)
    array[...] = np.random.default_rng(0).normal(size=(2, 4))
    tensor = to_tensor(array)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.data_ptr() % 64 == 0
    assert torch.equal(layer(tensor), layer(torch.tensor(array.tolist())))
    array[0, 0] = 5.0
    assert tensor[0, 0] != 5.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.uint8, torch.uint8),
        (np.int64, torch.int64),
        (np.int8, torch.int8),
        (np.uint16, torch.int32),
        (np.uint32, torch.int64),
        (np.bool_, torch.bool),
    ],
)
def test_to_tensor_dtypes(given: type, expected: torch.dtype) -> None:
    out = to_tensor({"x": np.ones((2,), dtype=given)})
    assert out["x"].dtype == expected
    assert out["x"].tolist() == [1, 1]


def test_to_tensor_copies_read_only_arrays() -> None:
    array = np.ones(3, dtype=np.float32)
    array.flags.writeable = False
    tensor = to_tensor(array)
    assert isinstance(tensor, torch.Tensor)
    tensor[0] = 2.0
    assert array[0] == 1.0
