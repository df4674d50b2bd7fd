"""What can happen to checkpoints: kills, full and broken disks, corrupt files, files of somebody who means harm."""

import contextlib
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.errors import CheckpointError, ConfigError
from raceway.runs import blocks
from raceway.runs.checkpoints import SCHEMA, Checkpoint, Checkpoints
from raceway.runs.directory import RunDirectory
from tests.runs.saving_program import save, state_of
from tests.runs.test_coding import HOSTILE, same

PROGRAM = Path(__file__).with_name("saving_program.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1024)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Return a folder with the checkpoints 10 and 20, which share blocks."""
    for steps in (10, 20):
        Checkpoints(tmp_path / "two", keep=2).save(state_of(steps), {"steps": steps})
    return tmp_path / "two"


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def assert_found_out(folder: Path, damaged: list[Path], caplog: pytest.LogCaptureFixture) -> int:
    """Check that damage is told of, or does none, and return how many checkpoints have become bad."""
    bad: list[int] = []
    for steps in (10, 20):
        try:
            assert same(Checkpoint(folder / f"{steps:012d}").state(), state_of(steps))
        except CheckpointError as error:
            assert any(str(path) in str(error) for path in damaged), error
            assert len(error.reason) > 10
            bad.append(steps)
    caplog.clear()
    checkpoints = Checkpoints(folder)
    if bad == [10, 20]:
        with pytest.raises(CheckpointError):
            checkpoints.newest_good()
        return 2
    found, state = checkpoints.newest_good()
    assert same(state, state_of(found.steps))
    assert found.steps == (10 if 20 in bad else 20)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (20 in bad)
    assert 20 not in bad or any(str(path) in caplog.text for path in damaged)
    return len(bad)


@contextlib.contextmanager
def damage(*paths: Path) -> Iterator[list[bytes]]:
    """Give the contents of files that are to be spoilt, and mend them afterwards."""
    contents = [path.read_bytes() for path in paths]
    yield contents
    for path, content in zip(paths, contents, strict=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_truncations(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance, files = random.Random(1), files_of(two)
    for number in range(64):
        path = files[number % len(files)]
        with damage(path) as (content,):
            path.write_bytes(content[: chance.randrange(len(content))])
            assert assert_found_out(two, [path], caplog) > 0


def test_bit_flips(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    chance, files, found = random.Random(2), files_of(two), 0
    for number in range(200):
        path = files[number % len(files)]
        with damage(path) as (content,):
            place = chance.randrange(8 * len(content))
            spoilt = bytearray(content)
            spoilt[place // 8] ^= 1 << place % 8
            path.write_bytes(spoilt)
            found += assert_found_out(two, [path], caplog) > 0
    assert found >= 190  # in some places a bit means nothing


@pytest.mark.parametrize("how", ["deleted", "empty", "folder", "link", "pipe", "longer"])
def test_files_that_are_no_more_what_they_were(two: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    elsewhere = two.parent / "elsewhere"
    for path in files_of(two):
        with damage(path) as (content,):
            path.unlink()
            if how == "empty":
                path.touch()
            elif how == "folder":
                path.mkdir()
            elif how == "link":
                elsewhere.write_bytes(content)
                path.symlink_to(elsewhere)
            elif how == "pipe":
                os.mkfifo(path)
            elif how == "longer":
                path.write_bytes(content + b"\0")
            assert assert_found_out(two, [path], caplog) > 0


def test_files_that_are_swapped(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    for one, other in itertools.combinations(files_of(two), 2):
        with damage(one, other) as contents:
            one.write_bytes(contents[1])
            other.write_bytes(contents[0])
            assert assert_found_out(two, [one, other], caplog) > 0


@pytest.mark.parametrize("what", ["file", "nothing"])
def test_something_else_in_the_place_of_a_checkpoint(two: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    shutil.rmtree(two / "000000000020")
    if what == "file":
        (two / "000000000020").write_text("no checkpoint")
    else:
        (two / "000000000020").mkdir()
    assert assert_found_out(two, [two / "000000000020"], caplog) == 1
    save(str(two), 20)
    assert same(Checkpoints(two).newest_good()[1], state_of(20))


def told(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a manifest says, with the hash that belongs to it."""
    body = json.loads((path / "manifest.json").read_text())["body"]
    changed = change(body)
    body = body if changed is None else changed
    sha256 = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"body": body, "sha256": sha256}))


def replaced(path: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, and have the manifest vouch for it."""
    (path / name).write_bytes(content)
    about = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    told(path, lambda body: body["files"].update({name: about}))


def test_a_future_schema(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    latest = Checkpoints(two).find()
    told(latest.path, lambda body: {"schema": SCHEMA + 1, "state_of_the_art": "quite another form"})
    with pytest.raises(CheckpointError, match=rf"schema {SCHEMA + 1}.*Upgrade"):
        Checkpoints(two).find()
    assert assert_found_out(two, [latest.path / "manifest.json"], caplog) == 1
    assert "Upgrade" in caplog.text
    save(str(two), 15)
    assert latest.path.exists()  # whoever upgrades wants it


@pytest.mark.parametrize(
    "change",
    [
        lambda body: [], lambda body: "text", lambda body: {"schema": SCHEMA}, lambda body: body.update(schema="1"),
        lambda body: body.update(schema=None), lambda body: body.update(files=[]), lambda body: body.update(about=3),
        lambda body: body.update(about={}), lambda body: body.update(state_sha256=None), lambda body: body.pop("blocks"),
        lambda body: body.update(files={}), lambda body: body["files"]["state.json"].update(size="many"),
        lambda body: body["files"]["state.json"].update(size=-1), lambda body: body["files"].update({"state.json": 3}),
        lambda body: body.update(blocks={"state/replay": []}), lambda body: body.update(blocks={"state/replay": 3}),
        lambda body: body.update(blocks={}),
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense(two: Path, caplog: pytest.LogCaptureFixture, change: Any) -> None:
    path = two / "000000000020"
    told(path, change)
    assert assert_found_out(two, [path / "manifest.json", path / "state.json"], caplog) == 1


OPENED: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None and not isinstance(arguments[0], int):  # an int was opened before
        OPENED.append(str(arguments[0]))


sys.addaudithook(_watch)


@contextlib.contextmanager
def opened() -> Iterator[list[str]]:
    """Give the names of files that are opened meanwhile."""
    global OPENED
    OPENED = made = []
    try:
        yield made
    finally:
        OPENED = None


class Canary:
    """When it is unpickled, there is a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_the_canary_sings(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


def test_a_pickle_in_the_place_of_every_file(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    canary = two.parent / "canary"
    objects = io.BytesIO()
    np.save(objects, np.array([Canary(canary)], object), allow_pickle=True)
    for path in files_of(two):
        for content in (pickle.dumps(Canary(canary)), objects.getvalue()):
            with damage(path), damage(path.parent / "manifest.json") if path.parent.name[0] == "0" else damage():
                if path.name in ("state.json", "state.safetensors", "policy.safetensors"):
                    replaced(path.parent, path.name, content)
                else:
                    path.write_bytes(content)
                assert assert_found_out(two, [path], caplog) > 0
    assert not canary.exists()


def test_objects_in_a_block_that_the_manifest_vouches_for(two: Path) -> None:
    canary, path = two.parent / "canary", two / "000000000020"
    objects = io.BytesIO()
    np.save(objects, np.array([Canary(canary)], object), allow_pickle=True)
    name = hashlib.sha256(objects.getvalue()).hexdigest()
    (two / "blocks" / f"{name}.npy").write_bytes(objects.getvalue())
    told(path, lambda body: body.update(blocks={"state/replay": [name]}))
    with pytest.raises(CheckpointError, match=name):
        Checkpoint(path).state()
    assert not canary.exists()


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "content",
    [*(json.dumps(doc).encode() for doc in HOSTILE), b"", b"{", b"\xff", b"1" * 5000, DEEP],
    ids=lambda content: content[:50].decode(errors="replace"),
)
def test_states_that_nobody_saved(two: Path, content: bytes) -> None:
    path = two / "000000000020"
    replaced(path, "state.json", content)
    with opened() as names, pytest.raises(CheckpointError, match=r"state\.json"):
        Checkpoint(path).state()
    assert all(name.startswith(str(two)) for name in names)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Checkpoint(path).state()


@pytest.mark.parametrize(
    "name",
    [
        "../../outside", "/etc/passwd", "../000000000010/state", "a" * 63, "A" * 64, f"../{'a' * 61}", "", "\0" * 64,
        f"{'a' * 64}\n", 3, None, ["a" * 64],
    ],
)  # fmt: skip
def test_nothing_outside_the_folder_is_read(two: Path, name: Any) -> None:
    (two.parent / "outside.npy").write_bytes(next((two / "blocks").iterdir()).read_bytes())
    path = two / "000000000020"
    told(path, lambda body: body["files"].update({"../../outside.npy": body["files"]["state.json"]}))
    with opened() as names:
        Checkpoint(path).state()
        told(path, lambda body: body.update(blocks={"state/replay": [name]}))
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Checkpoint(path).state()
        Checkpoints(two).newest_good()
        save(str(two), 30)
    assert names
    assert all(one.startswith(str(two)) for one in names)
    assert (two.parent / "outside.npy").exists()


def tensors(header: Any, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(8)


TERA = 1 << 42


@pytest.mark.parametrize(
    "content",
    [
        tensors({"x": {"dtype": "F32", "shape": [TERA], "data_offsets": [0, 4 * TERA]}}),
        tensors({"x": {"dtype": "F32", "shape": [TERA], "data_offsets": [0, 8]}}),
        tensors({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}),
        tensors({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}),
        tensors({"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}),
        tensors({"x": {"dtype": "object", "shape": [1], "data_offsets": [0, 8]}}),
        tensors({"x": 3}), tensors([]), tensors({}, TERA), tensors({}, 2**64 - 1), b"",
    ],
)  # fmt: skip
def test_tensors_that_claim_too_much(two: Path, content: bytes) -> None:
    path = two / "000000000020"
    for name in ("state.safetensors", "policy.safetensors"):
        with damage(path / name, path / "manifest.json"):
            replaced(path, name, content)
            assert_refused_without_memory(path, name)


@pytest.mark.parametrize("shape", [f"({TERA},)", f"({TERA}, {TERA})", "(0, 3)", "(-1,)", "(9" + "9" * 5000 + ",)", "("])
@pytest.mark.parametrize("descr", ["<f8", "|O", "<f5", "<M8[x]", "|V1000000000000"])
def test_blocks_that_claim_too_much(two: Path, shape: str, descr: str) -> None:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + (len(text) % 65536).to_bytes(2, "little") + text + bytes(8)
    path = Checkpoint(two / "000000000020")
    name = path.manifest["blocks"]["state/replay"][0]
    (two / "blocks" / f"{name}.npy").write_bytes(content)
    assert_refused_without_memory(path.path, name)


def assert_refused_without_memory(path: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=re.escape(name)):
            Checkpoint(path).state()
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_size_that_the_manifest_claims_is_not_allocated(two: Path) -> None:
    path = two / "000000000020"
    told(path, lambda body: body["files"]["state.json"].update(size=TERA))
    assert_refused_without_memory(path, "state.json")


def test_blocks_that_do_not_fit_together(two: Path) -> None:
    path = two / "000000000020"
    store = blocks.Blocks(two / "blocks")
    names = [name for array in (np.zeros(2), np.zeros((2, 2)), np.zeros(2, "f4")) for name in store.put(array)]
    told(path, lambda body: body.update(blocks={"state/replay": names}))
    with pytest.raises(CheckpointError, match="fit together"):
        Checkpoint(path).state()


# What is below runs programs, and breaks them from outside.


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
        *(("again", call) for call in ("mkdir", "fsync", "rename", "unlinkat", "rmdir")),
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
    # What is removed in the end is removed when the new one is there. What is removed at first is of an earlier kill.
    assert seen == {"mkdir": {10}, "write": {10}, "unlinkat": {20}, "rmdir": {20}, "unlink": {20}}.get(call, {10, 20})


@pytest.mark.strace
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", "ENOSPC"), ("write", "EIO"), ("fsync", "EIO"), ("rename", "EIO"), ("mkdir", "ENOSPC"),
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
        assert all(told_of["saved"][3:]), text
        assert told_of["held"] in (10, 20, 21)
        if told_of["saved"][1:3] != [True, True]:
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
from raceway.runs.display import Watcher

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
        for again in (lambda: RunDirectory.new(tmp_path, "run"), lambda: RunDirectory.again(tmp_path, 0)):
            with pytest.raises(ConfigError, match=rf"process {holder.pid} on "):
                again()
        holder.kill()
    RunDirectory.again(tmp_path, 0).close()
    RunDirectory.new(tmp_path, "run").close()
