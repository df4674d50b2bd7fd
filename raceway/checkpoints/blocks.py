"""Long arrays as blocks of rows, each a file that is named by what it holds.

What has not changed since the last checkpoint is there already, and is not written again.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from raceway.checkpoints.encoding import Array, hash_of
from raceway.checkpoints.files import own_folder, put, read, remove, remove_file
from raceway.errors import CheckpointError

BLOCK = 512 << 10
"""Bytes of a block, about; of a very long array they are as much longer as keeps their number down."""
MOST = 256
"""Blocks of an array, about."""

# Only what `_file` writes is read: numpy's own reader evaluates the header, and allocates whatever that claims.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufcmM]\d{1,2}(?:\[\w+\])?)', 'fortran_order': False, "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)


def is_long(array: Array) -> bool:
    """Whether an array is worth blocks of its own."""
    return array.nbytes > 4 * BLOCK


def is_name(name: object) -> bool:
    """Whether this can be the name of a block: no other file is ever read for one."""
    return isinstance(name, str) and re.fullmatch("[0-9a-f]{64}", name) is not None


class Blocks:
    """The blocks of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = own_folder(folder)
        self._sound: set[str] = set()  # seen to be whole, by this process
        self._new: list[str] = []

    def put(self, array: Array) -> list[str]:
        """Write what is not there of an array, and return the names of its blocks."""
        return [self._put(part) for part in _rows(np.asarray(array, order="C"))]

    def _put(self, part: Array) -> str:
        name = hash_of(part)
        if not self._is_sound(name):
            path, aside = self._path(name), self._path(name).with_suffix(".new")
            put(aside, _file(part))
            if not os.path.lexists(path):
                self._new.append(name)
            elif not path.is_file():
                remove(path)
            os.rename(aside, path)
            self._sound.add(name)
        return name

    def _is_sound(self, name: str) -> bool:
        """Whether a block is there. One from before this process is read first: it would spoil all that share it."""
        if name in self._sound:
            return self._path(name).is_file()
        try:
            self._get(name)
        except CheckpointError:
            return False
        self._sound.add(name)
        return True

    def get(self, names: Sequence[str]) -> Array:
        """Return the array of some blocks, writable."""
        parts = [self._get(name) for name in names]
        if len({(part.dtype, part.shape[1:]) for part in parts}) != 1 or (len(parts) > 1 and not parts[0].ndim):
            raise CheckpointError(self._path(names[0]), "it and the other blocks of its array do not fit together")
        return np.concatenate(parts, dtype=parts[0].dtype) if len(parts) > 1 else parts[0].copy()

    def _get(self, name: str) -> Array:
        path = self._path(name)
        content = read(path)
        header = _HEADER.match(content)
        if header is None:
            raise CheckpointError(path, "it is corrupt: it does not begin as a block does")
        try:
            dtype, shape = np.dtype(header[1].decode()), tuple(map(int, re.findall(rb"\d+", header[2])))
            if math.prod(shape) * dtype.itemsize != len(content) - header.end():
                raise CheckpointError(path, f"it is corrupt: it does not hold {shape} of {dtype}")
            array = np.frombuffer(content, dtype, offset=header.end()).reshape(shape)
        except (TypeError, ValueError) as error:
            raise CheckpointError(path, f"it is corrupt ({error})") from error
        if hash_of(array) != name:
            raise CheckpointError(path, "it is corrupt: its hash is not its name")
        return array

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def begin(self) -> None:
        """Make the folder, without what a process that was killed has left half done. What is new counts from here."""
        self.folder.mkdir(exist_ok=True)
        self._new = []
        for path in self.folder.glob("*.new"):
            remove_file(path)

    def undo(self, needed: Collection[str]) -> None:
        """Remove what is new and not needed, as far as that can be done."""
        for name in self._new:
            if name not in needed:
                self._sound.discard(name)
                remove_file(self._path(name))
        for path in self.folder.glob("*.new"):
            remove_file(path)

    def sweep(self, needed: Collection[str]) -> None:
        """Remove blocks that are not needed, as far as that can be done. What is no block is not ours."""
        for path in self.folder.iterdir():
            if path.suffix == ".npy" and is_name(path.stem) and path.stem not in needed:
                self._sound.discard(path.stem)
                remove_file(path)
            elif path.suffix == ".new":
                remove_file(path)


def _rows(array: Array) -> Iterator[Array]:
    """Cut an array into blocks of rows."""
    if array.size == 0 or array.ndim == 0:
        yield array
        return
    size = BLOCK
    while array.nbytes > MOST * size:
        size *= 2  # in steps, so that an array that grows is seldom cut anew
    each = max(size // array[:1].nbytes, 1)
    for begin in range(0, len(array), each):
        yield array[begin : begin + each]


def _file(part: Array) -> memoryview:
    made = io.BytesIO()
    np.lib.format.write_array(made, part, version=(1, 0), allow_pickle=False)
    return made.getbuffer()
