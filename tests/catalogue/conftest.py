"""The datasets of algorithms that learn from one."""

import pytest

from tests.catalogue import small_settings


@pytest.fixture(scope="session", autouse=True)
def _datasets(cartpole_dataset: str, pendulum_dataset: str) -> None:
    small_settings.datasets |= {"discrete": cartpole_dataset, "box": pendulum_dataset}
