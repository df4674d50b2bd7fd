import json
import math
from collections import Counter, deque
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raceway.ops  # noqa: F401 - registers the records of training
from raceway.checkpoints.encoding import decode, differences, encode, hash_array, hash_state
from raceway.errors import ConfigError
from raceway.flow import Envelope, Source
from raceway.ops import TrainStats
from raceway.rollouts.fragment_values import RunningReturns

DTYPES = [
    "?",
    "i1",
    "u1",
    "<i2",
    "<u2",
    "<i4",
    "<u4",
    "<i8",
    "<u8",
    "<f2",
    "<f4",
    "<f8",
    "<c8",
    "<c16",
    "<f16",
    "<M8[s]",
]


def round_trip(value: Any) -> Any:
    """Return a value encoded, written as JSON text, and decoded again."""
    doc, arrays = encode(value)
    return decode(json.loads(json.dumps(doc)), arrays)


def identical(left: Any, right: Any) -> bool:
    """Whether two values are bit-identical, including all their types."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if isinstance(left, np.random.Generator):
        return identical(left.bit_generator.state, right.bit_generator.state)
    if isinstance(left, np.generic):
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, TrainStats):
        return identical(vars(left), vars(right))
    if isinstance(left, dict):
        pairs = sorted(left.items(), key=repr), sorted(right.items(), key=repr)
        return len(left) == len(right) and all(map(identical, *pairs))
    if isinstance(left, deque) and left.maxlen != right.maxlen:
        return False
    if isinstance(left, (list, tuple, deque)):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)


def hash_of_state(value: Any) -> str:
    doc, arrays = encode(value)
    return hash_state(doc, {name: hash_array(array) for name, array in arrays.items()})


numbers = st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.fractions()
leaves = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=5)
arrays = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 9),
)  # fmt: skip
scalars = arrays.filter(lambda array: array.size > 0).map(lambda array: array.ravel()[0])
generators = st.builds(
    lambda bits, seed: np.random.Generator(bits(seed)),
    st.sampled_from([np.random.PCG64, np.random.MT19937, np.random.Philox]), st.integers(0, 9),
)  # fmt: skip
names = st.sampled_from(["a", "b", "a/b", "$", "$x", "v", "wall", ""]) | st.text(max_size=3)
keys = st.integers() | st.text(max_size=3) | st.booleans() | st.tuples(st.integers(), st.text(max_size=2))


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(parts, max_size=4)
    return (
        several | several.map(tuple)
        | st.builds(deque, several, st.none() | st.integers(4, 9))
        | st.dictionaries(names, parts, max_size=4) | st.dictionaries(keys, parts, max_size=4)
        | st.sets(st.integers() | st.text(max_size=2) | st.binary(max_size=2), max_size=4)
        | st.builds(RunningReturns, st.fixed_dictionaries({"sums": arrays}))
        | st.builds(Counter, st.dictionaries(st.text(max_size=2), st.integers(), max_size=3))
        | st.tuples(st.integers(), st.text(max_size=3)).map(lambda pair: Source(*pair))
        | st.tuples(st.integers(), arrays, arrays, parts)
        .map(lambda four: TrainStats(*four[:3], published_weights=four[3]))
    )  # fmt: skip


trees = st.recursive(leaves | arrays | scalars | generators, containers, max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_survives_a_round_trip(tree: Any) -> None:
    assert identical(tree, round_trip(tree))


ENVELOPE = Envelope((Source(1, "rollouts-1"),), 3, None, 10.0, 11.5, parts=(Envelope((), 0, 1, 1.0, 2.0),))


@pytest.mark.parametrize(
    "value",
    [
        *(np.zeros((), dtype)[()] for dtype in DTYPES),
        *(np.ones(3, dtype) for dtype in DTYPES),
        np.str_("text"), np.bytes_(b"ab"), np.float32("nan"), np.float64("-inf"), np.longdouble(1) / 3,
        np.array(2.5), np.zeros((0, 3)), np.zeros((3, 0), bool), np.arange(3, dtype=">i4"), np.float32(-0.0),
        math.inf, -math.inf, math.nan, -0.0, 1e-320, 10**6000, -(10**6000), Fraction(-3, 7), Fraction(4),
        {1, "a", b"c", 2.5, None}, {(1, 2): "pair", True: "yes", 2: "two"}, {"$": "array", "v": "state"},
        deque([1, (2,)], 2), b"\x00\xff", Counter({3: 1, "a": 2}), ENVELOPE,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_special_values_survive_a_round_trip(value: Any) -> None:
    assert identical(value, round_trip(value))


def test_non_contiguous_arrays_survive_a_round_trip() -> None:
    array = np.arange(24.0).reshape(4, 6)
    for view in (array[::2], array[:, 1:3], array.T, array[::-1], np.asfortranarray(array)):
        assert identical(np.array(view), np.array(round_trip({"x": view})["x"]))
        assert hash_array(view) == hash_array(view.copy())


def test_keys_with_slashes_do_not_share_an_array() -> None:
    tree = {"a/b": np.zeros(2), "a": {"b": np.ones(2)}, "a/b#2": np.full(2, 2.0)}
    assert identical(tree, round_trip(tree))


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_a_generator_continues_its_sequence(bits: Any) -> None:
    random = np.random.Generator(bits(7))
    random.integers(0, 9, 3, np.uint8)  # leaves part of a number in its buffer
    restored = round_trip(random)
    assert random.random(1000).tobytes() == restored.random(1000).tobytes()
    assert random.normal(size=9).tobytes() == restored.normal(size=9).tobytes()


class Unknown:
    pass


Impostor = type("Envelope", (tuple,), {})


@pytest.mark.parametrize(
    "value",
    [
        Unknown(), Unknown, len, 1j, frozenset([1]), bytearray(b"a"), np.array([None]), np.array(["text"]),
        np.zeros(2, [("a", "f4")]), np.zeros(2, [("a", "f4")])[0], Impostor(), np.ma.masked_array([1.0]), object(),
        np.random.Generator(np.random.SFC64(1)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_that_cannot_be_saved_is_named_by_its_path(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^state/learner/v/1/of "):
        encode({"learner": (0, {"of": value})})


STATS = TrainStats(3, np.arange(2.0), np.arange(2), {"loss": 0.5}, {"train": 0.1, "wait": np.float32(1)})
STATE = {"flow": [ENVELOPE, STATS], "wall": {"began": 3.0, "laps": np.arange(3)}, 5: {"wall": 1, 2: 3}}


def test_wall_clock_times_and_worker_names_do_not_change_the_hash() -> None:
    other_stats = TrainStats(3, np.arange(2.0), np.arange(2), {"loss": 0.5}, {"train": 9.0})
    named = Envelope((Source(1, "another"),), 3, None, 0.0, 0.5, parts=(Envelope((), 0, 1, 7.0, 8.0),))
    other = {"flow": [named, other_stats], "wall": {"began": 4.0, "laps": np.arange(9)}, 5: {"wall": 2, 2: 3}}
    assert hash_of_state(STATE) == hash_of_state(other)
    assert not list(differences(encode(STATE)[0], encode(other)[0]))


@pytest.mark.parametrize(
    "other",
    [
        ENVELOPE._replace(sequence=4), ENVELOPE._replace(version=1), ENVELOPE._replace(size=2),
        ENVELOPE._replace(sources=(Source(2, "rollouts-1"),)), ENVELOPE._replace(parts=()),
    ],
)  # fmt: skip
def test_every_other_field_of_an_envelope_changes_the_hash(other: Envelope) -> None:
    assert hash_of_state(ENVELOPE) != hash_of_state(other)


@settings(max_examples=200, deadline=None)
@given(st.lists(leaves | arrays | scalars, min_size=1, max_size=6), st.data())
def test_any_other_leaf_changes_the_hash(values: list[Any], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    changed = list(values)
    changed[index] = data.draw(leaves | arrays | scalars)

    def tree(parts: list[Any]) -> Any:
        return {"learner": tuple(parts[::2]), "flow": [{"x": part, 1: part} for part in parts[1::2]]}

    assert (hash_of_state(tree(values)) == hash_of_state(tree(changed))) == identical(values, changed)


def test_one_bit_of_an_array_changes_the_hash() -> None:
    array = np.arange(6.0).reshape(2, 3)
    hashes = {
        hash_of_state({"x": array}),
        hash_of_state({"x": array.ravel()}),
        hash_of_state({"x": array.astype("f4")}),
    }
    for bit in range(array.nbytes * 8):
        raw = bytearray(array.tobytes())
        raw[bit // 8] ^= 1 << bit % 8
        hashes.add(hash_of_state({"x": np.frombuffer(bytes(raw)).reshape(2, 3)}))
    assert len(hashes) == 3 + array.nbytes * 8


def test_the_order_of_a_set_does_not_change_the_hash() -> None:
    left, right = {"x", 8, 0, None, 2.5}, {2.5, None, 0, 8, "x"}
    assert hash_of_state(left) == hash_of_state(right)


def test_differences_give_the_path() -> None:
    left, right = encode({"a": [1, {"b": 2}], "c": 3})[0], encode({"a": [1, {"b": 5}], "c": 3})[0]
    assert list(differences(left, right)) == ["state/a/1/b: 2 and 5"]


HOSTILE: list[Any] = [
    {"$": "os.system", "v": "true"}, {"$": "__reduce__", "v": []}, {"$": ["tuple"], "v": []}, {"$": None}, {"$": {}},
    {"$": "tuple"}, {"$": "tuple", "v": 3}, {"$": "tuple", "v": [], "more": 1}, {"$": "set", "v": [[]]},
    {"$": "dict", "v": [1]}, {"$": "dict", "v": [[[], 1]]}, {"$": "bytes", "v": "é"}, {"$": "float", "v": "x"},
    {"$": "int", "v": "zz"}, {"$": "fraction", "v": "1/0"}, {"$": "fraction", "v": "1e999999999"},
    {"$": "fraction", "v": 3}, {"$": "deque", "v": [], "maxlen": -1}, {"$": "array", "v": "nowhere"}, {"$": "array"},
    {"$": "array", "v": []}, {"$": "scalar", "dtype": "O", "v": 1}, {"$": "scalar", "dtype": "V9", "v": 10**15},
    {"$": "scalar", "dtype": [["a", "O"]], "v": 1}, {"$": "scalar", "dtype": "<i8", "v": 10**40},
    {"$": "scalar", "dtype": "<i8", "v": {"raw": 3}}, {"$": "scalar", "dtype": "nonsense", "v": 1},
    {"$": "scalar", "dtype": "S", "v": 10**9}, {"$": "scalar", "dtype": "U", "v": 3}, {"$": "scalar", "dtype": "<f8"},
    {"$": "scalar", "dtype": "<i8", "v": "1"}, {"$": "scalar", "dtype": "<f8", "v": [[1.0]]},
    {"$": "generator", "v": {"bit_generator": "os"}}, {"$": "generator", "v": 3}, {"$": "generator", "v": {}},
    {"$": "generator", "v": {"bit_generator": "PCG64", "state": {"state": -1, "inc": 2}}},
    {"$": "generator", "v": {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": 10**6}}},
    {"$": "generator", "v": {"bit_generator": "MT19937", "state": {"key": [1], "pos": 0}}},
    {"$": "record", "of": "Popen", "v": {"args": "true"}}, {"$": "record", "of": "Envelope", "v": {"command": 1}},
    {"$": "record", "of": "Source", "v": [1, 2]}, {"$": "record", "of": "TrainStats", "v": {}},
    {"$": "record", "of": "RunningReturns", "v": 3}, {"$": "record"}, {"$": "record", "of": []},
]  # fmt: skip
"""Documents that `encode` never writes. `test_checkpoint_faults.py` puts them into checkpoints."""


@pytest.mark.parametrize("doc", HOSTILE, ids=lambda doc: json.dumps(doc)[:60])
def test_malformed_documents_are_refused(doc: Any) -> None:
    with pytest.raises((ArithmeticError, AttributeError, LookupError, TypeError, ValueError)):
        decode(doc, {})
