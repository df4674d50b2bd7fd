"""Saving that goes wrong: kills at every system call, full and broken disks, two runs in one folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raceway.checkpoints import blocks
from raceway.checkpoints.store import Checkpoints
from raceway.errors import ConfigError
from raceway.runs.directory import RunDirectory
from tests.checkpoints.saving_program import save, state_of
from tests.checkpoints.test_encoding import same

PROGRAM = Path(__file__).with_name("saving_program.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    made = [str(part) for part in command]
    return subprocess.run(made, capture_output=True, text=True, env=ENVIRONMENT, check=check, cwd=ROOT, timeout=120)


def traced(log: Path, *options: str, way: str, folder: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    if shutil.which("strace") is None:
        pytest.fail("this test needs strace: run scripts/test-tools")
    trace = ("strace", "-f", "-qq", "-o", log, *options)
    return run(*trace, sys.executable, PROGRAM, way, folder, check=check)


def calls_of(way: str, call: str, folder: Path) -> list[tuple[int, str]]:
    """Return the calls of one kind between the two marks of a program: their numbers from its start, and their text."""
    log = folder.parent / "calls"
    traced(log, "-e", f"trace={call},getppid", "-s", "0", way=way, folder=folder)
    number, inside, found = 0, False, []
    for line in log.read_text().splitlines():
        text = line.split(maxsplit=1)[1]
        if text.startswith("getppid("):
            inside = not inside
        elif text.startswith(f"{call}("):
            number += 1
            if inside:
                found.append((number, text))
    assert not inside
    assert found, f"there is no {call} in it"
    return found


def assert_tidy(folder: Path, steps: int) -> None:
    """Check that a folder holds one checkpoint and its blocks, and nothing aside."""
    assert sorted(os.listdir(folder)) == [f"{steps:012d}", "blocks"]
    needed = {name for names in Checkpoints(folder).find().manifest["blocks"].values() for name in names}
    assert {path.name for path in (folder / "blocks").iterdir()} == {f"{name}.npy" for name in needed}
    assert {path.name for path in (folder / f"{steps:012d}").iterdir()} == {
        "manifest.json", "policy.safetensors", "state.json", "state.safetensors",
    }  # fmt: skip


@pytest.mark.strace
@pytest.mark.parametrize(
    ("way", "call"),
    [
        *(("next", call) for call in ("mkdir", "openat", "write", "fsync", "rename", "unlink", "unlinkat", "rmdir")),
        *(("again", call) for call in ("mkdir", "rename", "unlinkat", "rmdir")),
    ],
)
def test_killed_at_every_call(tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, call: str) -> None:
    folder, before = tmp_path / "attacked", tmp_path / "before"
    save(str(before), 10)
    shutil.copytree(before, folder)
    seen = set()
    for number, text in calls_of(way, call, folder):
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        inject = f"inject={call}:signal=KILL:when={number}"
        done = traced(Path("/dev/null"), "-e", f"trace={call}", "-e", inject, way=way, folder=folder, check=False)
        assert done.returncode == -signal.SIGKILL, (text, done.stderr)
        _, state = Checkpoints(folder).newest_good()
        seen.add(state["flow"][0])
        assert same(state, state_of(state["flow"][0])), text
        assert state["flow"][0] in (10, 20), text
        assert not caplog.records, text  # none was there that could not be read
        save(str(folder), 30)
        assert same(Checkpoints(folder).newest_good()[1], state_of(30)), text
        assert_tidy(folder, 30)
    expected = {"mkdir": {10}, "write": {10}, "unlinkat": {20}, "rmdir": {20}, "unlink": {20}}.get(call, {10, 20})
    assert seen == ({10} if (way, call) == ("again", "rename") else expected)  # it is killed before the call


@pytest.mark.strace
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", "ENOSPC"), ("fsync", "EIO"), ("rename", "EIO"), ("mkdir", "ENOSPC"),
        ("write", "all"), ("write", "half"),
    ],
)  # fmt: skip
def test_a_call_that_fails_or_lies(tmp_path: Path, call: str, error: str) -> None:
    folder = tmp_path / "attacked"
    way, failed = "broken_from_outside", 0
    for number, text in calls_of(way, call, folder):
        shutil.rmtree(folder)
        result = f"error={error}"
        if error in ("all", "half"):  # it says that it wrote, and did not
            size = int(text.rpartition("= ")[2])
            result = f"retval={size if error == 'all' else size // 2}"
        inject = f"inject={call}:{result}:when={number}"
        done = traced(Path("/dev/null"), "-e", f"trace={call}", "-e", inject, way=way, folder=folder)
        told_of = json.loads(done.stdout)
        assert all(told_of["saved"][2:]), text
        assert told_of["held"] in (10, 20)
        if not told_of["saved"][1]:
            failed += 1
            assert len(told_of["said"]) == 2
            assert "no checkpoint could be saved" in told_of["said"][0]
            assert told_of["said"][1] == "checkpoints are saved again"
        else:
            assert "cannot be removed" in "".join(told_of["said"]) or not told_of["said"], told_of
        assert same(Checkpoints(folder).newest_good()[1], state_of(31))
        assert_tidy(folder, 31)
    assert failed


def assert_went_on(done: subprocess.CompletedProcess[str], why: str) -> None:
    told_of = json.loads(done.stdout)
    assert told_of["saved"] == [True, False, False, True, True]
    assert told_of["held"] == 10
    assert len(told_of["said"]) == 2
    assert why in told_of["said"][0]
    assert told_of["said"][1] == "checkpoints are saved again"


def test_files_that_cannot_grow(tmp_path: Path) -> None:
    folder = tmp_path / "limited"
    assert_went_on(run(sys.executable, PROGRAM, "limited", folder), "File too large")
    assert_tidy(folder, 31)


def on_a_small_disk(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program that sees a disk of 64 KiB in the place of a folder. It is gone with the program."""
    if os.geteuid() != 0:
        pytest.fail("this test mounts a file system: run it as root")
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=64k raceway "{folder}" && exec "$@"'
    done = run("unshare", "-m", "sh", "-c", mount, "sh", *command, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.root
def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    assert_went_on(on_a_small_disk(folder, sys.executable, PROGRAM, "full", folder), "No space left on device")


TRAINING = """
import json, logging, os, sys
from pathlib import Path
import raceway
from raceway.ui.display import Watcher

folder = Path(sys.argv[1])
messages = []
logging.getLogger("raceway").addHandler(type("Said", (logging.Handler,), {
    "emit": lambda self, record: messages.append(record.getMessage())})())


class Fill(Watcher):
    def iteration(self, row):
        if row["time/iterations"] == 2:
            with open(folder / "filler", "wb", buffering=0) as file:
                try:
                    while file.write(bytes(512)):
                        pass
                except OSError:
                    pass


result = raceway.train(
    "reinforce", engine="inline", env="cartpole", hidden=(8,), save_every=1, iterations=12, seed=1, watchers=[Fill()],
    run_dir=str(folder / "run"),
)
print(json.dumps({"summary": result.summary, "said": messages}))
"""


@pytest.mark.root
def test_a_training_whose_disk_is_full_ends_well(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    found = json.loads(on_a_small_disk(folder, sys.executable, "-c", TRAINING, folder).stdout)
    assert found["summary"]["iterations"] == 12
    assert found["summary"]["stopped_by"] == "iterations"
    assert 0 < len(found["said"]) <= 4, found["said"]  # once of each: checkpoints, metrics, events
    assert sum("no checkpoint could be saved" in message for message in found["said"]) == 1
    assert len(set(found["said"])) == len(found["said"])


@pytest.mark.parametrize("way", ["killed_before_it_prunes", "killed_between_two_renames"])
def test_killed_in_between(tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str) -> None:
    save(str(tmp_path), 10)
    assert run(sys.executable, PROGRAM, way, tmp_path, check=False).returncode == -signal.SIGKILL
    steps = 20 if way == "killed_before_it_prunes" else 10
    assert Checkpoints(tmp_path).find().steps == steps
    assert same(Checkpoints(tmp_path).newest_good()[1], state_of(steps))
    assert not caplog.records
    Checkpoints(tmp_path).tidy()
    assert same(Checkpoints(tmp_path).newest_good()[1], state_of(steps))
    save(str(tmp_path), 30)
    assert_tidy(tmp_path, 30)


HOLD = "import sys; from raceway.runs.directory import RunDirectory; run = RunDirectory.new(sys.argv[1], 'run'); print('held', flush=True); sys.stdin.read()"  # noqa: E501


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for again in (lambda: RunDirectory.new(tmp_path, "run"), lambda: RunDirectory.again(tmp_path)):
            with pytest.raises(ConfigError, match=rf"process {holder.pid} on "):
                again()
        holder.kill()
    RunDirectory.again(tmp_path).close()
    RunDirectory.new(tmp_path, "run").close()
