"""The folder of a run: it writes nowhere else, whole lines only, and for one process at a time."""

import json
import os
import random
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raceway.errors import ConfigError
from raceway.runs import directory
from raceway.runs.directory import RunDirectory, read_config, read_metrics
from tests.runs.run_folders import row_of
from tests.runs.test_schema import NOW


def described(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(NOW))
    (path / "metrics.jsonl").touch()
    return path


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_a_file_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    run = described(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    with pytest.raises(ConfigError, match=r"cannot go on there: .*it is a link"):
        RunDirectory.again(run)
    (run / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no run can be kept in .*it is a link"):
        RunDirectory.new(run, "run")
    assert precious.read_text() == "precious\n"


@pytest.mark.parametrize("name", ["metrics.new", "config.new", "summary.new"])
def test_a_file_that_is_written_aside_follows_no_link(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    run = described(tmp_path / "run")
    (run / name).symlink_to(precious)
    made = RunDirectory.again(run)
    made.add(row_of(1, 1.0))
    made.rewind(1)
    made.write("config.json", NOW)
    made.write("summary.json", {})
    made.close()
    assert precious.read_text() == "precious\n"
    assert not list(run.glob("*.new"))
    assert len(read_metrics(run)) == 1


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_what_cannot_be_opened_is_told(tmp_path: Path, name: str) -> None:
    run = described(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    with pytest.raises(ConfigError, match="cannot go on there"):
        RunDirectory.again(run)
    with pytest.raises(ConfigError, match="cannot go on there"):
        RunDirectory.again(tmp_path / "gone")


@pytest.mark.parametrize("trial", range(10))
def test_a_full_disk_tears_no_line(tmp_path: Path, trial: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(trial)
    most = chance.choice([200, 4000, 20_000])

    def row(number: int) -> dict[str, Any]:
        return row_of(number, 1.0) | {"text": "x" * chance.randrange(most)}

    run = RunDirectory.new(tmp_path / "run", "run")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(65):
        if number == 5:
            room = run.metrics_path.stat().st_size + chance.randrange(3 * most)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        if number == 60:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        run.add(row(number))
    run.close()
    found = [row["time/iterations"] for row in read_metrics(run.path)]
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[-5:] == [60, 61, 62, 63, 64]
    assert "are no rows" not in caplog.text
    assert "File too large" in caplog.text


def test_a_run_that_began_and_ended_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(folder: Path) -> Any:
        described(folder)
        (folder / "metrics.jsonl").write_text(json.dumps(row_of(1, 1.0)) + "\n")
        return original(folder)

    original = directory._locked
    monkeypatch.setattr(directory, "_locked", locked)
    with pytest.raises(ConfigError, match=r"there is a run in .* already"):
        RunDirectory.new(tmp_path / "run", "run")
    assert len(read_metrics(tmp_path / "run")) == 1
    monkeypatch.undo()
    RunDirectory.again(tmp_path / "run").close()  # its lock was let go of


def test_what_is_begun_anew_has_nothing_of_the_old(tmp_path: Path) -> None:
    run = described(tmp_path / "run")
    for name in ("events.out.tfevents.1.host", "events.out.tfevents.2.host", "summary.json", "plan.svg", "mine.txt"):
        (run / name).touch()
    of = read_config(run)["algorithm"], read_config(run)["env"]["name"]
    RunDirectory.discard(run, *of)
    assert sorted(os.listdir(run)) == ["lock", "mine.txt"]
    RunDirectory.discard(run, *of)  # of nothing
    RunDirectory.new(run, "run").close()


def test_a_function_that_takes_the_place_of_a_name_is_remembered(tmp_path: Path) -> None:
    made = RunDirectory.again(described(tmp_path / "run"))
    made.describe_again(NOW["config"], 100)
    assert read_config(made.path)["importable"] == NOW["importable"]
    made.describe_again(NOW["config"] | {"env": "cart"}, 200)
    about = read_config(made.path)
    assert about["importable"] == NOW["importable"] | {"env": False}
    assert about["env"]["name"] == about["config"]["env"] == "cart"
    made.close()


def test_a_full_disk_spoils_no_metrics_that_are_written_anew(tmp_path: Path) -> None:
    run = RunDirectory.again(described(tmp_path / "run"))
    for number in (1, 2, 3):
        run.add(row_of(number, 1.0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"metrics.jsonl cannot be written anew: .*Make room"):
            run.rewind(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(read_metrics(run.path)) == 3
    run.rewind(2)
    run.add(row_of(3, 2.0))
    run.close()
    assert [row["rollout/ep_rew_mean"] for row in read_metrics(run.path)] == [1.0, 1.0, 2.0]


def test_what_is_of_another_run_or_of_none_is_not_discarded(tmp_path: Path) -> None:
    run = described(tmp_path / "run")
    before = (run / "config.json").read_text()
    with pytest.raises(ConfigError, match=r"is of .* on .*, not of maml on point. Choose another --run-dir"):
        RunDirectory.discard(run, "maml", "point")
    assert (run / "config.json").read_text() == before
    (run / "config.json").write_text('{"my": 1}')
    with pytest.raises(ConfigError, match="corrupt"):
        RunDirectory.discard(run, "maml", "point")
    assert (run / "config.json").read_text() == '{"my": 1}'


def test_metrics_of_somebody_else_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl is there already"):
        RunDirectory.new(tmp_path, "run")
    assert (tmp_path / "metrics.jsonl").read_text() == "mine\n"


def test_the_state_of_git_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory.git_state() is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    Path("program.py").write_text("first")
    for command in (["init", "-q"], ["add", "program.py"], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], check=True)
    made = RunDirectory.new("run", "run")
    made.describe("ppo", NOW["config"])
    made.close()
    git = json.loads(Path("run/config.json").read_text())["git"]
    assert len(git["commit"]) == 40
    assert git["changed"] is False
    Path("program.py").write_text("second")
    assert directory.git_state() == {**git, "changed": True}
