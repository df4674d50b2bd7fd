"""Encoding: every kind of array and tensor survives a round trip."""

import itertools
import os
import pickle
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from raceway.engine import _codec
from raceway.engine.shared_memory.arena import Arena, ArenaBlock
from raceway.engine.shared_memory.arena_reader import ArenaReader
from raceway.engine.shared_memory.control_file import ControlFile
from raceway.errors import SerializationError


def round_trip(value: object) -> object:
    return _codec.decode(_codec.encode(value))


SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)


@given(npst.arrays(npst.scalar_dtypes() | npst.array_dtypes(max_size=3), SHAPES))
def test_any_array_survives_a_round_trip(array: np.ndarray) -> None:
    decoded = round_trip({"nested": [array]})["nested"][0]
    assert decoded.dtype == array.dtype
    assert decoded.shape == array.shape
    assert decoded.tobytes() == array.tobytes()
    assert not decoded.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
        np.arange(60_000.0).reshape(200, 300)[::2, ::3],
        np.arange(60_000.0).reshape(200, 300).T,
        np.arange(60_000)[::-1],
        np.zeros((5, 0, 3)),
        np.array(3.5),
        np.array(["a", "bc"] * 10_000),
        np.arange(20_000).astype("datetime64[s]"),
        np.array([(1, 2.0)] * 10_000, dtype=[("x", "i4"), ("y", "f8")]),
        np.array([{"any": 1}, None], dtype=object),
        np.arange(20_000, dtype=">i8"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_unusual_arrays_survive_a_round_trip(array: np.ndarray) -> None:
    decoded = round_trip(array)
    np.testing.assert_array_equal(decoded, array)
    assert decoded.dtype == array.dtype
    assert decoded.flags.f_contiguous or not array.flags.f_contiguous or array.flags.c_contiguous


def test_large_arrays_are_not_pickled() -> None:
    payload = _codec.encode([np.zeros(1_000_000), torch.zeros(1_000_000)])
    assert len(payload.body) < 500
    assert [memoryview(buffer).nbytes for buffer in payload.buffers] == [8_000_000, 4_000_000]


@pytest.mark.parametrize("size", [(), (3,), (300, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_any_tensor_is_decoded_as_a_private_copy(size: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.ones(size).to(dtype)
    decoded = round_trip({"t": tensor})["t"]
    assert decoded.dtype == dtype
    assert torch.equal(decoded, tensor)
    decoded.zero_()
    assert tensor.sum() != 0 or dtype == torch.bool


def test_unusual_tensors_survive_a_round_trip() -> None:
    base = torch.arange(100_000.0)
    for tensor in (base[::3], base.reshape(100, 1000).T, torch.empty(0, 3), base.to_sparse(), base.requires_grad_()):
        decoded = round_trip(tensor)
        assert decoded.shape == tensor.shape
        assert torch.equal(decoded.to_dense(), tensor.to_dense())
        assert decoded.requires_grad == tensor.requires_grad
    assert len(_codec.encode(base[:10]).body) < 1000, "the whole storage of a small view is not encoded"


def test_modules_keep_their_tied_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    model[1].weight = model[0].weight
    decoded = round_trip(model)
    assert decoded[1].weight is decoded[0].weight
    assert isinstance(decoded[0].weight, torch.nn.Parameter)
    assert torch.equal(decoded(torch.ones(300)), model(torch.ones(300)))


@dataclass
class Point:
    x: np.ndarray


def test_functions_and_local_classes_can_be_encoded() -> None:
    factor = 3

    class Local:
        def times(self, x: int) -> int:
            return factor * x

    assert round_trip(lambda x: factor * x)(2) == 6
    assert round_trip(Local()).times(2) == 6
    assert round_trip(Point(np.arange(3))).x[2] == 2


def test_a_value_may_encode_another_while_it_is_pickled() -> None:
    class Nested:
        def __reduce__(self) -> tuple:
            return bytes, (bytes(_codec.encode([1, 2]).body),)

    assert pickle.loads(round_trip([Nested(), 5])[0]) == [1, 2]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": threading.Lock()}]}, r"value\['a'\]\[1\]\['b'\]"),
        (threading.Lock(), "value:"),
        (Point(threading.Lock()), r"value\.x"),  # type: ignore[arg-type]
    ],
)
def test_the_error_names_the_part_that_cannot_be_pickled(value: object, path: str) -> None:
    with pytest.raises(SerializationError, match=path):
        _codec.encode(value)


def test_a_failed_encoding_does_not_affect_the_next() -> None:
    with pytest.raises(SerializationError):
        _codec.encode([np.zeros(100_000), threading.Lock()])
    payload = _codec.encode([np.ones(100_000)])
    assert len(payload.buffers) == 1
    assert _codec.decode(payload)[0][0] == 1


def test_the_error_names_a_closure_variable() -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError, match="closure variable lock"):
        _codec.encode(lambda: lock)


@given(st.lists(st.tuples(st.integers(1, 2_000_000), st.integers(0, 7)), min_size=1, max_size=60))
def test_an_arena_never_reuses_memory_that_is_being_read(steps: list[tuple[int, int]]) -> None:
    """A step is the size of a message to send, and the index of a message to drop afterwards, if it exists."""
    control = ControlFile()
    arena = Arena(control, 0, 1 << 34)
    row = control.row(0)
    reader = ArenaReader(os.dup(arena.fd), row)
    held: list[tuple[ArenaBlock, list]] = []
    try:
        for size, drop in steps:
            block, lengths = arena.write([np.full(size, len(held) % 251, np.uint8)])
            block.expect_release(row)
            held.append((block, reader.read(block.index, block.offset, lengths)))
            if drop < len(held):
                del held[drop]
            spans = sorted((block.offset, block.offset + block.size) for block, _ in held)
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
            for _, (array,) in held:
                assert array[0] == array[-1]
    finally:
        held.clear()
        reader.close()
        arena.close()
        control.close()
