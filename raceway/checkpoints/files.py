"""Durable file I/O: a written file is on the disk when the function returns, and no file that is read is trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO

from raceway.errors import CheckpointError


def open_regular_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file and return its descriptor. Links and pipes are refused: a link can lead anywhere, a pipe blocks."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def refuse_symlink(path: Path) -> Path:
    """Return a directory whose files may be removed. A symbolic link is refused: it could lead anywhere."""
    if path.is_symlink():
        raise CheckpointError(
            path, f"it is a symbolic link to {os.readlink(path)}. Put the directory itself in its place."
        )
    return path


def read_file(path: Path, size: int | None = None) -> bytes:
    """Return the contents of a regular file, after checking that its size is the expected one."""
    try:
        descriptor = open_regular_file(path)
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if size is not None and status.st_size != size:
            raise CheckpointError(path, f"it has {status.st_size:,} bytes, and {size:,} were written")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read ({error.strerror})") from error
    except MemoryError as error:
        raise CheckpointError(path, f"its {status.st_size:,} bytes do not fit into memory") from error
    finally:
        os.close(descriptor)


def write_file(path: Path, content: Any) -> None:
    """Write a file and flush it to the disk. An existing file is removed first: it could be a link to another file."""
    try:
        file = path.open("xb")
    except FileExistsError:
        path.unlink()
        file = path.open("xb")
    with file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        written = os.fstat(file.fileno()).st_size
    if written != len(content):  # catches a disk that reports writes it did not do, before anything older is removed
        raise OSError(errno.EIO, f"only {written:,} of {len(content):,} bytes were written", str(path))


def append(file: BinaryIO, content: bytes) -> None:
    """Append to an unbuffered file: everything or nothing."""
    end = file.seek(0, os.SEEK_END)
    try:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[file.write(remaining) :]
    except BaseException:  # a partial record would corrupt the ones that follow
        os.ftruncate(file.fileno(), end)
        raise


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> None:
    """Remove a file or link, ignoring errors. A directory stays."""
    with contextlib.suppress(OSError):
        path.unlink()


def remove_tree(path: Path) -> None:
    """Remove a file or a whole directory, ignoring errors."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
