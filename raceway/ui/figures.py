"""Helpers for matplotlib figures: optional import, windows, and saving."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from raceway.errors import ConfigError

FILE_TYPES = (".png", ".svg", ".pdf")


def check_matplotlib() -> None:
    """Raise an error if matplotlib is missing, before training rather than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'raceway[plot]'") from error


def has_screen() -> bool:
    """Whether there is a screen to show a window on."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def import_pyplot(show: bool) -> Any:
    """Return matplotlib's pyplot, set up without windows unless one is going to be shown."""
    check_matplotlib()
    import matplotlib

    if not show:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def prepare_plot_path(name: str | Path) -> Path:
    """Return the path of a plot, after checking its file type and creating its directory."""
    path = Path(name)
    if path.suffix.lower() not in FILE_TYPES:
        raise ConfigError(f"a plot cannot be saved as {str(path)!r}. Use one of {', '.join(FILE_TYPES)}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"a plot cannot be saved as {str(path)!r}: {error}. Choose another --out.") from error
    return path


def save_figure(plt: Any, figure: Any, path: Path, show: bool) -> Path:
    """Save a figure, and show it if that is requested and possible."""
    figure.savefig(path, dpi=130)
    if show and plt.get_backend().lower() != "agg":  # the backend where no window toolkit is installed
        plt.show()
    plt.close(figure)
    return path
