"""Files that are on the disk when a function returns, and that are read as if anybody could have made them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO

from raceway.errors import CheckpointError


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a handle of a file, having seen that it is one: a link could lead anywhere, a pipe would be waited for."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return handle


def own_folder(path: Path) -> Path:
    """Return a folder that things are removed from, having seen that it is no link: they could be anybody's."""
    if path.is_symlink():
        raise CheckpointError(path, f"it is a link, to {os.readlink(path)}. Put the folder itself in its place.")
    return path


def read(path: Path, size: int | None = None) -> bytes:
    """Return what a file holds, having seen that it is one, and that it has so many bytes."""
    try:
        handle = open_own(path)
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read ({error.strerror})") from error
    try:
        about = os.fstat(handle)
        if size is not None and about.st_size != size:
            raise CheckpointError(path, f"it has {about.st_size:,} bytes, and {size:,} were written")
        with open(handle, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read ({error.strerror})") from error
    except MemoryError as error:
        raise CheckpointError(path, f"its {about.st_size:,} bytes do not fit into memory") from error
    finally:
        os.close(handle)


def put(path: Path, content: Any) -> None:
    """Write a file and bring it to the disk. What is there is removed first: it could be a link to somewhere else."""
    try:
        file = path.open("xb")
    except FileExistsError:
        path.unlink()
        file = path.open("xb")
    with file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        there = os.fstat(file.fileno()).st_size
    if there != len(content):  # a disk that lies about what it wrote is found out before anything older is removed
        raise OSError(errno.EIO, f"only {there:,} of {len(content):,} bytes were written", str(path))


def append(file: BinaryIO, content: bytes) -> None:
    """Add to a file that is not buffered: all of it, or nothing."""
    end = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
    except BaseException:  # half of it would spoil what comes after
        os.ftruncate(file.fileno(), end)
        raise


def sync(folder: Path) -> None:
    """Bring to the disk what a folder lists."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_file(path: Path) -> None:
    """Remove a file or a link, as far as that can be done. A folder stays."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove(path: Path) -> None:
    """Remove a file or a whole folder, as far as that can be done."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
