"""Large arrays as blocks of rows, each a file named by the hash of its contents.

A block that has not changed since the last checkpoint exists already, and is not written again.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from raceway.checkpoints.encoding import Array, hash_array
from raceway.checkpoints.files import read_file, refuse_symlink, remove_file, remove_tree, write_file
from raceway.errors import CheckpointError

BLOCK_BYTES = 512 << 10
"""Approximate size of a block. Very large arrays get larger blocks, which limits their number."""
MAX_BLOCKS = 256
"""Approximate maximum number of blocks of an array."""

# Only what `_npy_file` writes is accepted: numpy's own reader evaluates the header, and allocates whatever it claims.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufcmM]\d{1,2}(?:\[\w+\])?)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)


def is_large(array: Array) -> bool:
    """Whether an array is large enough to be stored as blocks."""
    return array.nbytes > 4 * BLOCK_BYTES


def is_sha256(name: object) -> bool:
    """Whether this is a SHA-256 in hexadecimal. No file with any other name is ever read as a block."""
    return isinstance(name, str) and re.fullmatch("[0-9a-f]{64}", name) is not None


class BlockStore:
    """The blocks in a directory, which all checkpoints of a run share."""

    def __init__(self, directory: Path) -> None:
        self.directory = refuse_symlink(directory)
        self._intact: set[str] = set()  # verified by this process
        self._new: list[str] = []

    def put(self, array: Array) -> list[str]:
        """Write the blocks of an array that do not exist yet, and return the names of all its blocks."""
        return [self._put_block(block) for block in _split_rows(np.asarray(array, order="C"))]

    def _put_block(self, block: Array) -> str:
        name = hash_array(block)
        if not self._is_intact(name):
            path, temporary = self._path(name), self._path(name).with_suffix(".new")
            write_file(temporary, _npy_file(block))
            if not os.path.lexists(path):
                self._new.append(name)
            elif not path.is_file():
                remove_tree(path)
            os.rename(temporary, path)
            self._intact.add(name)
        return name

    def _is_intact(self, name: str) -> bool:
        """Whether a block exists. One from an earlier process is verified first: checkpoints to come will share it."""
        if name in self._intact:
            return self._path(name).is_file()
        try:
            self._get_block(name)
        except CheckpointError:
            return False
        self._intact.add(name)
        return True

    def get(self, names: Sequence[str]) -> Array:
        """Return the array made of these blocks, writable."""
        blocks = [self._get_block(name) for name in names]
        if len({(block.dtype, block.shape[1:]) for block in blocks}) != 1 or (len(blocks) > 1 and not blocks[0].ndim):
            raise CheckpointError(self._path(names[0]), "it and the other blocks of its array do not fit together")
        return np.concatenate(blocks, dtype=blocks[0].dtype) if len(blocks) > 1 else blocks[0].copy()

    def _get_block(self, name: str) -> Array:
        path = self._path(name)
        content = read_file(path)
        header = _HEADER.match(content)
        if header is None:
            raise CheckpointError(path, "it is corrupt: it does not begin with the header of a block")
        try:
            dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
            if math.prod(shape) * dtype.itemsize != len(content) - header.end():
                raise CheckpointError(path, f"it is corrupt: its size is not that of shape {shape} and dtype {dtype}")
            array = np.frombuffer(content, dtype, offset=header.end()).reshape(shape)
        except (TypeError, ValueError) as error:
            raise CheckpointError(path, f"it is corrupt ({error})") from error
        if hash_array(array) != name:
            raise CheckpointError(path, "it is corrupt: its hash is not its name")
        return array

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.npy"

    def begin_save(self) -> None:
        """Create the directory, remove the partial files of a killed process, and start counting new blocks."""
        self.directory.mkdir(exist_ok=True)
        self._new = []
        for path in self.directory.glob("*.new"):
            remove_file(path)

    def undo_save(self, referenced: Collection[str]) -> None:
        """Remove the blocks written since `begin_save` that no checkpoint refers to, ignoring errors."""
        for name in self._new:
            if name not in referenced:
                self._intact.discard(name)
                remove_file(self._path(name))
        for path in self.directory.glob("*.new"):
            remove_file(path)

    def remove_unreferenced(self, referenced: Collection[str]) -> None:
        """Remove the blocks that no checkpoint refers to, ignoring errors. Files that are not blocks stay."""
        for path in self.directory.iterdir():
            if path.suffix == ".npy" and is_sha256(path.stem) and path.stem not in referenced:
                self._intact.discard(path.stem)
                remove_file(path)
            elif path.suffix == ".new":
                remove_file(path)


def _split_rows(array: Array) -> Iterator[Array]:
    """Yield the blocks of rows of an array."""
    if array.size == 0 or array.ndim == 0:
        yield array
        return
    size = BLOCK_BYTES
    while array.nbytes > MAX_BLOCKS * size:
        size *= 2  # doubled, so that a growing array is rarely cut at new places
    rows_per_block = max(size // array[:1].nbytes, 1)
    for start in range(0, len(array), rows_per_block):
        yield array[start : start + rows_per_block]


def _npy_file(block: Array) -> memoryview:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, block, version=(1, 0), allow_pickle=False)
    return buffer.getbuffer()
