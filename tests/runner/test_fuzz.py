"""Random programs of nested calls, with kills; see `fuzz` for the laws."""

import logging

import pytest

from tests.runner.fuzz import fuzz


@pytest.mark.timeout(600)
def test_random_programs_with_kills(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "raceway.runner")  # a warning for every worker that is killed
    num_rounds, _ = fuzz(seconds=15.0, seed=1)
    assert num_rounds
