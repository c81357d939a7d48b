"""Matrix products of compiled updates on a CPU, by whichever library makes use of the whole core.

torch leaves products of float32 to MKL, which goes by the maker of a processor: of those that are not Intel's
it uses eight lanes, also where there are sixteen. oneDNN, which torch brings along for convolutions, goes by
what a processor can do, and takes half the time on a Zen 5.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from rl_training.runtime.device import find_compiler, processor

Maker = Literal["mkl", "onednn"]

ENOUGH = 2**20
"""Multiplications from which on it pays: a call of oneDNN takes ten microseconds, whatever it computes."""
NARROW = range(3, 17)
"""Results of so many columns MKL is slow to compute: a quarter of `ENOUGH` will do. Fewer it does well."""

SOURCE = Path(__file__).with_suffix(".cpp")
"""The operator, which is to be compiled: what it calls is not to be had from Python."""

torch.library.define("axiomrl::product", "(Tensor left, Tensor right) -> Tensor")


@torch.library.register_fake("axiomrl::product")  # type: ignore[untyped-decorator]
def _outline(left: Tensor, right: Tensor) -> Tensor:
    """The result's shape, for whoever compiles."""
    return left.new_empty(*left.shape[:-1], right.shape[-1])


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` by oneDNN, of two matrices or two stacks of them, in float32; it has to be `loaded`."""
    found: Tensor = torch.ops.axiomrl.product(left, right)
    return found


def pays(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN is the quicker one for a product of matrices, or of two stacks of them."""
    columns = right.shape[-1]
    return (
        left.device.type == "cpu"
        and left.dtype is right.dtype is torch.float32
        and columns >= NARROW.start
        and left.numel() * columns >= (ENOUGH // 4 if columns in NARROW else ENOUGH)
        and quicker() == "onednn"
    )


@cache
def quicker() -> Maker:
    """Whose large products are the quicker ones on this processor, and to be had."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    known = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    fast = wide and known and processor().get("vendor_id") != "GenuineIntel"
    return "onednn" if fast and loaded() else "mkl"


@cache
def loaded() -> bool:
    """Make the operator known to torch; where that cannot be done, say why."""
    try:
        try:
            torch.ops.load_library(_compiled())  # type: ignore[no-untyped-call]
        except OSError:  # damaged, by a power failure perhaps
            torch.ops.load_library(_compiled(anew=True))  # type: ignore[no-untyped-call]
        # Another torch may refuse what it is not asked for. Whoever traces meanwhile does not want it.
        with disable_proxy_modes_tracing():
            product(torch.ones(2, 1, 1), torch.ones(2, 1, 1))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        why = error.stderr if isinstance(error, subprocess.CalledProcessError) else error.__cause__ or error
        problem = " ".join(str(why).split())[:300]
        warnings.warn(f"matrix products are left to MKL, oneDNN's cannot be had: {problem}", stacklevel=2)
        return False
    return True


def _compiled(*, anew: bool = False) -> Path:
    """The operator as a library, beside what torch's compiler keeps on disk; compiled if it is not there."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = find_compiler()
    if compiler is None:
        raise OSError("no C++ compiler was found")
    home = Path(torch.__file__).parent
    command = [compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-Wl,-z,now"]
    command += [f"-I{home / 'include'}", str(SOURCE), f"-L{home / 'lib'}", "-ltorch_cpu", "-lc10"]
    about = "\n".join([torch.__version__, *command, SOURCE.read_text(encoding="utf-8")])
    library = Path(cache_dir()) / f"axiomrl-{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    if anew or not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True)
            os.replace(made, library)  # whole, whoever else is at it
    return library
