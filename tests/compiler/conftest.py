"""Check for leaks once per file: these tests only call functions, and a check for each would take most of the time."""

import pytest

from tests import conftest as above

no_leaks = pytest.fixture(above.no_leaks.__wrapped__, scope="module", autouse=True, name="no_leaks")
