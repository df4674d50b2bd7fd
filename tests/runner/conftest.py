from collections.abc import Iterator

import pytest

from raceway.runner import Runner

ENGINES = ("inline", "process", "ray")
REMOTE = ("process", "ray")


def engines(*names: str) -> pytest.MarkDecorator:
    """Run a test only on these engines."""
    return pytest.mark.parametrize("rr", names, indirect=True)


@pytest.fixture(params=ENGINES)
def rr(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """A Runner on each engine."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    with Runner("tested", engine=request.param, workers=2) as runner:
        yield runner
