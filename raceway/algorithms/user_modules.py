"""Algorithms of other modules: `module:name`, and the name by which such an algorithm is found again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raceway.checks import unknown_name
from raceway.errors import ConfigError

if TYPE_CHECKING:
    from raceway.algorithms.registry import Algorithm


def import_user_module(what: str, name: str) -> tuple[Any, str]:
    """Import the module of `module:attribute`, also from the working directory; return it and the attribute's name.

    Args:
        what: what is imported, for errors.
        name: the name.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{what} {name!r} must be module:name")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the working directory, as `python -m` has it
    try:
        return importlib.import_module(module_name), attribute
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{what} {name!r} cannot be imported: {error}") from error
        raise ConfigError(
            f"{what} {name!r}: there is no module {module_name!r} here ({error}). Run from its directory, or install "
            "it."
        ) from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def algorithm_in_module(name: str, registered: Iterable[Algorithm]) -> Algorithm:
    """Return the algorithm that `module:name` names: by its registered name, or by that of its plan function.

    Args:
        name: the name.
        registered: all registered algorithms; the module registers its own when it is imported.
    """
    module, attribute = import_user_module("algorithm", name)
    plan = getattr(module, attribute, None)
    own = {entry.name: entry for entry in registered if entry.plan.__module__ == module.__name__}
    if attribute in own:
        return own[attribute]
    by_plan = next((entry for entry in registered if entry.plan is plan), None)
    if by_plan is None:
        hint = "Register its plan function with @algorithm(name, Config)."
        raise unknown_name(f"algorithm in {module.__name__}", attribute, own, hint)
    return by_plan


def import_name(algorithm: Algorithm, names: Iterable[str]) -> str | None:
    """Return the `module:name` by which an algorithm is imported, or None if its name suffices, or nothing would.

    Args:
        algorithm: the algorithm.
        names: the names of built-in algorithms and entry points.
    """
    module = algorithm.plan.__module__
    return None if module == "__main__" or algorithm.name in names else f"{module}:{algorithm.name}"
