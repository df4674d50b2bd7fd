"""Plots of many runs: every text in them can be read."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.runs.comparison import Comparison, GroupCurves, GroupScores
from raceway.ui import comparison_plots
from raceway.ui.comparison_plots import plot_comparisons, plot_curves

ENVS = ["CartPole-v1", "LunarLander-v3", "my_package.environments:AnEnvironmentWithALongName-v0"]
LONG = "clip=0.3 gamma=0.95 hidden=256,256 lam=0.9 and 2 others"
LABELS = ["ppo hidden=64,64 lr=0.001", "ppo hidden=64,64 lr=0.003", f"ppo {LONG}", "impala", "apex", f"apex {LONG}"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The figures that are saved, still open."""
    saved: list[Any] = []

    def save(plt: Any, figure: Any, path: Path, show: bool) -> Path:
        saved.append(figure)
        return path

    monkeypatch.setattr(comparison_plots, "save_figure", save)
    yield saved
    import matplotlib.pyplot as plt

    for figure in saved:
        plt.close(figure)


def check_readable(figure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no text lies on another one or beyond the edge, and that the legend covers no panel."""
    from matplotlib.text import Text

    drawn: list[Any] = []
    draw = Text.draw
    monkeypatch.setattr(Text, "draw", lambda text, renderer: (drawn.append(text), draw(text, renderer)))
    figure.canvas.draw()
    texts = {text: text.get_text() for text in drawn if text.get_text() and text.get_visible()}
    boxes = {f"{number} {name}": text.get_window_extent() for number, (text, name) in enumerate(texts.items())}
    assert len(boxes) > 10
    for name, box in boxes.items():
        assert figure.bbox.x0 - 1 <= box.x0, name
        assert box.x1 <= figure.bbox.x1 + 1, name
        assert figure.bbox.y0 - 1 <= box.y0, name
        assert box.y1 <= figure.bbox.y1 + 1, name
    for (name, box), (other, other_box) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(other_box), (name, other)
    for legend in figure.legends:
        assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_curves_of_many_groups_are_readable(num_envs: int, figures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, random = np.arange(0, 60000, 1000), np.random.default_rng(0)
    panels = {
        env: [GroupCurves(label, {seed: (x, random.normal(size=60)) for seed in range(3)}) for label in LABELS]
        for env in ENVS[:num_envs]
    }
    plot_curves(panels, "environment steps", "mean return of 100 episodes", Path("plot.png"))
    check_readable(figures[0], monkeypatch)


@pytest.mark.parametrize("labels", [["ppo", "a2c"], LABELS[2:]])
def test_comparisons_of_many_groups_are_readable(
    labels: list[str], figures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    comparisons = [
        Comparison(env, [GroupScores(label, dict(enumerate(random.normal(200, 10, 3)))) for label in labels])
        for env in ENVS[1:]
    ]
    plot_comparisons(comparisons, "mean return of the last 100 episodes", Path("compare.png"))
    check_readable(figures[0], monkeypatch)
