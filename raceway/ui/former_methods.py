"""Methods of callbacks under their former names: they still work, and warn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from raceway.deprecations import warn_renamed

_RENAMED: dict[str, tuple[str, Callable[..., tuple[Any, ...]]]] = {
    "on_start": ("on_train_start", lambda run: (run.training, run.directory)),
    "on_iteration": ("on_iteration_end", lambda run, metrics: (metrics,)),
    "on_checkpoint": ("on_checkpoint", lambda run, path: (run.steps,)),
    "on_end": ("on_train_end", lambda run, summary: (run.training.result,)),
}
"""Former methods: the new name of each, and its former arguments from those of the new one."""
_SIGNATURES = {
    "on_train_start": "on_train_start(run)",
    "on_iteration_end": "on_iteration_end(run, metrics)",
    "on_checkpoint": "on_checkpoint(run, path)",
    "on_train_end": "on_train_end(run, summary)",
}


def adapt_former_methods(cls: type) -> None:
    """Give a class of callbacks its former methods under their new names, with a warning for each."""
    for old, (new, arguments) in _RENAMED.items():
        if _is_former(cls, old, new):
            name = old if old != new else f"{old}(steps)"
            # as if from the class statement, which is called by ABCMeta.__new__ and __init_subclass__
            warn_renamed(f"{cls.__name__}.{name}", f"{cls.__name__}.{_SIGNATURES[new]}", "0.4", stacklevel=5)
            setattr(cls, new, _adapted(vars(cls)[old], arguments))


def _adapted(method: Callable[..., Any], arguments: Callable[..., tuple[Any, ...]]) -> Callable[..., None]:
    """Return a former method under its new name. What it returns is ignored, as it was."""

    def call(self: Any, *args: Any) -> None:
        method(self, *arguments(*args))

    return call


def _is_former(cls: type, old: str, new: str) -> bool:
    """Whether a class defines a method under its former name, and not under the new one as well."""
    method = vars(cls).get(old)
    if old != new:
        return method is not None and new not in vars(cls)
    return inspect.isfunction(method) and len(inspect.signature(method).parameters) == 2
