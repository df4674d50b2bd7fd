"""The state of an object: its attributes that hold plain data."""

from collections import OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from raceway.checkpoints.encoding import decode, encode
from raceway.state import restore, state_of

Pair = namedtuple("Pair", ["left", "right"])
Colour = IntEnum("Colour", ["RED", "BLUE"])


class Holder:
    """Has one attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


def through_a_checkpoint(holder: Holder) -> Any:
    return decode(*encode(state_of(holder)))


@pytest.mark.parametrize("value", [3, "text", None, [1, (2, 3.5)], {"a": {1, 2}}, b"raw", np.float32(2), 1e300])
def test_plain_data_is_saved(value: Any) -> None:
    restored = Holder(0)
    restore(restored, through_a_checkpoint(Holder(value)))
    assert restored.value == value
    assert type(restored.value) is type(value)


@pytest.mark.parametrize("empty", [defaultdict(int), OrderedDict()])
def test_a_dict_subclass_is_restored(empty: Any) -> None:
    holder = Holder(empty.copy())
    holder.value.update({"key": 3})
    restored = Holder(empty.copy())
    restore(restored, through_a_checkpoint(holder))
    assert type(restored.value) is type(empty)
    assert restored.value == {"key": 3}


def test_a_named_tuple_is_restored() -> None:
    restored = Holder(Pair(0, 0))
    restore(restored, through_a_checkpoint(Holder(Pair(1, 2))))
    assert restored.value == Pair(1, 2)
    assert type(restored.value) is Pair


@pytest.mark.parametrize("value", [len, Colour.RED, np.array([object()]), Holder(1), [Pair(1, 2)]])
def test_other_values_are_not_part_of_the_state(value: Any) -> None:
    assert through_a_checkpoint(Holder(value)) == {}
