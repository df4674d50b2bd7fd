"""Files that are on the disk when a function returns, and that are read as if anybody could have made them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from raceway.errors import CheckpointError


def read(path: Path, size: int | None = None) -> bytes:
    """Return what a file holds, having seen that it is one, and that it has so many bytes."""
    try:
        # A link could lead anywhere, and a pipe would be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise CheckpointError(path, f"it cannot be read ({why})") from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise CheckpointError(path, "it cannot be read (it is no file)")
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
    """Write a file and bring it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        there = os.fstat(file.fileno()).st_size
    if there != len(content):  # a disk that lies about what it wrote is found out before anything older is removed
        raise OSError(errno.EIO, f"only {there:,} of {len(content):,} bytes were written", str(path))


def sync(folder: Path) -> None:
    """Bring to the disk what a folder lists."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a whole folder, as far as that can be done."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
