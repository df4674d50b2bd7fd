"""One watch for leaks a file: these tests only call functions, and a watch on each would take most of the time."""

import pytest

from tests.conftest import no_leaks as on_every_test

no_leaks = pytest.fixture(on_every_test.__wrapped__, scope="module", autouse=True, name="no_leaks")
