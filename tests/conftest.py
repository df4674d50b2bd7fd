"""A watch on every test: whatever it starts or opens must be gone when it ends."""

import gc
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

GENEROUS = 30.0
"""Seconds within which anything that should happen does, on however slow a machine."""


def eventually(check: Callable[[], object], timeout: float = GENEROUS) -> bool:
    """Wait for something outside this process's control, such as the kernel reaping, to come true."""
    until = time.monotonic() + timeout
    while not check():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def _processes() -> set[int]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "ray" not in " ".join(child.cmdline()).replace("raceway", ""):
                found.add(child.pid)  # a running Ray starts processes of its own at any time
        except psutil.NoSuchProcess:
            pass
    return found


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # the listing's own
    return {fd: name for fd, name in found.items() if "/mpl-data/fonts/" not in name}  # matplotlib keeps them open


def _files() -> set[str]:
    return {
        f"{folder}/{name}"
        for folder in (tempfile.gettempdir(), "/dev/shm")
        for name in os.listdir(folder)
        if "raceway" in name
    }


def _is_anothers(name: str) -> bool:
    """Whether a file belongs to a program that runs beside the tests: the name has its process id."""
    owner = re.search(r"raceway-(\d+)-", name)
    return owner is not None and os.path.exists(f"/proc/{owner.group(1)}") and int(owner.group(1)) != os.getpid()


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("ray", "Thread-ray"))}


def uses_ray(request: pytest.FixtureRequest) -> bool:
    return "ray_session" in request.fixturenames or "ray" in request.node.name


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor, piece of shared memory or temporary file behind."""
    with_ray = uses_ray(request)
    before = _processes(), _threads(), _descriptors(), _files()
    yield
    gc.collect()
    assert eventually(lambda: _processes() <= before[0], 10), f"processes left: {_processes() - before[0]}"
    # A driver that a test beside this one has killed leaves its folder until that test is over.
    left_files = lambda: {path for path in _files() - before[3] if not _is_anothers(path)}  # noqa: E731
    assert eventually(lambda: not left_files(), 4 * GENEROUS), f"files left: {left_files()}"
    if with_ray:
        return  # a running Ray opens descriptors and starts threads of its own at any time
    assert eventually(lambda: _threads() <= before[1], 10), f"threads left: {_threads() - before[1]}"
    left = {fd: name for fd, name in _descriptors().items() if fd not in before[2]}
    assert not left, f"descriptors left: {left}"


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One local Ray for all tests that need one."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()
