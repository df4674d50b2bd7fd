"""Columns in a safetensors file, mapped into memory: only rows that are used are loaded, and processes share them."""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from safetensors.numpy import save

from raceway.checkpoints.files import open_regular_file, write_file
from raceway.errors import ConfigError, DatasetError
from raceway.rl import Batch

_DTYPES = {
    "?": "BOOL", "b": "I8", "B": "U8", "h": "I16", "H": "U16", "i": "I32", "I": "U32", "l": "I64", "L": "U64",
    "e": "F16", "f": "F32", "d": "F64",
}  # fmt: skip
"""Names of dtypes in a safetensors file."""
_SIZE_BYTES = 8
"""Bytes in front of the header, which are its size."""
_MAX_HEADER = 1 << 24


def write_columns(path: Path, batch: Batch) -> dict[str, Any]:
    """Write the columns of a batch to a new file, and return its `size` and `sha256`."""
    content = save({name: np.ascontiguousarray(column) for name, column in _named(batch)})
    write_file(path, content)
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def map_columns(path: Path, size: int, sha256: str, like: Batch) -> Batch:
    """Return the columns of a file as read-only arrays, after checking its size and hash.

    Args:
        path: the file.
        size: its size in bytes.
        sha256: its hash.
        like: a batch with the names, shapes and dtypes of the columns, without rows. No other columns are read.
    """
    try:
        with open(open_regular_file(path), "rb") as file:
            if (actual := os.fstat(file.fileno()).st_size) != size:
                raise DatasetError(path, f"it has {actual:,} bytes, and {size:,} were written")
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise DatasetError(path, "it is corrupt: its hash is not the one in dataset.json")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header, begin = _read_header(content)
        return _rebuild(like, "", lambda name, column: _array(content, header[name], begin, column))
    except OSError as error:
        raise DatasetError(path, f"it cannot be read ({error.strerror})") from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DatasetError(path, f"it is corrupt ({error!r})") from error


def check_storable(batch: Batch) -> None:
    """Raise ConfigError if a column has a dtype that a file cannot hold."""
    for name, column in _named(batch):
        if column.dtype.char not in _DTYPES or not column.dtype.isnative:
            raise ConfigError(f"{name} has dtype {column.dtype}, which a dataset cannot hold")


def _read_header(content: mmap.mmap) -> tuple[Any, int]:
    """Return the description of all columns by name, and where their bytes begin."""
    size = int.from_bytes(content[:_SIZE_BYTES], "little")
    if not 0 < size <= min(_MAX_HEADER, len(content) - _SIZE_BYTES):
        raise ValueError(f"a header of {size:,} bytes")
    return json.loads(content[_SIZE_BYTES : _SIZE_BYTES + size]), _SIZE_BYTES + size


def _array(content: mmap.mmap, entry: Mapping[str, Any], begin: int, like: np.ndarray) -> np.ndarray:
    """Return a column, after checking that its description fits the file and the expected dtype and shape."""
    shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
    if entry["dtype"] != _DTYPES[like.dtype.char] or shape[1:] != like.shape[1:]:
        raise ValueError(f"{entry['dtype']} of shape {shape}; expected {like.dtype} of shape (N, *{like.shape[1:]})")
    if not (0 <= start <= end <= len(content) - begin) or end - start != math.prod(shape) * like.dtype.itemsize:
        raise ValueError(f"shape {shape} does not fit the bytes from {start} to {end}")
    return np.frombuffer(content, like.dtype, math.prod(shape), begin + start).reshape(shape)


def _named(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of a batch by name: `obs`, or `obs/key` of a Dict space."""
    if not isinstance(tree, Mapping):
        yield name, tree
        return
    for key, part in tree.items():
        yield from _named(part, _join(name, key))


def _rebuild(like: Any, name: str, read: Any) -> Any:
    """Return a tree of the form of `like`, with what `read` returns for the name and array of each column."""
    if not isinstance(like, Mapping):
        return read(name, like)
    return {key: _rebuild(part, _join(name, key), read) for key, part in like.items()}


def _join(name: str, key: str) -> str:
    return f"{name}/{quote(key, safe='')}" if name else quote(key, safe="")
