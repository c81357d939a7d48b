"""Matrix products of compiled updates on a CPU, by whichever library makes use of the whole core.

torch leaves products of float32 to MKL, which goes by the maker of a processor: of those that are not Intel's
it uses eight lanes, also where there are sixteen. oneDNN, which torch brings along for convolutions, goes by
what a processor can do, and takes half the time on a Zen 5.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.runtime.device import processor

Maker = Literal["mkl", "onednn"]

ENOUGH = 2**20
"""Multiplications from which on it pays: a call of oneDNN takes ten microseconds, whatever it computes."""
NARROW = range(3, 17)
"""Results of so many columns MKL is slow to compute: a quarter of `ENOUGH` will do. Fewer it does well."""

torch.library.define("axiomrl::product", "(Tensor left, Tensor turned) -> Tensor")


@torch.library.impl("axiomrl::product", "CPU")
def _product(left: Tensor, turned: Tensor) -> Tensor:
    found: Tensor = _linear()(left, turned, None, "none", [], "")
    return found


@torch.library.register_fake("axiomrl::product")  # type: ignore[untyped-decorator]
def _outline(left: Tensor, turned: Tensor) -> Tensor:
    """The result's shape, for whoever compiles."""
    return left.new_empty(left.shape[0], turned.shape[0])


@cache
def _linear() -> Any:
    """oneDNN's layer, which takes weights as `[out, in]`, with any strides."""
    return torch.ops.mkldnn._linear_pointwise.default


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` by oneDNN, of two matrices in float32. A compiler fits the copy, if there is one, in."""
    found: Tensor = torch.ops.axiomrl.product(left.contiguous(), right.t())
    return found


def pays(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN is the quicker one for a product of matrices, or for each of a stack of them."""
    columns = right.shape[-1]
    return (
        quicker() == "onednn"
        and left.device.type == "cpu"
        and left.dtype is right.dtype is torch.float32
        and columns >= NARROW.start
        and left.shape[-2] * left.shape[-1] * columns >= (ENOUGH // 4 if columns in NARROW else ENOUGH)
    )


@cache
def quicker() -> Maker:
    """Whose large products are the quicker ones on this processor."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    known = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return "onednn" if wide and known and processor().get("vendor_id") != "GenuineIntel" else "mkl"
