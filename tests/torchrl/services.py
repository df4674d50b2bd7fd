"""Services for the tests of the TorchRL bridge."""

from typing import Any

import numpy as np

from raceway.torchrl.appending import Appender


class Holder:
    """Holds a storage, or a replay buffer, in a worker."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def extend(self, numbers: list[int]) -> None:
        self.storage.extend({"number": np.array(numbers)})

    def append(self, numbers: list[int]) -> int:
        return self.storage.append({"number": np.array(numbers)})

    def numbers(self) -> list[int]:
        return sorted(self.storage[:]["number"].tolist()) if len(self.storage) else []

    def sample(self, num: int) -> list[int]:
        return self.storage.sample(num)["number"].tolist()

    def size(self) -> int:
        return len(self.storage)

    def refresh(self) -> None:
        self.storage.refresh()

    def empty(self) -> None:
        self.storage._empty()


def append_many(appender: list[Appender], first: int, num: int) -> int:
    """Append `num` patches of 1 to 3 rows each, numbered from `first`; return the number of rows."""
    return sum(appender[0].append({"number": np.full(1 + n % 3, first + n)}) for n in range(num))
