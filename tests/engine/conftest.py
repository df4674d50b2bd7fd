from collections.abc import Iterator

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Engine


def engines(*names: str) -> pytest.MarkDecorator:
    """Run a test only on these engines: the others do not give this guarantee."""
    return pytest.mark.parametrize("engine", names, indirect=True)


LOCAL = ("process", "portable")
REMOTE = (*LOCAL, "ray")
ALL = ("inline", *REMOTE)


def make(name: str, request: pytest.FixtureRequest) -> Engine:
    if name == "ray":
        request.getfixturevalue("ray_session")
    return make_engine("process", portable=True) if name == "portable" else make_engine(name)


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine of each kind; `portable` is the process engine without what only Linux has."""
    created = make(request.param, request)
    yield created
    created.close()
