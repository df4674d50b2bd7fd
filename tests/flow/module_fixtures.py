"""Fixtures of module scope, which replace those of conftest.py in the modules that import them.

For modules with many tests that leave nothing on the actors: starting actors on Ray takes longer than the tests.
"""

from collections.abc import Iterator

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from tests.flow.actors import two_counters
from tests.flow.conftest import ENGINES


@pytest.fixture(scope="module", params=ENGINES, name="engine")
def module_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with make_engine(request.param) as engine:
        yield engine


@pytest.fixture(scope="module", name="actors")
def module_actors(engine: Engine) -> list[Actor]:
    return two_counters(engine)


@pytest.fixture(scope="module", name="no_leaks")
def skip_leak_check() -> None:
    """Skip the leak check after every test, because the engine stays open until the end of the module."""
