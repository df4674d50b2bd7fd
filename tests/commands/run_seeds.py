"""Run directories that differ only in their seed, and the text in a plot of them."""

import html
import re
from pathlib import Path
from typing import Any

from tests.runs.fake_runs import make_run


def make_seeds(directory: str, final_returns: list[float], **settings: Any) -> Path:
    for seed, final_return in enumerate(final_returns):
        make_run(Path(directory) / f"seed-{seed}", [0.0, final_return], seed=seed, **settings)
    return Path(directory)


def texts_in(path: str) -> list[str]:
    """Return the texts in an SVG file. matplotlib draws the letters, and has the text in comments."""
    return [html.unescape(text) for text in re.findall(r"<!-- (.*?) -->", Path(path).read_text())]
