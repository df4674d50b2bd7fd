from collections.abc import Iterator

import pytest

from raceway.engine.base import Actor, Engine
from tests.engine.conftest import make
from tests.flow.actors import two_counters

ENGINES = ("inline", "process", "ray")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with make(request.param, request) as engine:
        yield engine


@pytest.fixture
def actors(engine: Engine) -> list[Actor]:
    return two_counters(engine)
