"""`raceway list`: algorithms, and with --runs the runs in a directory."""

import fcntl
from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names
from raceway.commands import compare
from raceway.commands import list as list_command
from raceway.errors import ConfigError
from raceway.runs.comparison import group_runs, metric_curves
from tests.commands.conftest import Output
from tests.runs.fake_runs import make_run

pytestmark = pytest.mark.usefixtures("in_tmp_path")


def test_every_algorithm_is_listed(output: Output) -> None:
    head, *rows = output(list_command.run)
    assert head.split() == ["discrete", "multidiscrete", "box"]
    assert [row.split()[0] for row in rows] == algorithm_names()
    assert next(row for row in rows if row.startswith("dqn")).split()[:4] == ["dqn", "yes", "-", "-"]


def test_runs_are_listed_the_newest_last(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1767225600 + 7200.0)  # two hours into 2026
    make_run(Path("runs/a"), [1.0, 12.34], started="2026-01-01T01:59:30+0000", seed=3)
    make_run(Path("runs/b/seed-0"), [None], algorithm="a2c", stopped_by=None)
    with Path("runs/a/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        head, *rows = output(list_command.run, "--runs")
    assert head.split() == [
        "run",
        "algorithm",
        "env",
        "seed",
        "steps",
        "mean",
        "return",
        "(last",
        "100)",
        "fps",
        "status",
        "age",
    ]
    assert [row.split() for row in rows] == [
        ["runs/b/seed-0", "a2c", "CartPole-v1", "0", "100", "-", "200", "killed", "2", "h"],
        ["runs/a", "ppo", "CartPole-v1", "3", "200", "12.3", "200", "running", "30", "s"],
    ]


def test_a_crashed_run_is_listed_with_its_error(output: Output) -> None:
    path = make_run(Path("runs/a"), stopped_by="error", error="ValueError: no")
    _, row, note = output(list_command.run, "--runs")
    assert " crashed " in row
    assert note == f"{path} crashed: ValueError: no (see {path}/error.txt)"


def test_a_run_that_cannot_be_read_does_not_hide_the_others(output: Output) -> None:
    make_run(Path("mine/a"))
    make_run(Path("mine/b"))
    make_run(Path("mine/c"))
    Path("mine/a/config.json").write_text("{")
    Path("mine/c/metrics.jsonl").unlink()
    Path("mine/c/metrics.jsonl").symlink_to("/dev/zero")
    _, row, *errors = output(list_command.run, "--runs", "mine")
    assert row.startswith("mine/b ")
    assert errors[0].startswith("mine/a/config.json cannot be read")
    assert errors[1].startswith("mine/c/metrics.jsonl cannot be read")


def test_text_is_not_a_value_of_a_metric(output: Output) -> None:
    make_run(Path("runs/a"), [1.0, 2.0], stopped_by=None, more=[{}, {"rollout/ep_rew_mean": "abc", "time/fps": "x"}])
    make_run(Path("runs/b"), [5.0])
    with pytest.raises(ConfigError, match="none of these runs has a value"):
        compare.run(["runs/a"])
    assert len(output(list_command.run, "--runs")) == 3
    (group,), _ = group_runs(["runs/a"])
    assert metric_curves(group, "time/total_timesteps", "rollout/ep_rew_mean").seeds[0][1].tolist() == [1.0]


def test_a_missing_directory_is_an_error_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"no directory 'runs' here\. Train something first"):
        list_command.run(["--runs"])
    with pytest.raises(ConfigError, match="there is no run 'elsewhere'"):
        list_command.run(["--runs", "elsewhere"])
