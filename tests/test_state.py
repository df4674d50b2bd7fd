"""The state of any object: what is plain data of it, and nothing else."""

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
    """Holds one thing."""

    def __init__(self, held: Any) -> None:
        self.held = held


def through_a_checkpoint(holder: Holder) -> Any:
    return decode(*encode(state_of(holder)))


@pytest.mark.parametrize("held", [3, "text", None, [1, (2, 3.5)], {"a": {1, 2}}, b"raw", np.float32(2), 1e300])
def test_plain_data_is_kept(held: Any) -> None:
    other = Holder(0)
    restore(other, through_a_checkpoint(Holder(held)))
    assert other.held == held
    assert type(other.held) is type(held)


@pytest.mark.parametrize("empty", [defaultdict(int), OrderedDict()])
def test_a_dict_of_a_kind_stays_one(empty: Any) -> None:
    holder = Holder(empty.copy())
    holder.held.update({"seen": 3})
    other = Holder(empty.copy())
    restore(other, through_a_checkpoint(holder))
    assert type(other.held) is type(empty)
    assert other.held == {"seen": 3}


def test_a_named_tuple_stays_one() -> None:
    other = Holder(Pair(0, 0))
    restore(other, through_a_checkpoint(Holder(Pair(1, 2))))
    assert other.held == Pair(1, 2)
    assert type(other.held) is Pair


@pytest.mark.parametrize("held", [len, Colour.RED, np.array([object()]), Holder(1), [Pair(1, 2)]])
def test_what_could_not_be_written_down_is_taken_for_how_it_was_made(held: Any) -> None:
    assert through_a_checkpoint(Holder(held)) == {}
