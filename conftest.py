"""Names for the doctests of raceway.flow: the public names, and two actors of an inline engine as `actors`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


class Sampler:
    """Returns 0, 1, 2 and so on."""

    def __init__(self) -> None:
        self.count = -1
        self.weights: list[float] = []

    def sample(self) -> int:
        self.count += 1
        return self.count

    def set_weights(self, weights: list[float]) -> None:
        self.weights = weights


@pytest.fixture(autouse=True)
def _flow_examples(request: pytest.FixtureRequest) -> Iterator[None]:
    if not isinstance(request.node, pytest.DoctestItem) or "raceway.flow" not in request.node.name:
        yield
        return
    from raceway import flow
    from raceway.engine import make_engine

    namespace: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    with make_engine("inline") as engine:
        namespace.update({name: getattr(flow, name) for name in flow.__all__})
        namespace["actors"] = [engine.spawn(Sampler, name=f"sampler-{i}") for i in range(2)]
        yield
        for name in (*flow.__all__, "actors"):
            namespace.pop(name, None)
