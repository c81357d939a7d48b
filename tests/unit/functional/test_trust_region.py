"""The linear algebra of a trust-region step, against dense matrices."""

from __future__ import annotations

import torch

from rl_training.functional.flat import assign_flat, flat
from rl_training.functional.trust_region import conjugate_gradient, hessian_vector_product


def test_flat_and_back() -> None:
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.tensor([8.0, 9.0])]
    row = flat(tensors)
    assert row.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    addresses = [tensor.data_ptr() for tensor in tensors]
    assign_flat(tensors, -row)
    assert tensors[0].tolist() == [[0, -1, -2], [-3, -4, -5]]
    assert tensors[2].tolist() == [-8, -9]
    assert addresses == [tensor.data_ptr() for tensor in tensors]  # a graph may hold on to them


def test_hessian_vector_product_of_a_known_function() -> None:
    x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    unused = torch.tensor(1.0, requires_grad=True)
    value = x[0] ** 3 * y + x[1] * y**2 + unused
    # rows of H for (x0, x1, y): [6 x0 y, 0, 3 x0²], [0, 0, 2 y], [3 x0², 2 y, 2 x1]
    product = hessian_vector_product(value, [x, y, unused])
    assert product(torch.tensor([1.0, 0.0, 0.0, 0.0])).tolist() == [18, 0, 3, 0]
    assert product(torch.tensor([1.0, 1.0, 2.0, 5.0])).tolist() == [24, 12, 17, 0]


def test_conjugate_gradient_solves_a_positive_definite_system() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(8, dtype=torch.float64)
    target = torch.randn(8, generator=generator, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, target)
    solved = conjugate_gradient(lambda v: matrix @ v, target, max_steps=8, tolerance=0.0)
    torch.testing.assert_close(solved, expected)
    # More steps than the system has dimensions do no harm once it is solved.
    torch.testing.assert_close(conjugate_gradient(lambda v: matrix @ v, target, max_steps=40), expected)


def test_conjugate_gradient_of_nothing_is_nothing() -> None:
    assert conjugate_gradient(lambda v: v, torch.zeros(3), max_steps=5).tolist() == [0, 0, 0]
