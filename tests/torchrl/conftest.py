import multiprocessing
from collections.abc import Callable, Iterator

import pytest
import torch

from raceway.engine import make_engine
from raceway.engine.base import Engine
from raceway.runner import Runner
from raceway.torchrl.ring import RingStorage
from raceway.torchrl.storages import LocalStorage, ObjectStorage
from tests.conftest import _descriptors, eventually

MakeStorage = Callable[[int], RingStorage]


@pytest.fixture(scope="session", autouse=True)
def torchrl_shared_counters() -> object:
    """Start the shared counters and their resource tracker, which TorchRL's writers start once and never stop."""
    return multiprocessing.Value("i", 0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one compute thread: for the small tensors of these tests more are slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine_with_torchrl() -> Iterator[Engine]:
    """A process engine that preloads TorchRL, which would take each worker seconds to import."""
    with make_engine("process", preload=["torchrl.data", "raceway.torchrl.storages"]) as engine:
        actor = engine.spawn(list)  # the first actor starts the launcher, which lives as long as the engine
        actor.call("__len__").result()
        engine.kill(actor)
        yield engine


@pytest.fixture(params=["inline", "process"])
def rr(request: pytest.FixtureRequest, engine_with_torchrl: Engine) -> Iterator[Runner]:
    """A Runner on the inline engine, and one on the process engine."""
    before = _descriptors().keys()
    with Runner("tested", engine="inline" if request.param == "inline" else engine_with_torchrl, workers=2) as runner:
        yield runner
    # The engine stays open, and reads the output of its workers until they have ended.
    assert eventually(lambda: _descriptors().keys() <= before)


@pytest.fixture(params=["local", "object"])
def make_storage(request: pytest.FixtureRequest) -> Iterator[MakeStorage]:
    """A function that creates storages of one kind."""
    if request.param == "local":
        yield LocalStorage
        return
    with Runner("tested", engine="inline") as runner:
        yield lambda max_size: ObjectStorage(runner, max_size)
