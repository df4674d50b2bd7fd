"""What the tests of the bridge make services of."""

from typing import Any

import numpy as np

from raceway.torchrl.appending import Appender


class Holder:
    """Holds a storage, or a buffer that has one, in a worker."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def extend(self, numbers: list[int]) -> None:
        self.held.extend({"number": np.array(numbers)})

    def append(self, numbers: list[int]) -> int:
        return self.held.append({"number": np.array(numbers)})

    def numbers(self) -> list[int]:
        return sorted(self.held[:]["number"].tolist()) if len(self.held) else []

    def sample(self, num: int) -> list[int]:
        return self.held.sample(num)["number"].tolist()

    def size(self) -> int:
        return len(self.held)

    def refresh(self) -> None:
        self.held.refresh()

    def empty(self) -> None:
        self.held._empty()


def append_many(appender: list[Appender], first: int, num: int) -> int:
    """Append numbers, one patch each, of 1 to 3 rows."""
    return sum(appender[0].append({"number": np.full(1 + n % 3, first + n)}) for n in range(num))
