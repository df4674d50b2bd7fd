from collections.abc import Iterator

import pytest

from raceway.engine import make_engine
from raceway.engine._core import EngineCore


def engines(*names: str) -> pytest.MarkDecorator:
    """Run a test on these engines only: the point it shows is not marked for the others."""
    return pytest.mark.parametrize("engine", names, indirect=True)


LOCAL = ("process", "portable")
REMOTE = (*LOCAL, "ray")
ALL = ("inline", *REMOTE)


def make(name: str, request: pytest.FixtureRequest) -> EngineCore:
    if name == "ray":
        request.getfixturevalue("ray_session")
    return make_engine("process", portable=True) if name == "portable" else make_engine(name)


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    """An engine of each kind; `portable` is the process engine with what only Linux has left out."""
    made = make(request.param, request)
    yield made
    made.close()
