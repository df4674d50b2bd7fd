"""Finding and reading run directories, however the runs ended."""

import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from raceway.errors import ConfigError
from raceway.runs.reader import find_runs, is_running, read_run
from tests.runs.fake_runs import make_run, metrics_row


def test_a_run_directory_is_read(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", [1.5, 4.0], algorithm="a2c", seed=7, started="2026-01-01T01:00:00+0100"))
    assert (run.algorithm, run.env, run.seed, run.status) == ("a2c", "CartPole-v1", 7, "finished")
    assert run.started == 1767225600  # 2026-01-01, in UTC
    assert run.config["lr"] == 0.001
    assert [row["rollout/ep_rew_mean"] for row in run.metrics] == [1.5, 4.0]
    assert run.last == run.metrics[-1]
    assert (run.timesteps, run.mean_return) == (200, 4.0)
    assert run.summary is not None
    assert run.summary["stopped_by"] == "iterations"


def test_metrics_are_read_on_first_access(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", [1.0]))
    make_run(tmp_path / "other", [5.0, 6.0])
    (tmp_path / "other" / "metrics.jsonl").replace(tmp_path / "run" / "metrics.jsonl")
    assert len(run.metrics) == 2
    assert run.metrics is run.metrics


@pytest.mark.parametrize(
    ("stopped_by", "expected"),
    [
        ("iterations", "finished"),
        ("interrupt", "interrupted"),
        ("terminated", "interrupted"),
        ("error", "crashed"),
        (None, "killed"),
    ],
)
def test_the_status_of_an_ended_run(tmp_path: Path, stopped_by: str | None, expected: str) -> None:
    path = make_run(tmp_path / "run", stopped_by=stopped_by)
    assert read_run(path).status == expected
    (path / "lock").touch()  # left by a process that has ended
    assert read_run(path).status == expected


@pytest.mark.parametrize("stopped_by", [None, "interrupt"])
def test_a_run_whose_lock_is_held_is_running(tmp_path: Path, stopped_by: str | None) -> None:
    path = make_run(tmp_path / "run", [3.0, 9.0], stopped_by=stopped_by)
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = read_run(path)
        assert run.status == "running"
        assert run.mean_return == 9.0
    assert not is_running(path)
    assert (path / "lock").exists()


def test_a_summary_from_before_a_resume_is_ignored(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [3.0], stopped_by="interrupt")
    with (path / "metrics.jsonl").open("a") as lines:  # resumed, then killed
        lines.write(json.dumps(metrics_row(2, 5.0)) + "\n")
    run = read_run(path)
    assert (run.status, run.summary, run.mean_return) == ("killed", None, 5.0)


def test_is_running_leaves_the_lock_free(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / "lock").touch()
    assert not is_running(path)
    with (path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_running(path)


@pytest.mark.parametrize("line", [b'{"time/iterations": 3, "time/tot', b"{", b'{"a": 1}}\n', b"\x00\x00\x00\xff"])
def test_an_incomplete_last_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    path = make_run(tmp_path / "run", [1.0, 2.0], stopped_by=None)
    with (path / "metrics.jsonl").open("ab") as lines:
        lines.write(line)
    run = read_run(path)
    assert [row["time/iterations"] for row in run.metrics] == [1, 2]
    assert run.last["time/iterations"] == 2
    assert run.mean_return == 2.0


def test_a_complete_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1.0])
    with (path / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps(metrics_row(2, 5.0)))
    assert len(read_run(path).metrics) == 2
    assert read_run(path).timesteps == 200


def test_a_malformed_summary_is_named(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    for text in ("[1]", "{}", '{"env": 5}', "x"):
        (path / "summary.json").write_text(text)
        with pytest.raises(ConfigError, match=re.escape(str(path / "summary.json"))):
            read_run(path)


def test_metrics_that_are_not_numbers_are_ignored(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1.0], stopped_by=None, more=[{"rollout/ep_rew_mean": "abc"}])
    assert read_run(path).mean_return is None
    path = make_run(tmp_path / "other", [1.0], stopped_by=None, more=[{"time/total_timesteps": "abc"}])
    assert read_run(path).timesteps == 0


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", stopped_by=None)
    os.mkfifo(path / "lock")
    assert not is_running(path)
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    with pytest.raises(ConfigError, match=r"metrics.jsonl cannot be read: .*it is not a regular file"):
        _ = read_run(path).metrics


def test_a_very_long_last_row_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1.0], stopped_by=None)
    with (path / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps(metrics_row(2, 5.0) | {"returns": [1.25] * 60_000}) + "\n")  # 360 kB
    assert read_run(path).last["time/iterations"] == 2


def test_a_run_without_metrics(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", [], stopped_by=None))
    assert (run.metrics, run.last, run.timesteps, run.mean_return) == ([], {}, 0, None)


@pytest.mark.parametrize(
    ("env", "expected"),
    [("cartpole", "CartPole-v1"), ("CartPole", "CartPole-v1"), ("pong", "ALE/Pong-v5"),
     ("nowhere:My-v0", "nowhere:My-v0"), ("MyOwn", "MyOwn")],
)  # fmt: skip
def test_environment_names_are_resolved_without_a_summary(tmp_path: Path, env: str, expected: str) -> None:
    assert read_run(make_run(tmp_path / "run", env=env, stopped_by=None)).env == expected


@pytest.mark.parametrize(
    "text", ['{"schema": 1, "algor', "", '{"schema": 1}', "[]", '{"algorithm": "a", "config": {}}']
)
def test_a_corrupt_config_is_named(tmp_path: Path, text: str) -> None:
    path = make_run(tmp_path / "run")
    (path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(str(path / "config.json"))):
        find_runs([path])


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    about = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(about | {"schema": 99}))
    with pytest.raises(ConfigError, match="schema 99"):
        read_run(path)


def test_an_invalid_start_time_falls_back_to_the_file_time(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", started="yesterday")
    assert read_run(path).started == (path / "config.json").stat().st_mtime
    about = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(about | {"started": 5}))
    assert read_run(path).started == (path / "config.json").stat().st_mtime


def test_runs_below_a_directory_are_found(tmp_path: Path) -> None:
    single = make_run(tmp_path / "a-single", seed=1)
    seeds = [make_run(tmp_path / "many" / f"seed-{seed}", seed=seed) for seed in (2, 3)]
    (tmp_path / "many" / "summary.json").write_text("{}")
    make_run(tmp_path / ".hidden" / "run")
    make_run(single / "checkpoints" / "old")  # directories inside a run are not searched
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")  # unrelated to Raceway
    assert [run.path for run in find_runs([tmp_path])] == [single, *seeds]
    assert [run.path for run in find_runs([seeds[1], tmp_path / "many", single])] == [seeds[1], seeds[0], single]


def test_a_missing_path_gets_a_suggestion(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "ppo-CartPole-v1-0")
    with pytest.raises(ConfigError, match=re.escape(f"no run '{path}1'. Did you mean '{path}'?")):
        find_runs([f"{path}1"])
    with pytest.raises(ConfigError, match=re.escape(f"Did you mean '{tmp_path / 'runs'}'?")):
        find_runs([tmp_path / "run" / "ppo-CartPole-v1-0"])
    with pytest.raises(ConfigError, match=r"there is no run 'xyz'\. Pass"):
        find_runs(["xyz"])


def test_a_path_without_runs_is_an_error(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=re.escape(f"is a file. Pass the run directory: '{path}'")):
        find_runs([path / "metrics.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"'.*empty' contains no run"):
        find_runs([path, tmp_path / "empty"])
