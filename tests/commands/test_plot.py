"""`raceway plot`: the plot, the file it is saved in, and the errors."""

import sys
from pathlib import Path

import pytest

from raceway.commands import plot
from raceway.errors import ConfigError
from tests.commands.conftest import Output
from tests.commands.run_seeds import make_seeds, texts_in
from tests.runs.fake_runs import make_run

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_the_plot_of_one_run_is_saved_in_its_directory(output: Output) -> None:
    make_run(Path("runs/a"))
    assert output(plot.run, "runs/a") == ["Plot saved to runs/a/plot.png"]
    assert Path("runs/a/plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_of_several_runs_is_saved_in_the_working_directory(output: Output) -> None:
    make_seeds("runs", [3.0, 4.0])
    assert output(plot.run, "runs") == ["Plot saved to plot.png"]
    assert Path("plot.png").exists()


def test_labels_of_a_plot(output: Output) -> None:
    make_seeds("runs/slow", [3.0, 4.0], lr=0.1)
    make_seeds("runs/fast", [5.0, 6.0, 7.0], lr=0.2)
    make_run(Path("runs/other"), env="Acrobot-v1", algorithm="a2c")
    output(plot.run, "runs", "--out", "new/all.svg", "--x", "time")
    texts = texts_in("new/all.svg")
    for text in ("ppo lr=0.1 (2 seeds)", "ppo lr=0.2 (3 seeds)", "a2c (1 seed)", "CartPole-v1", "Acrobot-v1",
                 "interquartile range of the seeds", "seconds of training",
                 "mean return of the last 100 episodes"):  # fmt: skip
        assert text in texts


def test_a_plot_of_another_metric(output: Output) -> None:
    make_run(Path("run"), more=[{"eval/mean_reward": 3.0}, {}])
    output(plot.run, "run", "--y", "eval", "--out", "p.svg", "--x", "episodes")
    assert "mean return of evaluations" in texts_in("p.svg")
    output(plot.run, "run", "--y", "time/fps", "--out", "p.svg")
    assert "time/fps" in texts_in("p.svg")
    assert "environment steps" in texts_in("p.svg")


def test_environments_without_a_value_are_noted(output: Output) -> None:
    make_run(Path("runs/a"), [1.0, 2.0])
    make_run(Path("runs/b"), [None, None], env="Acrobot-v1")
    assert "Acrobot-v1, ppo: left out, it has no rollout/ep_rew_mean." in output(plot.run, "runs")


def test_show_without_a_screen(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raceway.ui.figures.has_screen", lambda: False)
    make_run(Path("run"))
    assert output(plot.run, "run", "--show")[-1] == "There is no screen to show it on."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--y", "ep_rew_mean"], "unknown metric 'ep_rew_mean'. Did you mean 'rollout/ep_rew_mean'?"),
        (["run", "--y", "eval"], "Runs trained with --eval-every have it."),
        (["run", "--out", "picture.txt"], r"cannot be saved as 'picture.txt'. Use one of .png, .svg"),
        (["run", "--out", "run/config.json/p.png"], "cannot be saved as"),
        (["ran"], "Did you mean 'run'?"),
        (["empty"], "none of these runs has any metrics yet"),
        (["begun"], "none of these runs has a value of rollout/ep_rew_mean yet"),
    ],
)
def test_mistakes_are_errors(arguments: list[str], message: str) -> None:
    make_run(Path("run"))
    make_run(Path("empty"), [], stopped_by=None)
    make_run(Path("begun"), [None], stopped_by=None)
    with pytest.raises(ConfigError) as caught:
        plot.run(arguments)
    assert message in str(caught.value)


def test_a_plot_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(Path("run"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        plot.run(["run"])
