"""Fixtures that last for a module, to be imported there instead of the usual ones.

For tests that are many and leave nothing behind on the actors: to start actors on Ray takes longer than everything else
that they do.
"""

from collections.abc import Iterator

import pytest

from raceway.engine import make_engine
from raceway.engine._core import EngineCore
from raceway.engine.base import Actor
from tests.flow.actors import two_counters
from tests.flow.conftest import ENGINES


@pytest.fixture(scope="module", params=ENGINES, name="engine")
def lasting_engine(request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with make_engine(request.param) as made:
        yield made


@pytest.fixture(scope="module", name="actors")
def lasting_actors(engine: EngineCore) -> list[Actor]:
    return two_counters(engine)


@pytest.fixture(scope="module", name="no_leaks")
def look_for_no_leaks() -> None:
    """Not after every test: the engine of the module lives on."""
