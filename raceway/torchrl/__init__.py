"""The bridge to TorchRL: its replay buffers over objects of the Runner, and its losses in flows.

The names below are loaded when they are first used: importing TorchRL takes seconds, and a worker that only appends to
a storage does not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raceway.torchrl.appending import Appender
    from raceway.torchrl.batches import from_tensordict, to_tensordict
    from raceway.torchrl.losses import TrainLossModule
    from raceway.torchrl.storages import LocalStorage, ObjectStorage

__all__ = ["Appender", "LocalStorage", "ObjectStorage", "TrainLossModule", "from_tensordict", "to_tensordict"]

_MODULES = {
    "Appender": "appending",
    "LocalStorage": "storages",
    "ObjectStorage": "storages",
    "TrainLossModule": "losses",
    "from_tensordict": "batches",
    "to_tensordict": "batches",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
