"""The run directory: no writes outside it, complete lines only, one process at a time."""

import fcntl
import json
import os
import random
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raceway.errors import ConfigError
from raceway.runs import directory, metrics_file, provenance
from raceway.runs.config_file import METRICS_SCHEMA, read_config
from raceway.runs.directory import RunDirectory
from raceway.runs.metrics_file import read_metrics
from raceway.runs.reader import is_running
from tests.runs.fake_runs import metrics_row
from tests.runs.test_config_file import CURRENT


def write_config(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CURRENT))
    (path / "metrics.jsonl").touch()
    return path


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_a_file_that_is_a_symlink_is_refused(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    run = write_config(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    with pytest.raises(ConfigError, match=r"cannot be resumed: .*it is a symbolic link"):
        RunDirectory.reopen(run)
    (run / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"a run cannot be saved in .*it is a symbolic link"):
        RunDirectory.new(run, "run")
    assert precious.read_text() == "precious\n"


@pytest.mark.parametrize("name", ["config.new", "summary.new", "error.new"])
def test_a_temporary_file_does_not_follow_a_symlink(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    run = write_config(tmp_path / "run")
    (run / name).symlink_to(precious)
    directory = RunDirectory.reopen(run)
    directory.add(metrics_row(1, 1.0))
    directory.truncate_metrics(1)
    directory.write("config.json", CURRENT)
    directory.write("summary.json", {})
    directory.write_error("Traceback")
    directory.close()
    assert precious.read_text() == "precious\n"
    assert not list(run.glob("*.new"))
    assert len(read_metrics(run)) == 1


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path, name: str) -> None:
    run = write_config(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    with pytest.raises(ConfigError, match="cannot be resumed"):
        RunDirectory.reopen(run)
    with pytest.raises(ConfigError, match="cannot be resumed"):
        RunDirectory.reopen(tmp_path / "gone")


@pytest.mark.parametrize("trial", range(10))
def test_a_full_disk_leaves_no_incomplete_line(tmp_path: Path, trial: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(trial)
    max_length = rng.choice([200, 4000, 20_000])

    def row(number: int) -> dict[str, Any]:
        return metrics_row(number, 1.0) | {"text": "x" * rng.randrange(max_length)}

    run = RunDirectory.new(tmp_path / "run", "run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(65):
        if number == 5:
            limit = run.metrics_path.stat().st_size + rng.randrange(3 * max_length)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        if number == 60:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        run.add(row(number))
    run.close()
    iterations = [row["time/iterations"] for row in read_metrics(run.path)]
    assert iterations[:5] == [0, 1, 2, 3, 4]
    assert iterations[-5:] == [60, 61, 62, 63, 64]
    assert "are not rows" not in caplog.text
    assert "File too large" in caplog.text


def test_a_run_that_started_and_ended_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_then_lock(path: Path) -> Any:
        write_config(path)
        (path / "metrics.jsonl").write_text(json.dumps(metrics_row(1, 1.0)) + "\n")
        return original(path)

    original = directory._lock
    monkeypatch.setattr(directory, "_lock", write_then_lock)
    with pytest.raises(ConfigError, match=r"there is already a run in "):
        RunDirectory.new(tmp_path / "run", "run")
    assert len(read_metrics(tmp_path / "run")) == 1
    monkeypatch.undo()
    RunDirectory.reopen(tmp_path / "run").close()  # its lock was released


def test_discard_removes_the_files_of_the_run(tmp_path: Path) -> None:
    run = write_config(tmp_path / "run")
    for name in ("events.out.tfevents.1.host", "events.out.tfevents.2.host", "summary.json", "plan.svg", "mine.txt"):
        (run / name).touch()
    identity = read_config(run)["algorithm"], read_config(run)["env"]["name"]
    RunDirectory.discard(run, *identity)
    assert sorted(os.listdir(run)) == ["lock", "mine.txt"]
    RunDirectory.discard(run, *identity)  # nothing is left
    RunDirectory.new(run, "run").close()


def test_a_function_that_replaces_a_name_is_recorded(tmp_path: Path) -> None:
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    run.describe_resume(CURRENT["config"], 100)
    assert read_config(run.path)["importable"] == CURRENT["importable"]
    run.describe_resume(CURRENT["config"] | {"env": "cart"}, 200)
    about = read_config(run.path)
    assert about["importable"] == CURRENT["importable"] | {"env": False}
    assert about["env"]["name"] == about["config"]["env"] == "cart"
    run.close()


def test_metrics_are_truncated_on_a_full_disk(tmp_path: Path) -> None:
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    for number in (1, 2, 3):
        run.add(metrics_row(number, 1.0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        run.truncate_metrics(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.add(metrics_row(3, 2.0))
    run.close()
    assert [row["rollout/ep_rew_mean"] for row in read_metrics(run.path)] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("kept", [0, 1, 700, 2000])
@pytest.mark.parametrize("end", [b"", b'{"time/iterations": 2001, "ti', b"\0" * 300_000])
def test_truncating_reads_only_the_end_of_the_metrics(tmp_path: Path, kept: int, end: bytes) -> None:
    """Whatever is after the last row, and however many rows there are."""
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    lines = [json.dumps(metrics_row(number, 1.0)).encode() + b"\n" for number in range(1, 2001)]
    run.metrics_path.write_bytes(b"".join(lines) + end)
    run.truncate_metrics(kept)
    assert run.metrics_path.read_bytes() == b"".join(lines[:kept])
    run.add(metrics_row(kept + 1, 2.0))
    run.replace_last_row(metrics_row(kept + 1, 3.0))
    run.close()
    rows = read_metrics(run.path)
    assert [row["time/iterations"] for row in rows] == list(range(1, kept + 2))
    assert rows[-1]["rollout/ep_rew_mean"] == 3.0


def test_a_row_that_cannot_be_replaced_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    for number in (1, 2):
        run.add(metrics_row(number, 1.0))
    content, before = run.metrics_path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 5, before[1]))  # like a full disk
    try:
        run.replace_last_row(metrics_row(2, 1.0) | {"eval/mean_reward": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot be written to" in caplog.text
    run.close()
    assert run.metrics_path.read_bytes() == content


def test_a_row_whose_line_break_is_missing_is_kept(tmp_path: Path) -> None:
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    run.metrics_path.write_text(json.dumps(metrics_row(1, 1.0)))
    run.truncate_metrics(5)
    run.add(metrics_row(2, 2.0))
    run.close()
    assert [row["time/iterations"] for row in read_metrics(run.path)] == [1, 2]


def test_metrics_of_an_older_version_are_migrated_before_they_are_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.reopen(write_config(tmp_path / "run"))
    for number in (1, 2, 3):
        run.add(metrics_row(number, 1.0))
    for module in (directory, metrics_file):
        monkeypatch.setattr(module, "METRICS_SCHEMA", METRICS_SCHEMA + 1)
    monkeypatch.setattr(metrics_file, "METRICS_MIGRATIONS", {METRICS_SCHEMA: lambda row: {**row, "new": 1}})
    run.truncate_metrics(2)
    run.close()
    rows = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    assert [(row["time/iterations"], row["new"]) for row in rows] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("existed", [False, True])
def test_a_run_that_failed_to_start_leaves_nothing(tmp_path: Path, existed: bool) -> None:
    path = tmp_path / "runs" / "new"
    if existed:
        path.mkdir(parents=True)
        (path / "mine.txt").touch()
    run = RunDirectory.new(path, "run")
    run.describe("ppo", CURRENT["config"])
    for name in ("plan.svg", "summary.json", "events.out.tfevents.1.host", "checkpoints/000/state.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    run.remove()
    assert [entry.name for entry in tmp_path.rglob("*")] == (["runs", "new", "mine.txt"] if existed else [])


def test_another_run_or_an_invalid_one_is_not_discarded(tmp_path: Path) -> None:
    run = write_config(tmp_path / "run")
    before = (run / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"is .* on .*, not maml on point. Choose another --run-dir"):
        RunDirectory.discard(run, "maml", "point")
    assert (run / "config.json").read_text() == before
    (run / "config.json").write_text('{"my": 1}')
    with pytest.raises(ConfigError, match="corrupt"):
        RunDirectory.discard(run, "maml", "point")
    assert (run / "config.json").read_text() == '{"my": 1}'


def test_unrelated_metrics_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl exists already"):
        RunDirectory.new(tmp_path, "run")
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n"


def test_the_git_state_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert provenance.git_state() is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    Path("program.py").write_text("first")
    for command in (["init", "-q"], ["add", "program.py"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    run = RunDirectory.new("run", "run")
    run.describe("ppo", CURRENT["config"])
    run.close()
    git = json.loads(Path("run/config.json").read_text())["git"]
    assert len(git["commit"]) == 40
    assert git["changed"] is False
    Path("program.py").write_text("second")
    assert provenance.git_state() == {**git, "changed": True}


def test_a_run_that_failed_to_start_is_locked_until_its_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, locked = RunDirectory.new(tmp_path / "run", "run"), list[bool]()

    def remove_tree(path: Path) -> None:
        locked.append(is_running(run.path))
        real_remove_tree(path)

    real_remove_tree = directory.remove_tree
    monkeypatch.setattr(directory, "remove_tree", remove_tree)
    run.remove()
    assert locked
    assert all(locked)
    assert not run.path.exists()


def test_a_lock_that_was_removed_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").touch()
    failing, flock = RunDirectory.new(tmp_path, "run"), fcntl.flock

    def flock_after_the_other_run_failed(*arguments: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        failing.remove()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", flock_after_the_other_run_failed)
    run = RunDirectory.new(tmp_path, "run")
    with pytest.raises(ConfigError, match="is being trained by"):
        RunDirectory.new(tmp_path, "run")
    run.close()
