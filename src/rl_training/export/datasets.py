"""Dataset files: named columns of equal length and one JSON text about them, as .npz or HDF5.

Columns come in pieces, so that a dataset larger than memory can be written. The same columns give the same
.npz to the last byte.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ExportError, MissingExtraError, UnknownNameError
from rl_training.experiment.files import explained, fsync_file, make_dirs, replacing
from rl_training.types import Array

METADATA = "metadata"
ENDINGS = (".npz", ".hdf5", ".h5")


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a dataset: the shape and dtype of an entry, and all entries, piece by piece."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[Array]]


def require_ending(path: Path) -> None:
    """Refuse a file of a kind that cannot be written, before anything is computed for it."""
    if path.suffix not in ENDINGS:
        raise UnknownNameError("ending of a dataset", path.suffix or path.name, ENDINGS)
    if path.suffix != ".npz":
        _h5py()


def write_dataset(path: Path, length: int, columns: Mapping[str, Column], metadata: str) -> None:
    """Write all columns, aside, and then put the file in its place."""
    try:
        make_dirs(path.absolute().parent)
        with replacing(path) as aside:
            (_write_npz if path.suffix == ".npz" else _write_hdf5)(aside, length, columns, metadata)
            fsync_file(aside)
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {explained(error)}") from None


def _write_npz(path: Path, length: int, columns: Mapping[str, Column], metadata: str) -> None:
    text = np.array(metadata)
    about = Column((), text.dtype, lambda: iter([text]))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in (*columns.items(), (METADATA, about)):
            info = zipfile.ZipInfo(f"{name}.npy")  # its date is that of no day: the same data, the same file
            info.compress_type = zipfile.ZIP_DEFLATED
            shape = () if column is about else (length, *column.shape)
            header = {
                "descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False, "shape": shape
            }  # fmt: skip
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for piece in column.pieces():
                    member.write(np.ascontiguousarray(piece, column.dtype).tobytes())


def _write_hdf5(path: Path, length: int, columns: Mapping[str, Column], metadata: str) -> None:
    with _h5py().File(path, "w") as file:
        file.attrs[METADATA] = metadata
        for name, column in columns.items():
            target = file.create_dataset(
                name, (length, *column.shape), column.dtype, chunks=True, compression="gzip", shuffle=True
            )
            begin = 0
            for piece in column.pieces():
                target[begin : begin + len(piece)] = piece
                begin += len(piece)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("writing HDF5", "hdf5") from None
    return h5py
