"""The column of reports: it can be concatenated like any column, and batches without it count as empty lines."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import Batch, concat
from raceway.rl.episode_info import EPISODE_INFO, as_number, concat_episodes, decode_episodes, encode_episodes

REPORTS = st.lists(
    st.one_of(
        st.just({}),
        st.dictionaries(st.text(), st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.text()), max_size=3),
    )
)


@given(st.lists(REPORTS, min_size=1))
def test_columns_are_concatenated_like_lists(parts: list[list[dict[str, float | str]]]) -> None:
    """Whatever the names are: line breaks of any kind are escaped. Values keep all their digits."""
    columns = [encode_episodes(part) if any(part) else None for part in parts]
    column = concat_episodes(columns, list(map(len, parts)))
    expected = [report for part in parts for report in part]
    if column is None:
        assert not any(expected)
    else:
        assert decode_episodes(column) == expected
        json.dumps(expected)


def batch(reward: int, *reports: dict[str, float], whole: bool = False) -> Batch:
    columns: Batch = {"reward": np.array([float(reward)])}
    columns |= {"length": np.ones(len(reports), int)} if whole else {"episode_return": np.zeros(len(reports))}
    return columns | ({EPISODE_INFO: encode_episodes(reports)} if any(reports) else {})


@pytest.mark.parametrize("whole", [False, True])
def test_batches_without_the_column_are_concatenated_with_others(whole: bool) -> None:
    joined = concat([batch(1, {}, {}, whole=whole), batch(2, {}, {"a": 1.0}, whole=whole), batch(3, whole=whole)])
    assert decode_episodes(joined[EPISODE_INFO]) == [{}, {}, {}, {"a": 1.0}]
    assert joined["reward"].tolist() == [1, 2, 3]
    assert EPISODE_INFO not in concat([batch(1, {}, whole=whole), batch(2, {}, whole=whole)])


@pytest.mark.parametrize(
    ("value", "number"),
    [(True, 1.0), (np.bool_(False), 0.0), (3, 3.0), (np.float32(0.5), 0.5), (np.array(2), 2.0),
     (torch.tensor(4.0), 4.0), (None, None),
     ("3", None), ([3], None), (np.zeros(1), None), (float("inf"), None), (np.float64("nan"), None),
     (10**400, None), (1j, None)],
)  # fmt: skip
def test_numbers_are_told_from_other_values(value: object, number: float | None) -> None:
    assert as_number(value) == number
