"""Faults while saving: kills at every system call, full and broken disks, two runs in one directory."""

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
from tests.checkpoints.saving_program import save, state_at
from tests.checkpoints.test_encoding import identical

PROGRAM = Path(__file__).with_name("saving_program.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)


def run(*command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    return subprocess.run(
        arguments, capture_output=True, text=True, env=ENVIRONMENT, check=check, cwd=ROOT, timeout=120
    )


def run_traced(
    log: Path, *options: str, scenario: str, directory: Path, check: bool = True
) -> subprocess.CompletedProcess[str]:
    if shutil.which("strace") is None:
        pytest.fail("this test needs strace: run scripts/test-tools")
    trace = ("strace", "-f", "-qq", "-o", log, *options)
    return run(*trace, sys.executable, PROGRAM, scenario, directory, check=check)


def trace_calls(scenario: str, call: str, directory: Path) -> list[tuple[int, str]]:
    """Return the system calls of one kind between the program's two marks: (number since its start, text)."""
    log = directory.parent / "calls"
    run_traced(log, "-e", f"trace={call},getppid", "-s", "0", scenario=scenario, directory=directory)
    number, inside, calls = 0, False, []
    for line in log.read_text().splitlines():
        text = line.split(maxsplit=1)[1]
        if text.startswith("getppid("):
            inside = not inside
        elif text.startswith(f"{call}("):
            number += 1
            if inside:
                calls.append((number, text))
    assert not inside
    assert calls, f"the program does not call {call}"
    return calls


def assert_only_checkpoint(directory: Path, steps: int) -> None:
    """Check that a directory holds one checkpoint and its blocks, and no temporary files."""
    assert sorted(os.listdir(directory)) == [f"{steps:012d}", "blocks"]
    referenced = {name for names in Checkpoints(directory).find().manifest["blocks"].values() for name in names}
    assert {path.name for path in (directory / "blocks").iterdir()} == {f"{name}.npy" for name in referenced}
    assert {path.name for path in (directory / f"{steps:012d}").iterdir()} == {
        "manifest.json", "policy.safetensors", "state.json", "state.safetensors",
    }  # fmt: skip


@pytest.mark.strace
@pytest.mark.parametrize(
    ("scenario", "call"),
    [
        *(
            ("later_steps", call)
            for call in ("mkdir", "openat", "write", "fsync", "rename", "unlink", "unlinkat", "rmdir")
        ),
        *(("same_steps", call) for call in ("mkdir", "rename", "unlinkat", "rmdir")),
    ],
)
def test_a_kill_at_any_system_call_loses_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scenario: str, call: str
) -> None:
    directory, before = tmp_path / "attacked", tmp_path / "before"
    save(str(before), 10)
    shutil.copytree(before, directory)
    readable_steps = set()
    for number, text in trace_calls(scenario, call, directory):
        shutil.rmtree(directory)
        shutil.copytree(before, directory)
        inject = f"inject={call}:signal=KILL:when={number}"
        options = ("-e", f"trace={call}", "-e", inject)
        done = run_traced(Path("/dev/null"), *options, scenario=scenario, directory=directory, check=False)
        assert done.returncode == -signal.SIGKILL, (text, done.stderr)
        _, state = Checkpoints(directory).newest_readable()
        readable_steps.add(state["flow"][0])
        assert identical(state, state_at(state["flow"][0])), text
        assert state["flow"][0] in (10, 20), text
        assert not caplog.records, text  # no checkpoint was unreadable
        save(str(directory), 30)
        assert identical(Checkpoints(directory).newest_readable()[1], state_at(30)), text
        assert_only_checkpoint(directory, 30)
    expected = {"mkdir": {10}, "write": {10}, "unlinkat": {20}, "rmdir": {20}, "unlink": {20}}.get(call, {10, 20})
    assert readable_steps == ({10} if (scenario, call) == ("same_steps", "rename") else expected)  # killed before it


@pytest.mark.strace
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", "ENOSPC"), ("fsync", "EIO"), ("rename", "EIO"), ("mkdir", "ENOSPC"),
        ("write", "all"), ("write", "half"),
    ],
)  # fmt: skip
def test_a_system_call_that_fails_or_lies_loses_no_checkpoint(tmp_path: Path, call: str, error: str) -> None:
    directory = tmp_path / "attacked"
    scenario, num_failed = "broken_from_outside", 0
    for number, text in trace_calls(scenario, call, directory):
        shutil.rmtree(directory)
        result = f"error={error}"
        if error in ("all", "half"):  # it reports a write that it did not do
            size = int(text.rpartition("= ")[2])
            result = f"retval={size if error == 'all' else size // 2}"
        inject = f"inject={call}:{result}:when={number}"
        options = ("-e", f"trace={call}", "-e", inject)
        done = run_traced(Path("/dev/null"), *options, scenario=scenario, directory=directory)
        outcome = json.loads(done.stdout)
        assert all(outcome["saved"][2:]), text
        assert outcome["readable_steps"] in (10, 20)
        if not outcome["saved"][1]:
            num_failed += 1
            assert len(outcome["messages"]) == 2
            assert "checkpoint could not be saved" in outcome["messages"][0]
            assert outcome["messages"][1] == "checkpoints can be saved again"
        else:
            assert "cannot be removed" in "".join(outcome["messages"]) or not outcome["messages"], outcome
        assert identical(Checkpoints(directory).newest_readable()[1], state_at(31))
        assert_only_checkpoint(directory, 31)
    assert num_failed


