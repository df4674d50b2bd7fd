"""Raceway: distributed reinforcement learning as a dataflow.

The public names are imported on first use, so that `import raceway` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raceway.imports import fast_imports

if TYPE_CHECKING:
    from raceway.engine import make_engine
    from raceway.errors import RacewayError
    from raceway.loaded_policy import load
    from raceway.recording import record
    from raceway.runner import Runner
    from raceway.training.train import resume, train
    from raceway.ui.callback import Callback

__version__ = "0.1.0"

__all__ = ["Callback", "RacewayError", "Runner", "__version__", "load", "make_engine", "record", "resume", "train"]

_MODULES = {
    "Callback": "raceway.ui.callback",
    "RacewayError": "raceway.errors",
    "Runner": "raceway.runner",
    "load": "raceway.loaded_policy",
    "make_engine": "raceway.engine",
    "record": "raceway.recording",
    "resume": "raceway.training.train",
    "train": "raceway.training.train",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'raceway' has no attribute {name!r}")
    with fast_imports():
        module = importlib.import_module(_MODULES[name])
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
