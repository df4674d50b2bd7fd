"""The user's own modules, read on the driver's machine so that they can be shipped to a cluster."""

from __future__ import annotations

import logging
import os
import sysconfig
from collections.abc import Sequence

_log = logging.getLogger(__name__)
_MOST_FILES, _MOST_BYTES = 2000, 16 << 20


def collect_sources(path: Sequence[str]) -> dict[str, tuple[str, bool, str]]:
    """Read the modules in the local folders of a search path: name to source, whether it is a package, and file name.

    Installed packages and the standard library are left out: every node has its own.
    """
    sources: dict[str, tuple[str, bool, str]] = {}
    num_folders = num_bytes = 0
    for root in dict.fromkeys(os.path.realpath(entry) for entry in path):
        for folder, inner, files in os.walk(root) if _is_local(root) else ():
            inner[:] = [name for name in sorted(inner) if _may_hold_modules(folder, name)]
            package = os.path.relpath(folder, root).replace(os.sep, ".").strip(".")
            for file in files:
                stem, extension = os.path.splitext(file)
                name = package if stem == "__init__" else f"{package}.{stem}".strip(".")
                if extension == ".py" and stem.isidentifier() and name and name not in sources:
                    with open(os.path.join(folder, file), encoding="utf-8", errors="replace") as opened:
                        sources[name] = opened.read(), stem == "__init__", opened.name
                    num_bytes += len(sources[name][0])
            num_folders += 1
            if max(num_folders, len(sources)) > _MOST_FILES or num_bytes > _MOST_BYTES:
                _log.warning("%s holds too much to ship its modules to the cluster, only some were", root)
                break
    for name in list(sources):  # folders without an __init__.py are packages too
        while "." in name:
            name = name.rpartition(".")[0]
            sources.setdefault(name, ("", True, f"<package {name}>"))
    return sources


def _is_local(root: str) -> bool:
    installed = [os.path.realpath(folder) for folder in sysconfig.get_paths().values()]
    return not ("-packages" in root or any(os.path.commonpath([root, folder]) == folder for folder in installed))


def _may_hold_modules(folder: str, name: str) -> bool:
    skipped = not name.isidentifier() or name in ("__pycache__", "node_modules")
    return not skipped and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
