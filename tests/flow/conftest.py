from collections.abc import Iterator

import pytest

from raceway.engine._core import EngineCore
from raceway.engine.base import Actor
from tests.engine.conftest import make
from tests.flow.actors import two_counters

ENGINES = ("inline", "process", "ray")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    with make(request.param, request) as made:
        yield made


@pytest.fixture
def actors(engine: EngineCore) -> list[Actor]:
    return two_counters(engine)
