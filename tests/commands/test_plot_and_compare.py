"""`raceway plot`, `raceway compare` and `raceway list --runs`: what they print, draw and refuse."""

import fcntl
import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.commands.looking import compare, list_runs, plot
from raceway.errors import ConfigError
from raceway.rl import bootstrap_interval
from raceway.runs.comparison import compare_groups, curves_of, group_runs
from raceway.ui.comparison_plots import _thinned
from tests.runs.run_folders import make_run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Run a command that must go well, and return the lines that it printed."""

    def run(command: Callable[[list[str]], int], *arguments: str) -> list[str]:
        assert command(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    return run


def make_seeds(folder: str, finals: list[float], **settings: Any) -> Path:
    for seed, last in enumerate(finals):
        make_run(Path(folder) / f"seed-{seed}", [0.0, last], seed=seed, **settings)
    return Path(folder)


def texts_in(path: str) -> list[str]:
    """Return the texts in a drawing. matplotlib draws letters, and says in comments which."""
    return [html.unescape(text) for text in re.findall(r"<!-- (.*?) -->", Path(path).read_text())]


def labels(*paths: str) -> list[tuple[str, int]]:
    return [(group.label, len(group.runs)) for group in group_runs(paths)[0]]


# Groups


def test_runs_that_differ_in_seed_and_place_are_one_group() -> None:
    make_run(Path("runs/a"), seed=0, engine="inline", num_workers="auto", run_dir="a")
    make_run(Path("runs/b"), seed=1, engine="ray", num_workers=4, address="auto", save_every=100, eval_every=5, keep=3)
    make_run(Path("runs/c"), seed=2, env="CartPole", stopped_by=None)
    assert labels("runs") == [("ppo", 3)]


def test_groups_are_named_by_what_differs() -> None:
    make_run(Path("runs/a"), lr=0.1)
    make_run(Path("runs/b"), lr=0.2, hidden=[8])
    make_run(Path("runs/c"), algorithm="a2c", lr=0.3, hidden=[16])
    assert labels("runs") == [("ppo hidden=64,64 lr=0.1", 1), ("ppo hidden=8 lr=0.2", 1), ("a2c", 1)]


def test_many_differences_are_counted() -> None:
    make_run(Path("runs/a"), a=1, b=1, c=1, d=1, e=1, f=1)
    make_run(Path("runs/b"), a=2, b=2, c=2, d=2, e=2, f=2)
    assert labels("runs") == [("ppo a=1 b=1 c=1 d=1 and 2 others", 1), ("ppo a=2 b=2 c=2 d=2 and 2 others", 1)]


def test_no_two_groups_have_one_name(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"), a=1, b=1, c=1, d=1, e=1)
    make_run(Path("runs/b"), a=1, b=1, c=1, d=1, e=2)
    make_run(Path("runs/c"), a=2, b=2, c=2, d=2, e=2)
    make_run(Path("runs/d"), a=1, b=1, c=1, d=1, e="2")  # which is written as 2
    named = [label for label, _ in labels("runs")]
    assert named == [
        "ppo a=1 b=1 c=1 d=1 e=1", "ppo a=1 b=1 c=1 d=1 e=2", "ppo a=2 b=2 c=2 d=2 and 1 other",
        "ppo a=1 b=1 c=1 d=1 e=2 (2)",
    ]  # fmt: skip
    (line,) = say(compare, "runs", "--json")
    assert list(json.loads(line)["envs"]["CartPole-v1"]["groups"]) == named


def test_a_text_is_no_value_of_a_metric(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"), [1.0, 2.0], stopped_by=None, more=[{}, {"rollout/ep_rew_mean": "abc", "time/fps": "x"}])
    make_run(Path("runs/b"), [5.0])
    with pytest.raises(ConfigError, match="none of these runs has a value"):
        compare(["runs/a"])
    assert len(say(list_runs, "runs")) == 3
    (group,), _ = group_runs(["runs/a"])
    assert curves_of(group, "time/total_timesteps", "rollout/ep_rew_mean").seeds[0][1].tolist() == [1.0]


def test_a_setting_that_older_runs_did_not_have_is_no_difference_if_it_is_unset() -> None:
    make_run(Path("runs/a"), seed=0)
    make_run(Path("runs/b"), seed=1, clip=None)
    assert labels("runs") == [("ppo", 2)]


def test_what_differs_is_looked_for_within_an_environment() -> None:
    make_run(Path("runs/a"), lr=0.1)
    make_run(Path("runs/b"), lr=0.2, env="Acrobot-v1")
    assert labels("runs") == [("ppo", 1), ("ppo", 1)]


def test_folders_are_kept_apart() -> None:
    make_seeds("before", [1.0, 2.0])
    make_seeds("after", [1.0, 2.0, 3.0])
    make_run(Path("alone"), seed=9)
    assert labels("before", "after") == [("ppo in before", 2), ("ppo in after", 3)]
    assert labels("before", "alone") == [("ppo", 3)]
    assert labels("before", "after", "alone") == [("ppo in before", 2), ("ppo in after", 3), ("ppo", 1)]


def test_of_two_runs_of_a_seed_the_newest_counts() -> None:
    make_run(Path("runs/a-newest"), [7.0], started="2026-02-01T00:00:00+0000")
    make_run(Path("runs/b-older"), [1.0])
    (group,), notes = group_runs(["runs"])
    assert [run.mean_return for run in group.runs] == [7.0]
    assert notes == ["ppo, seed 0: there are several runs of it; the newest counts, runs/a-newest."]


def test_runs_that_did_not_finish_are_told_of() -> None:
    make_run(Path("runs/a"), stopped_by="interrupt")
    make_run(Path("runs/b"), seed=1)
    assert group_runs(["runs"])[1] == ["ppo, seed 0: interrupted, after 200 steps."]


def test_curves_leave_out_what_is_not_there() -> None:
    make_run(Path("runs/a"), [None, 2.0, 4.0])
    make_run(Path("runs/b"), [None, None], seed=1)
    (group,), _ = group_runs(["runs"])
    curves = curves_of(group, "time/episodes", "rollout/ep_rew_mean")
    assert [(seed, x.tolist(), y.tolist()) for seed, (x, y) in curves.seeds.items()] == [(0, [20, 30], [2, 4])]


def test_long_curves_are_thinned_by_means() -> None:
    x, y = _thinned(np.arange(10_000.0), np.tile([0.0, 2.0], 5000))
    assert len(x) == 1000
    np.testing.assert_allclose(y, 1.0)
    np.testing.assert_allclose(x, 4.5 + 10 * np.arange(1000))


# plot


def test_the_plot_of_one_run_is_put_into_its_folder(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"))
    assert say(plot, "runs/a") == ["Plot saved to runs/a/plot.png"]
    assert Path("runs/a/plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_of_several_is_put_here(say: Callable[..., list[str]]) -> None:
    make_seeds("runs", [3.0, 4.0])
    assert say(plot, "runs") == ["Plot saved to plot.png"]
    assert Path("plot.png").exists()


def test_a_plot_says_what_is_in_it(say: Callable[..., list[str]]) -> None:
    make_seeds("runs/slow", [3.0, 4.0], lr=0.1)
    make_seeds("runs/fast", [5.0, 6.0, 7.0], lr=0.2)
    make_run(Path("runs/other"), env="Acrobot-v1", algorithm="a2c")
    say(plot, "runs", "--out", "new/all.svg", "--x", "time")
    found = texts_in("new/all.svg")
    for text in ("ppo lr=0.1 (2 seeds)", "ppo lr=0.2 (3 seeds)", "a2c (1 seed)", "CartPole-v1", "Acrobot-v1",
                 "middle half of the seeds", "seconds of training", "mean return of 100 episodes"):  # fmt: skip
        assert text in found


def test_a_plot_of_another_metric(say: Callable[..., list[str]]) -> None:
    make_run(Path("run"), more=[{"eval/mean_reward": 3.0}, {}])
    say(plot, "run", "--y", "eval", "--out", "p.svg", "--x", "episodes")
    assert "mean return when evaluated" in texts_in("p.svg")
    say(plot, "run", "--y", "time/fps", "--out", "p.svg")
    assert "time/fps" in texts_in("p.svg")


def test_without_a_screen_showing_is_refused_with_a_word(
    say: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.ui.plots.has_screen", lambda: False)
    make_run(Path("run"))
    assert say(plot, "run", "--show")[-1] == "There is no screen to show it on."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--y", "ep_rew_mean"], "unknown metric 'ep_rew_mean'. Did you mean 'rollout/ep_rew_mean'?"),
        (["run", "--y", "eval"], "Runs that were trained with --eval-every have it."),
        (["run", "--out", "picture.txt"], r"cannot be saved as 'picture.txt'. End the name in .png, .svg"),
        (["run", "--out", "run/config.json/p.png"], "cannot be saved as"),
        (["ran"], "Did you mean 'run'?"),
        (["empty"], "none of these runs has any metrics yet"),
        (["begun"], "none of these runs has a value of rollout/ep_rew_mean yet"),
    ],
)
def test_mistakes_in_plotting_are_told(arguments: list[str], text: str) -> None:
    make_run(Path("run"))
    make_run(Path("empty"), [], stopped_by=None)
    make_run(Path("begun"), [None], stopped_by=None)
    with pytest.raises(ConfigError) as caught:
        plot(arguments)
    assert text in str(caught.value)


def test_a_plot_without_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(Path("run"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        plot(["run"])


# compare


def test_groups_are_compared(say: Callable[..., list[str]]) -> None:
    make_seeds("runs/ppo", [10.0, 20.0, 30.0, 40.0, 50.0])
    make_seeds("runs/a2c", [10.0, 20.0], algorithm="a2c")
    lines = say(compare, "runs/ppo", "runs/a2c")
    assert lines[0] == "CartPole-v1: mean return of the last 100 episodes"
    assert lines[1].split() == ["seeds", "mean", "IQM", "95", "%", "interval"]
    low, high = bootstrap_interval([10.0, 20.0, 30.0, 40.0, 50.0])
    assert lines[2].split() == ["ppo", "5", "30.0", "30.0", f"{low:.1f}", "to", f"{high:.1f}"]
    assert lines[3].split() == ["a2c", "2", "15.0", "15.0", "10.0", "to", "20.0"]
    # Of ten pairs 7 are higher and 2 the same: (7 + 2 / 2) / 10.
    assert next(line for line in lines if "ppo > a2c" in line).split()[3] == "0.80"
    assert "Fewer than 5 seeds, so that intervals come out too narrow: a2c." in "\n".join(lines)
    assert lines[-1] == "Picture saved to compare.png"
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")


def test_environments_are_compared_by_themselves(say: Callable[..., list[str]]) -> None:
    make_seeds("runs/a", [1.0, 2.0])
    make_seeds("runs/b", [3.0, 4.0], env="Acrobot-v1")
    make_seeds("runs/c", [5.0, 6.0], env="Acrobot-v1", algorithm="a2c")
    found = json.loads(say(compare, "runs", "--json", "--out", "c.svg")[0])
    assert found["envs"].keys() == {"CartPole-v1", "Acrobot-v1"}
    assert found["envs"]["CartPole-v1"]["pairs"] == []
    assert found["envs"]["Acrobot-v1"]["pairs"] == [
        {"x": "a2c", "y": "ppo", "probability_of_improvement": 1.0, "interval": [1.0, 1.0]}
    ]
    assert found["envs"]["Acrobot-v1"]["groups"]["a2c"] == {
        "seeds": [0, 1], "scores": [5.0, 6.0], "mean": 5.5, "iqm": 5.5, "interval": [5.0, 6.0],
    }  # fmt: skip
    assert found["picture"] == "c.svg"
    for text in ("CartPole-v1", "Acrobot-v1", "Probability of improvement", "a2c > ppo"):
        assert text in texts_in("c.svg")


def test_of_one_seed_no_interval_is_given(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"), [5.0])
    make_seeds("runs/b", [1.0, 2.0], algorithm="a2c")
    lines = say(compare, "runs")
    assert next(line for line in lines if line.startswith("  ppo ")).split() == ["ppo", "1", "5.0", "5.0", "none"]
    assert next(line for line in lines if "ppo > a2c" in line).split()[-2:] == ["1.00", "none"]
    assert "  One seed only, so that no interval can be given: ppo." in lines


def test_an_environment_in_which_nothing_has_ended_is_told_of(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"), [1.0, 2.0])
    make_run(Path("runs/b"), [None, None], env="Acrobot-v1")
    lines = say(compare, "runs")
    assert "Acrobot-v1: mean return of the last 100 episodes" in lines
    assert "  ppo, seed 0: left out, it has no rollout/ep_rew_mean." in lines
    assert "Acrobot-v1, ppo: left out, it has no rollout/ep_rew_mean." in say(plot, "runs")


def test_evaluations_can_be_compared(say: Callable[..., list[str]]) -> None:
    rows = [{"eval/mean_reward": 3.0}, {"eval/mean_reward": 8.0}, {}]
    make_run(Path("runs/a"), [1.0, 1.0, 1.0], more=rows)
    make_run(Path("runs/b"), [1.0], seed=1)
    found = json.loads(say(compare, "runs", "--json", "--metric", "eval")[0])
    assert found["metric"] == "eval/mean_reward"
    assert found["envs"]["CartPole-v1"]["groups"]["ppo"]["scores"] == [8.0]
    assert "ppo, seed 1: left out, it has no eval/mean_reward." in found["notes"]


def test_a_run_without_a_score_is_left_out(say: Callable[..., list[str]]) -> None:
    make_run(Path("runs/a"), [None])
    make_run(Path("runs/b"), [4.0], seed=1)
    assert "  ppo, seed 0: left out, it has no rollout/ep_rew_mean." in say(compare, "runs")
    with pytest.raises(ConfigError, match="none of these runs has a value"):
        compare(["runs/a"])


def test_an_unknown_metric_is_guessed() -> None:
    make_run(Path("run"))
    with pytest.raises(ConfigError, match="Did you mean 'time/fps'"):
        compare(["run", "--metric", "fps"])


def test_without_matplotlib_there_is_still_a_table(
    say: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("run"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert say(compare, "run")[-1] == "(no picture: pip install 'raceway[plot]')"
    assert not Path("compare.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        compare(["run", "--out", "c.png"])


def test_the_higher_is_named_first() -> None:
    for name, score in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        make_run(Path("runs") / name, [score], algorithm=name)
    (found,) = compare_groups(group_runs(["runs"])[0])
    assert [pair.label for pair in found.pairs] == ["b > c", "b > a", "c > a"]


# list


def test_runs_are_listed_the_newest_last(say: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1767225600 + 7200.0)  # two hours into 2026
    make_run(Path("runs/a"), [1.0, 12.34], started="2026-01-01T01:59:30+0000", seed=3)
    make_run(Path("runs/b/seed-0"), [None], algorithm="a2c", stopped_by=None)
    with Path("runs/a/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        head, *rows = say(list_runs)
    assert head.split() == ["folder", "algorithm", "env", "seed", "steps", "mean", "return", "fps", "status", "age"]
    assert [row.split() for row in rows] == [
        ["runs/b/seed-0", "a2c", "CartPole-v1", "0", "100", "-", "200", "stopped", "2", "h"],
        ["runs/a", "ppo", "CartPole-v1", "3", "200", "12.3", "200", "running", "30", "s"],
    ]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(say: Callable[..., list[str]]) -> None:
    make_run(Path("mine/a"))
    make_run(Path("mine/b"))
    make_run(Path("mine/c"))
    Path("mine/a/config.json").write_text("{")
    Path("mine/c/metrics.jsonl").unlink()
    Path("mine/c/metrics.jsonl").symlink_to("/dev/zero")
    _, row, *errors = say(list_runs, "mine")
    assert row.startswith("mine/b ")
    assert errors[0].startswith("mine/a/config.json cannot be read")
    assert errors[1].startswith("mine/c/metrics.jsonl cannot be read")


def test_listing_nothing_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no folder 'runs' here\. Train something first"):
        list_runs([])
    with pytest.raises(ConfigError, match="there is no run 'elsewhere'"):
        list_runs(["elsewhere"])
