"""The dataset of algorithms that learn from one."""

import pytest

from tests.catalogue import small_settings


@pytest.fixture(scope="session", autouse=True)
def _dataset(cartpole_dataset: str) -> None:
    small_settings.datasets["dataset"] = cartpole_dataset
