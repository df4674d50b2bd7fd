"""A leak check for every test, and fixtures shared by all packages."""

import gc
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

# Programs that tests start would otherwise compile raceway again, each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # for tests that import ONNX Runtime before Raceway does

GENEROUS = 30.0
"""A timeout in seconds that is long enough on any machine."""


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which runs after every test: it took 0.1 s each time."""
    gc.collect()
    gc.freeze()


def eventually(check: Callable[[], object], timeout: float = GENEROUS) -> bool:
    """Wait until a condition outside this process's control is true, and return whether it is."""
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _processes() -> set[int]:
    pids = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and "ray" not in " ".join(child.cmdline()).replace("raceway", ""):
                pids.add(child.pid)  # a running Ray starts processes at any time
        except psutil.NoSuchProcess:
            pass
    return pids


def _descriptors() -> dict[str, str]:
    names = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            names[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass  # the descriptor of the listing itself
    return {fd: name for fd, name in names.items() if "/mpl-data/fonts/" not in name}  # matplotlib keeps fonts open


def _files() -> set[str]:
    return {
        f"{directory}/{name}"
        for directory in (tempfile.gettempdir(), "/dev/shm")
        for name in os.listdir(directory)
        if "raceway" in name
    }


def _is_of_another_process(name: str) -> bool:
    """Whether a file belongs to another running program: its name contains the process id."""
    owner = re.search(r"raceway-(\d+)-", name)
    return owner is not None and os.path.exists(f"/proc/{owner.group(1)}") and int(owner.group(1)) != os.getpid()


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("ray", "Thread-ray"))}


def _ray_runs() -> bool:
    """Whether the Ray of earlier tests runs in this process: it opens sockets at any time."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def uses_ray(request: pytest.FixtureRequest) -> bool:
    return "ray_session" in request.fixturenames or "ray" in request.node.name


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaks a process, thread, descriptor, shared memory or temporary file."""
    with_ray = uses_ray(request)
    before = _processes(), _threads(), _descriptors(), _files()
    yield
    gc.collect()
    assert eventually(lambda: _processes() <= before[0], 10), f"leaked processes: {_processes() - before[0]}"
    # A driver killed by a test that runs in parallel leaves its directory until that test is over.
    leaked_files = lambda: {path for path in _files() - before[3] if not _is_of_another_process(path)}  # noqa: E731
    assert eventually(lambda: not leaked_files(), 4 * GENEROUS), f"leaked files: {leaked_files()}"
    if with_ray:
        return  # a running Ray opens descriptors and starts threads at any time
    assert eventually(lambda: _threads() <= before[1], 10), f"leaked threads: {_threads() - before[1]}"
    leaked = {fd: name for fd, name in _descriptors().items() if fd not in before[2]}
    if _ray_runs():
        leaked = {fd: name for fd, name in leaked.items() if not name.startswith("socket:")}
    assert not leaked, f"leaked descriptors: {leaked}"


@pytest.fixture(scope="session")
def cartpole_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of random episodes of CartPole, about 100 steps."""
    from tests.recorded_episodes import record_random

    return str(record_random(tmp_path_factory.mktemp("datasets") / "cartpole", "CartPole-v1"))


@pytest.fixture(scope="session")
def pendulum_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of random episodes of Pendulum, 100 steps."""
    from tests.recorded_episodes import record_random

    path = tmp_path_factory.mktemp("datasets") / "pendulum"
    return str(record_random(path, "Pendulum-v1", num_episodes=5, max_steps=20))


@pytest.fixture(scope="session")
def dataset_for(cartpole_dataset: str, pendulum_dataset: str) -> Callable[[str], str]:
    """Return the dataset that an algorithm can learn from, by the algorithm's name."""
    from raceway.algorithms import find_algorithm

    return lambda name: cartpole_dataset if "discrete" in find_algorithm(name).actions else pendulum_dataset


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start one local Ray for all tests that need it."""
    from raceway.engine.ray.cluster import RayCluster

    options = {"num_cpus": 2, "log_to_driver": False, "configure_logging": False, "_temp_dir": "/tmp/ray"}
    cluster = RayCluster("local", options)
    yield
    cluster.close()
