"""Encoding: every kind of array and tensor comes back as it was."""

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
from raceway.engine._shared_memory import Arena, ArenaView, Control, Slot
from raceway.errors import SerializationError


def round_trip(value: object) -> object:
    return _codec.decode(_codec.encode(value))


SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)


@given(npst.arrays(npst.scalar_dtypes() | npst.array_dtypes(max_size=3), SHAPES))
def test_any_array_comes_back(array: np.ndarray) -> None:
    back = round_trip({"nested": [array]})["nested"][0]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert not back.flags.writeable


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
def test_unusual_arrays_come_back(array: np.ndarray) -> None:
    back = round_trip(array)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.f_contiguous or not array.flags.f_contiguous or array.flags.c_contiguous


def test_large_arrays_are_not_pickled() -> None:
    payload = _codec.encode([np.zeros(1_000_000), torch.zeros(1_000_000)])
    assert len(payload.body) < 500
    assert [memoryview(buffer).nbytes for buffer in payload.buffers] == [8_000_000, 4_000_000]


@pytest.mark.parametrize("size", [(), (3,), (300, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_any_tensor_comes_back_private(size: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.ones(size).to(dtype)
    back = round_trip({"t": tensor})["t"]
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    back.zero_()
    assert tensor.sum() != 0 or dtype == torch.bool


def test_unusual_tensors_come_back() -> None:
    base = torch.arange(100_000.0)
    for tensor in (base[::3], base.reshape(100, 1000).T, torch.empty(0, 3), base.to_sparse(), base.requires_grad_()):
        back = round_trip(tensor)
        assert back.shape == tensor.shape
        assert torch.equal(back.to_dense(), tensor.to_dense())
        assert back.requires_grad == tensor.requires_grad
    assert len(_codec.encode(base[:10]).body) < 1000, "a small view does not take its whole storage along"


def test_modules_come_back_with_their_ties() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 300))
    model[1].weight = model[0].weight
    back = round_trip(model)
    assert back[1].weight is back[0].weight
    assert isinstance(back[0].weight, torch.nn.Parameter)
    assert torch.equal(back(torch.ones(300)), model(torch.ones(300)))


@dataclass
class Point:
    x: np.ndarray


def test_functions_and_local_classes_travel() -> None:
    factor = 3

    class Local:
        def times(self, x: int) -> int:
            return factor * x

    assert round_trip(lambda x: factor * x)(2) == 6
    assert round_trip(Local()).times(2) == 6
    assert round_trip(Point(np.arange(3))).x[2] == 2


def test_encoding_inside_encoding() -> None:
    class Nested:
        def __reduce__(self) -> tuple:
            return bytes, (bytes(_codec.encode([1, 2]).body),)

    assert pickle.loads(round_trip([Nested(), 5])[0]) == [1, 2]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": threading.Lock()}]}, r"value\['a'\]\[1\]\['b'\]"),
        (threading.Lock(), "value:"),
        (Point(threading.Lock()), r"value\.x"),  # type: ignore[arg-type]
    ],
)
def test_the_culprit_is_named(value: object, where: str) -> None:
    with pytest.raises(SerializationError, match=where):
        _codec.encode(value)


def test_a_value_that_failed_leaves_nothing_to_the_next() -> None:
    with pytest.raises(SerializationError):
        _codec.encode([np.zeros(100_000), threading.Lock()])
    payload = _codec.encode([np.ones(100_000)])
    assert len(payload.buffers) == 1
    assert _codec.decode(payload)[0][0] == 1


def test_the_culprit_in_a_closure_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError, match="closure variable lock"):
        _codec.encode(lambda: lock)


@given(st.lists(st.tuples(st.integers(1, 2_000_000), st.integers(0, 7)), min_size=1, max_size=60))
def test_an_arena_never_gives_out_what_is_read(steps: list[tuple[int, int]]) -> None:
    """Sizes to send, and after each one which of the messages still held (if there are so many) is dropped."""
    control = Control()
    arena = Arena(control, 0, 1 << 34)
    row = control.row(0)
    view = ArenaView(os.dup(arena.fd), row)
    held: list[tuple[Slot, list]] = []
    try:
        for size, drop in steps:
            slot, lengths = arena.write([np.full(size, len(held) % 251, np.uint8)])
            slot.sent_to(row)
            held.append((slot, view.read(slot.index, slot.offset, lengths)))
            if drop < len(held):
                del held[drop]
            spans = sorted((slot.offset, slot.offset + slot.size) for slot, _ in held)
            assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
            for _, (array,) in held:
                assert array[0] == array[-1]
    finally:
        held.clear()
        view.close()
        arena.close()
        control.close()
