"""Every use of Ray's private API. Each function has a fallback for versions of Ray without it.

direct_call              a fifth off the cost of a call; else the public `.remote`
print_on_stderr          Ray's messages on stderr, without its own logs; else Ray prints some on stdout
start_ray                Ray's files in a directory that we remove; else in Ray's default directory
ordinary_priority        workers at ordinary priority; an unknown variable is ignored by Ray
own_token                a token for this Ray only; an unknown variable is ignored by Ray
reread_authentication    changed variables are noticed; else those at the time of importing Ray count

`probe.py` uses more of it, in a process of its own.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raceway.engine.ray import ray

CALL_OPTIONS = {"num_returns": 1, "max_task_retries": 0, "enable_task_events": False}
"""The options of every call of an actor."""
_LOG_TAIL = re.compile(r" Last \d+ lines of the Raylet logs:.*", re.DOTALL)
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
    """Make Ray print its messages on stderr, as stdout belongs to the user; return whether that was possible.

    When a node dies, Ray adds the last lines of its own log to the message. They are left out.
    """
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    original = getattr(worker, "print_to_stdstream", None)
    if worker is None or original is None:
        return False

    def print_to_stdstream(data: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        lines = data.get("lines")
        if data.get("pid") == "raylet" and lines:
            lines = [_LOG_TAIL.sub("", line) for line in lines]
        original({**data, "lines": lines, "is_err": True}, *args, **kwargs)

    if original.__module__ == worker.__name__:  # not replaced already
        worker.print_to_stdstream = print_to_stdstream
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


def own_token(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that let only this process and its workers use a local Ray.

    By default Ray would write a token to ~/.ray, which lets `ray start --head` turn on authentication from then on,
    and keeps out machines that have not got that token. A token that exists already is used.
    """
    if environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return {}
    token = {} if token_source(environ) is not None else {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_AUTH_MODE": "token"} | token


def token_source(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where Ray finds this user's authentication token: a variable or a file; None if there is none."""
    if environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    if environ.get("RAY_AUTH_TOKEN_PATH"):
        return f"RAY_AUTH_TOKEN_PATH={environ['RAY_AUTH_TOKEN_PATH']}"
    path = Path.home() / ".ray" / "auth_token"
    return str(path) if path.is_file() else None


def reread_authentication() -> None:
    """Make Ray read the variables of authentication again: it does so on import, and keeps the token."""
    with contextlib.suppress(AttributeError):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
