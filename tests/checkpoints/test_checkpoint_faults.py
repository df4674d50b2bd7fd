"""Checkpoints that are not as they were saved: files that are corrupt, or of somebody who means harm."""

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
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.checkpoints import blocks, files
from raceway.checkpoints.manifest import SCHEMA
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.errors import CheckpointError
from tests.checkpoints.saving_program import save, state_of
from tests.checkpoints.test_encoding import HOSTILE, same


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
    bad: dict[int, CheckpointError] = {}
    for steps in (10, 20):
        try:
            assert same(Checkpoint(folder / f"{steps:012d}").state(), state_of(steps))
        except CheckpointError as error:
            bad[steps] = error
    for error in bad.values():
        assert any(str(path) in str(error) for path in damaged), error
        assert len(error.reason) > 10
    caplog.clear()
    checkpoints = Checkpoints(folder)
    if len(bad) == 2:
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


@pytest.mark.parametrize("name", [".", "blocks", "000000000020"])
def test_a_folder_that_is_a_link_is_refused(two: Path, name: str) -> None:
    """What is removed from it would be removed from wherever it leads."""
    elsewhere = two.parent / "elsewhere"
    os.rename(two / name, elsewhere)
    (two / name).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=rf"it is a link, to {elsewhere}"):
        Checkpoints(two).find().state()
    if name != "000000000020":
        with pytest.raises(CheckpointError, match="it is a link"):
            save(str(two), 30)


def test_only_blocks_are_swept_away(two: Path) -> None:
    (two / "blocks" / "thesis.npy").touch()
    (two / "blocks" / ("0" * 64 + ".npy")).touch()
    (two / "blocks" / "half.new").touch()
    (two / "blocks" / "docs").mkdir()
    (two / "blocks" / "docs" / "thesis.txt").touch()
    save(str(two), 30)
    left = {path.name for path in (two / "blocks").iterdir()}
    needed = {name for one in Checkpoints(two).all() for names in one.manifest["blocks"].values() for name in names}
    assert left == {"thesis.npy", "docs", *(f"{name}.npy" for name in needed)}
    assert (two / "blocks" / "docs" / "thesis.txt").exists()


def test_a_file_that_is_written_aside_goes_nowhere_else(two: Path) -> None:
    precious = two.parent / "precious"
    precious.write_text("precious")
    before = {path.name for path in (two / "blocks").iterdir()}
    save(str(two), 30)
    (name,) = list({path.name for path in (two / "blocks").iterdir()} - before)[:1]
    (two / "blocks" / name).unlink()
    put_at = (two / "blocks" / name).with_suffix(".new")
    put_at.symlink_to(precious)
    files.put(put_at, b"new")
    assert (precious.read_text(), put_at.read_bytes(), put_at.is_symlink()) == ("precious", b"new", False)


def test_a_state_that_no_memory_holds_is_corrupt(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise MemoryError

    for name in ("decode", "load_tensors"):
        with monkeypatch.context() as patch:
            patch.setattr(f"raceway.checkpoints.store.{name}", none_left)
            with pytest.raises(CheckpointError, match="cannot be read"):
                Checkpoints(two).find().state()


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
        lambda body: body.update(about={}), lambda body: body.update(state_sha256=None),
        lambda body: body.pop("blocks"), lambda body: body.update(files={}),
        lambda body: body["files"]["state.json"].update(size="many"),
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
