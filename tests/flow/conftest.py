from collections.abc import Iterator

import pytest

from raceway.engine._core import EngineCore
from raceway.engine.base import Actor
from tests.engine.conftest import make
from tests.flow.actors import Counter

ENGINES = ("inline", "process", "ray")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    with make(request.param, request) as made:
        yield made


@pytest.fixture
def actors(engine: EngineCore) -> list[Actor]:
    """Two actors that count what they make."""
    return [engine.spawn(Counter, (number,), name=f"counter-{number}") for number in range(2)]
