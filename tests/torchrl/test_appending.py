"""Appending to storages, and importing the bridge without TorchRL."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import raceway.torchrl
from raceway.errors import ConfigError
from raceway.runner import Runner
from raceway.torchrl.appending import Appender, check_num_rows, flatten_batch
from raceway.torchrl.storages import ObjectStorage


def test_appending_imports_no_torchrl() -> None:
    program = (
        "import sys, raceway.torchrl\n"
        "from raceway.torchrl import Appender\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'torchrl', 'tensordict')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_public_names_of_the_bridge() -> None:
    for name in raceway.torchrl.__all__:
        assert getattr(raceway.torchrl, name).__name__ == name
    assert dir(raceway.torchrl) == sorted(raceway.torchrl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'ObjectStorge'"):
        raceway.torchrl.ObjectStorge  # noqa: B018


def test_flatten_all_kinds_of_batches() -> None:
    flat = {("a",): np.arange(3), ("next", "b"): np.ones((3, 2))}
    nested = {"a": torch.arange(3), "next": {"b": torch.ones(3, 2, dtype=torch.float64, requires_grad=True)}}
    for batch in (flat, nested, TensorDict(nested, [3]), {"a": [0, 1, 2], ("next", "b"): np.ones((3, 2))}):
        columns = flatten_batch(batch)
        assert columns.keys() == flat.keys()
        for path, column in flat.items():
            assert np.array_equal(columns[path], column)
            assert columns[path].dtype == column.dtype
    assert flatten_batch(np.arange(2)).keys() == {()}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": np.zeros(2), "b": {"c": np.zeros(3)}}, r"'a' 2, 'b.c' 3"),
        ({}, "no column"),
        ({"a": np.zeros((0, 2))}, r"'a' 0"),
        ({"a": np.float32(1)}, r"'a' no"),
        ({"a": ["x"]}, r"column 'a' cannot be stored: list is not an array of numbers"),
        ({"a": object()}, r"column 'a' cannot be stored"),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, r"column 'a' cannot be stored.*Convert it"),
    ],
)
def test_batches_that_cannot_be_appended(batch: object, message: str) -> None:
    with Runner("bad", engine="inline") as rr:
        storage = ObjectStorage(rr, 10)
        for writer in (storage.appender(), storage):
            with pytest.raises(ConfigError, match=message):
                writer.append(batch)
        assert len(storage) == 0


def test_an_append_is_one_patch(rr: Runner) -> None:
    storage = ObjectStorage(rr, 100)
    appender = storage.appender()
    assert isinstance(appender, Appender)
    assert appender.append({"a": np.arange(7), "b": {"c": np.zeros((7, 2))}}) == 7
    assert (
        rr.get(rr.service(lambda box: box[0].append({"a": np.arange(3), "b": {"c": np.ones((3, 2))}}))([appender])) == 3
    )
    stored = rr._backend.objects.stored[storage.ref.id]
    assert stored.sizes == [7, 3]
    assert storage[:]["a"].tolist() == [*range(7), *range(3)]
    assert storage[:]["b", "c"].sum() == 6


def test_all_columns_have_the_number_of_rows() -> None:
    assert check_num_rows(flatten_batch({"a": np.zeros((4, 9)), "b": np.zeros(4)})) == 4
