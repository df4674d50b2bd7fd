"""Shipping the user's own modules to a cluster: the driver reads them, and actors on any node import them."""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import os
import sysconfig
from collections.abc import Sequence
from typing import Any

from raceway.engine.ray import ray

_log = logging.getLogger(__name__)
_MAX_FILES, _MAX_BYTES = 2000, 16 << 20


def collect_sources(path: Sequence[str]) -> dict[str, tuple[str, bool, str]]:
    """Read the modules in the local directories of a search path: name -> (source, whether it is a package, file name).

    Installed packages and the standard library are left out: every node has its own.
    """
    sources: dict[str, tuple[str, bool, str]] = {}
    num_directories = num_bytes = 0
    for root in dict.fromkeys(os.path.realpath(entry) for entry in path):
        for directory, subdirectories, files in os.walk(root) if _is_local(root) else ():
            subdirectories[:] = [name for name in sorted(subdirectories) if _may_hold_modules(directory, name)]
            package = os.path.relpath(directory, root).replace(os.sep, ".").strip(".")
            for file in files:
                stem, extension = os.path.splitext(file)
                name = package if stem == "__init__" else f"{package}.{stem}".strip(".")
                if extension == ".py" and stem.isidentifier() and name and name not in sources:
                    with open(os.path.join(directory, file), encoding="utf-8", errors="replace") as opened:
                        sources[name] = opened.read(), stem == "__init__", opened.name
                    num_bytes += len(sources[name][0])
            num_directories += 1
            if max(num_directories, len(sources)) > _MAX_FILES or num_bytes > _MAX_BYTES:
                _log.warning("%s holds too many modules to ship all of them to the cluster; some were left out", root)
                break
    for name in list(sources):  # directories without an __init__.py are packages too
        while "." in name:
            name = name.rpartition(".")[0]
            sources.setdefault(name, ("", True, f"<package {name}>"))
    return sources


def _is_local(root: str) -> bool:
    installed = [os.path.realpath(directory) for directory in sysconfig.get_paths().values()]
    return not ("-packages" in root or any(os.path.commonpath([root, parent]) == parent for parent in installed))


def _may_hold_modules(directory: str, name: str) -> bool:
    skipped = not name.isidentifier() or name in ("__pycache__", "node_modules")
    return not skipped and not os.path.exists(os.path.join(directory, name, "pyvenv.cfg"))


def module_finder_class() -> type:
    """Return the class that imports shipped modules in an actor.

    It is a local class, which Ray sends by value, so that it works in a process that cannot import raceway yet. So it
    uses nothing of raceway.
    """

    class ShippedModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
        """Imports modules that exist only on the driver's machine, from the sources that the driver stored in Ray."""

        def __init__(self, ref: Any) -> None:
            self._ref = ref
            self._sources: dict[str, tuple[str, bool, str]] | None = None

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if self._sources is None:
                self._sources = ray.get(self._ref)
            return importlib.util.spec_from_loader(name, self) if name in self._sources else None

        def get_source(self, name: str) -> str:
            return self._sources[name][0]  # type: ignore[index]

        def is_package(self, name: str) -> bool:
            return self._sources[name][1]  # type: ignore[index]

        def get_filename(self, name: str) -> str:
            return self._sources[name][2]  # type: ignore[index]

    return ShippedModuleFinder