def assert_training_continued(done: subprocess.CompletedProcess[str], reason: str) -> None:
    outcome = json.loads(done.stdout)
    assert outcome["saved"] == [True, False, False, True, True]
    assert outcome["readable_steps"] == 10
    assert len(outcome["messages"]) == 2
    assert reason in outcome["messages"][0]
    assert outcome["messages"][1] == "checkpoints can be saved again"


def test_saving_recovers_from_a_file_size_limit(tmp_path: Path) -> None:
    directory = tmp_path / "limited"
    assert_training_continued(run(sys.executable, PROGRAM, "limited_file_size", directory), "File too large")
    assert_only_checkpoint(directory, 31)


def run_on_small_disk(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program that sees a 64 KiB disk mounted on a directory. The mount ends with the program."""
    if os.geteuid() != 0:
        pytest.fail("this test mounts a file system: run it as root")
    directory.mkdir()
    mount = f'mount -t tmpfs -o size=64k raceway "{directory}" && exec "$@"'
    done = run("unshare", "-m", "sh", "-c", mount, "sh", *command, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.root
def test_saving_recovers_from_a_full_disk(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    done = run_on_small_disk(directory, sys.executable, PROGRAM, "full_disk", directory)
    assert_training_continued(done, "No space left on device")


TRAINING = """
import json, logging, os, sys
from pathlib import Path
import raceway
from raceway.ui.callback import Callback

directory = Path(sys.argv[1])
messages = []
logging.getLogger("raceway").addHandler(type("MessageHandler", (logging.Handler,), {
    "emit": lambda self, record: messages.append(record.getMessage())})())


class FillDisk(Callback):
    def on_iteration_end(self, run, row):
        if row["time/iterations"] == 2:
            with open(directory / "filler", "wb", buffering=0) as file:
                try:
                    while file.write(bytes(512)):
                        pass
                except OSError:
                    pass


result = raceway.train(
    "reinforce", engine="inline", env="cartpole", hidden=(8,), save_every=1, iterations=12, seed=1,
    callbacks=[FillDisk()], run_dir=str(directory / "run"),
)
print(json.dumps({"summary": result.summary, "messages": messages}))
"""


@pytest.mark.root
def test_training_finishes_on_a_full_disk(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    outcome = json.loads(run_on_small_disk(directory, sys.executable, "-c", TRAINING, directory).stdout)
    assert outcome["summary"]["iterations"] == 12
    assert outcome["summary"]["stopped_by"] == "iterations"
    assert 0 < len(outcome["messages"]) <= 4, outcome[
        "messages"
    ]  # at most once for each of checkpoints, metrics, events
    assert sum("checkpoint could not be saved" in message for message in outcome["messages"]) == 1
    assert len(set(outcome["messages"])) == len(outcome["messages"])


@pytest.mark.parametrize("scenario", ["killed_before_pruning", "killed_between_renames"])
def test_a_kill_between_two_steps_loses_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scenario: str
) -> None:
    save(str(tmp_path), 10)
    assert run(sys.executable, PROGRAM, scenario, tmp_path, check=False).returncode == -signal.SIGKILL
    steps = 20 if scenario == "killed_before_pruning" else 10
    assert Checkpoints(tmp_path).find().steps == steps
    assert identical(Checkpoints(tmp_path).newest_readable()[1], state_at(steps))
    assert not caplog.records
    Checkpoints(tmp_path).clean_up()
    assert identical(Checkpoints(tmp_path).newest_readable()[1], state_at(steps))
    save(str(tmp_path), 30)
    assert_only_checkpoint(tmp_path, 30)


HOLD = "import sys; from raceway.runs.directory import RunDirectory; run = RunDirectory.new(sys.argv[1], 'run'); print('held', flush=True); sys.stdin.read()"  # noqa: E501


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for open_directory in (lambda: RunDirectory.new(tmp_path, "run"), lambda: RunDirectory.reopen(tmp_path)):
            with pytest.raises(ConfigError, match=rf"process {holder.pid} on "):
                open_directory()
        holder.kill()
    RunDirectory.reopen(tmp_path).close()
    RunDirectory.new(tmp_path, "run").close()
