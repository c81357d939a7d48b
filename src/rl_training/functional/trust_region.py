"""What a trust-region step is made of: products with a curvature, a linear solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl_training.functional.flat import flat


def hessian_vector_product(value: Tensor, parameters: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """v ↦ H·v, H the Hessian of `value` with respect to `parameters`, by differentiating twice."""
    gradient = flat(torch.autograd.grad(value, parameters, create_graph=True))

    def product(vector: Tensor) -> Tensor:
        # Where the gradient does not depend on a parameter, its row of H is zero.
        rows = torch.autograd.grad(
            gradient @ vector, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return flat(rows)

    return product


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], target: Tensor, max_steps: int, tolerance: float = 1e-10
) -> Tensor:
    """x with H·x ≈ `target` for a positive definite H known by its products; reads nothing back.

    Once the squared residual is below `tolerance`, further steps change nothing.
    """
    solution = torch.zeros_like(target)
    residual, search = target.clone(), target.clone()
    error = residual @ residual
    for _ in range(max_steps):
        curved = product(search)
        ongoing = error > tolerance
        length = torch.where(ongoing, error / (search @ curved), 0.0)
        solution = solution + length * search
        residual = residual - length * curved
        new_error = residual @ residual
        search = torch.where(ongoing, residual + (new_error / error) * search, search)
        error = torch.where(ongoing, new_error, error)
    return solution
