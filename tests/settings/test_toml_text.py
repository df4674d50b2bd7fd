"""Values as TOML text."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.settings.toml_text import toml_value

values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_values_are_read_back_as_they_were(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}  # comment")["value"] == value


@pytest.mark.parametrize("value", [None, len, [None], {"a": None}, {1: 2}])
def test_what_toml_has_no_form_for_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="TOML has no form for"):
        toml_value(value)
