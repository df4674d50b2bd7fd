import multiprocessing
from collections.abc import Callable, Iterator

import pytest
import torch

from raceway.engine import make_engine
from raceway.engine._core import EngineCore
from raceway.runner import Runner
from raceway.torchrl.ring import RingStorage
from raceway.torchrl.storages import LocalStorage, ObjectStorage
from tests.conftest import _descriptors, eventually

Make = Callable[[int], RingStorage]


@pytest.fixture(scope="session", autouse=True)
def torchrl_shares_numbers() -> object:
    """What TorchRL's writers start once in a process, and leave: memory for shared numbers, and who watches over it."""
    return multiprocessing.Value("i", 0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one: for tensors as small as those of tests, more take longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine_with_torchrl() -> Iterator[EngineCore]:
    """A process engine whose workers have TorchRL at once; importing it for each would take seconds."""
    with make_engine("process", preload=["torchrl.data", "raceway.torchrl.storages"]) as engine:
        actor = engine.spawn(list)  # the first has the launcher started, which lasts as long as the engine
        actor.call("__len__").result()
        engine.kill(actor)
        yield engine


@pytest.fixture(params=["inline", "process"])
def rr(request: pytest.FixtureRequest, engine_with_torchrl: EngineCore) -> Iterator[Runner]:
    """A Runner in this process, and one with others."""
    before = _descriptors().keys()
    with Runner("tested", engine="inline" if request.param == "inline" else engine_with_torchrl, workers=2) as runner:
        yield runner
    # The engine stays, and reads what its workers print until they are gone.
    assert eventually(lambda: _descriptors().keys() <= before)


@pytest.fixture(params=["local", "object"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes storages of either kind."""
    if request.param == "local":
        yield LocalStorage
        return
    with Runner("tested", engine="inline") as runner:
        yield lambda max_size: ObjectStorage(runner, max_size)
