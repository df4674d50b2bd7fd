"""Every use of Ray's private API. Each function has a fallback for versions of Ray without it.

direct_call              a fifth off the cost of a call; else the public `.remote`
print_on_stderr          Ray's messages on stderr; else Ray prints some on stdout
start_ray                Ray's files in a directory that we remove; else in Ray's default directory
ordinary_priority        workers at ordinary priority; an unknown variable is ignored by Ray
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from raceway.engine.ray import ray

CALL_OPTIONS = {"num_returns": 1, "max_task_retries": 0, "enable_task_events": False}
"""The options of every call of an actor."""
_NICENESS_VARIABLE = "RAY_worker_niceness"  # Ray reads its internal settings from environment variables


def direct_call(handle: Any, method: str) -> Callable[[], Any]:
    """Return a function that calls a method without arguments of a Ray actor.

    Ray goes through all options of a call each time, which is a fifth of its cost. If this Ray has the inner function
    with the options used here, call that instead.
    """
    inner = getattr(handle, "_actor_method_call", None)
    if inner is None or not {"method_name", *CALL_OPTIONS} <= inspect.signature(inner).parameters.keys():
        return getattr(handle, method).remote  # type: ignore[no-any-return]
    return partial(inner, method, **CALL_OPTIONS)


def print_on_stderr() -> bool:
    """Make Ray print its messages on stderr, as stdout belongs to the user; return whether that was possible."""
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    original = getattr(worker, "print_to_stdstream", None)
    if worker is None or original is None:
        return False
    if original.__module__ == worker.__name__:  # not replaced already
        worker.print_to_stdstream = lambda data, *args, **kwargs: original({**data, "is_err": True}, *args, **kwargs)
    return True


def start_ray(options: Mapping[str, Any], directory: str | None) -> bool:
    """Call `ray.init`, with its files in `directory` unless it is None; return whether the directory is used."""
    if directory is not None:
        try:
            ray.init(**options, _temp_dir=directory)
            return True
        except (RuntimeError, TypeError) as error:
            if "_temp_dir" not in str(error):  # a different error
                raise
    ray.init(**options)
    return False


def ordinary_priority(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variable that makes a local Ray run workers at ordinary priority, unless the user set it.

    By default Ray gives them a niceness of 15, at which they compute a tenth slower, even on a free core.
    """
    return {_NICENESS_VARIABLE: environ.get(_NICENESS_VARIABLE, "0")}
