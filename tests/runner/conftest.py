import gc
from collections.abc import Iterator

import pytest

from raceway.runner import Runner

ENGINES = ("inline", "process", "ray")
REMOTE = ("process", "ray")


def engines(*names: str) -> pytest.MarkDecorator:
    """Run a test only on these engines."""
    return pytest.mark.parametrize("rr", names, indirect=True)


def forget_dropped(rr: Runner) -> None:
    """Make the driver forget what no process refers to any more, without waiting for the next call to do so."""
    gc.collect()
    with rr._backend.engine.lock:
        rr._backend.table.sweep()


@pytest.fixture(params=ENGINES)
def rr(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A Runner on each engine."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with Runner("tested", engine=request.param, workers=2) as runner:
        yield runner
