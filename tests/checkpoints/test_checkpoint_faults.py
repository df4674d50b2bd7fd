"""Checkpoints that differ from what was saved: corrupt files, and malicious ones."""

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
from tests.checkpoints.saving_program import save, state_at
from tests.checkpoints.test_encoding import HOSTILE, identical


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> Path:
    """Return a directory with checkpoints at 10 and 20 steps, which share blocks."""
    for steps in (10, 20):
        Checkpoints(tmp_path / "checkpoints", keep=2).save(state_at(steps), {"steps": steps})
    return tmp_path / "checkpoints"


def list_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def count_unreadable(directory: Path, damaged: list[Path], caplog: pytest.LogCaptureFixture) -> int:
    """Check that damage is harmless or reported, and return how many checkpoints have become unreadable."""
    errors: dict[int, CheckpointError] = {}
    for steps in (10, 20):
        try:
            assert identical(Checkpoint(directory / f"{steps:012d}").state(), state_at(steps))
        except CheckpointError as error:
            errors[steps] = error
    for error in errors.values():
        assert any(str(path) in str(error) for path in damaged), error
        assert len(error.reason) > 10
    caplog.clear()
    checkpoints = Checkpoints(directory)
    if len(errors) == 2:
        with pytest.raises(CheckpointError):
            checkpoints.newest_readable()
        return 2
    checkpoint, state = checkpoints.newest_readable()
    assert identical(state, state_at(checkpoint.steps))
    assert checkpoint.steps == (10 if 20 in errors else 20)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (20 in errors)
    assert 20 not in errors or any(str(path) in caplog.text for path in damaged)
    return len(errors)


@contextlib.contextmanager
def damage(*paths: Path) -> Iterator[list[bytes]]:
    """Yield the contents of files that the caller will damage, and restore the files afterwards."""
    contents = [path.read_bytes() for path in paths]
    yield contents
    for path, content in zip(paths, contents, strict=True):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def test_truncated_files_are_detected(two_checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng, files = random.Random(1), list_files(two_checkpoints)
    for number in range(64):
        path = files[number % len(files)]
        with damage(path) as (content,):
            path.write_bytes(content[: rng.randrange(len(content))])
            assert count_unreadable(two_checkpoints, [path], caplog) > 0


def test_bit_flips_are_detected(two_checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng, files, num_detected = random.Random(2), list_files(two_checkpoints), 0
    for number in range(200):
        path = files[number % len(files)]
        with damage(path) as (content,):
            bit = rng.randrange(8 * len(content))
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            num_detected += count_unreadable(two_checkpoints, [path], caplog) > 0
    assert num_detected >= 190  # some bits have no meaning


@pytest.mark.parametrize("damage_kind", ["deleted", "empty", "directory", "link", "pipe", "longer"])
def test_replaced_files_are_detected(two_checkpoints: Path, caplog: pytest.LogCaptureFixture, damage_kind: str) -> None:
    outside = two_checkpoints.parent / "outside"
    for path in list_files(two_checkpoints):
        with damage(path) as (content,):
            path.unlink()
            if damage_kind == "empty":
                path.touch()
            elif damage_kind == "directory":
                path.mkdir()
            elif damage_kind == "link":
                outside.write_bytes(content)
                path.symlink_to(outside)
            elif damage_kind == "pipe":
                os.mkfifo(path)
            elif damage_kind == "longer":
                path.write_bytes(content + b"\0")
            assert count_unreadable(two_checkpoints, [path], caplog) > 0


@pytest.mark.parametrize("name", [".", "blocks", "000000000020"])
def test_a_directory_that_is_a_symlink_is_refused(two_checkpoints: Path, name: str) -> None:
    """Pruning would remove files from wherever the link leads."""
    outside = two_checkpoints.parent / "outside"
    os.rename(two_checkpoints / name, outside)
    (two_checkpoints / name).symlink_to(outside)
    with pytest.raises(CheckpointError, match=rf"it is a symbolic link to {outside}"):
        Checkpoints(two_checkpoints).find().state()
    if name != "000000000020":
        with pytest.raises(CheckpointError, match="it is a symbolic link"):
            save(str(two_checkpoints), 30)


def test_only_blocks_are_removed_as_unreferenced(two_checkpoints: Path) -> None:
    (two_checkpoints / "blocks" / "thesis.npy").touch()
    (two_checkpoints / "blocks" / ("0" * 64 + ".npy")).touch()
    (two_checkpoints / "blocks" / "half.new").touch()
    (two_checkpoints / "blocks" / "docs").mkdir()
    (two_checkpoints / "blocks" / "docs" / "thesis.txt").touch()
    save(str(two_checkpoints), 30)
    left = {path.name for path in (two_checkpoints / "blocks").iterdir()}
    manifests = [checkpoint.manifest for checkpoint in Checkpoints(two_checkpoints).all()]
    referenced = {name for manifest in manifests for names in manifest["blocks"].values() for name in names}
    assert left == {"thesis.npy", "docs", *(f"{name}.npy" for name in referenced)}
    assert (two_checkpoints / "blocks" / "docs" / "thesis.txt").exists()


def test_a_temporary_file_does_not_follow_a_symlink(two_checkpoints: Path) -> None:
    precious = two_checkpoints.parent / "precious"
    precious.write_text("precious")
    before = {path.name for path in (two_checkpoints / "blocks").iterdir()}
    save(str(two_checkpoints), 30)
    (name,) = list({path.name for path in (two_checkpoints / "blocks").iterdir()} - before)[:1]
    (two_checkpoints / "blocks" / name).unlink()
    temporary = (two_checkpoints / "blocks" / name).with_suffix(".new")
    temporary.symlink_to(precious)
    files.write_file(temporary, b"new")
    assert (precious.read_text(), temporary.read_bytes(), temporary.is_symlink()) == ("precious", b"new", False)


def test_running_out_of_memory_is_a_checkpoint_error(two_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> Any:
        raise MemoryError

    for name in ("decode", "load_tensors"):
        with monkeypatch.context() as patch:
            patch.setattr(f"raceway.checkpoints.store.{name}", out_of_memory)
            with pytest.raises(CheckpointError, match="cannot be read"):
                Checkpoints(two_checkpoints).find().state()


def test_swapped_files_are_detected(two_checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    for first, second in itertools.combinations(list_files(two_checkpoints), 2):
        with damage(first, second) as contents:
            first.write_bytes(contents[1])
            second.write_bytes(contents[0])
            assert count_unreadable(two_checkpoints, [first, second], caplog) > 0


@pytest.mark.parametrize("replacement", ["file", "empty directory"])
def test_a_checkpoint_replaced_by_something_else(
    two_checkpoints: Path, caplog: pytest.LogCaptureFixture, replacement: str
) -> None:
    shutil.rmtree(two_checkpoints / "000000000020")
    if replacement == "file":
        (two_checkpoints / "000000000020").write_text("no checkpoint")
    else:
        (two_checkpoints / "000000000020").mkdir()
    assert count_unreadable(two_checkpoints, [two_checkpoints / "000000000020"], caplog) == 1
    save(str(two_checkpoints), 20)
    assert identical(Checkpoints(two_checkpoints).newest_readable()[1], state_at(20))


def forge_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the body of a manifest, and its hash to match."""
    body = json.loads((path / "manifest.json").read_text())["body"]
    changed = change(body)
    body = body if changed is None else changed
    sha256 = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"body": body, "sha256": sha256}))


def forge_file(path: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, and its size and hash in the manifest to match."""
    (path / name).write_bytes(content)
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge_manifest(path, lambda body: body["files"].update({name: entry}))


def test_a_newer_schema_is_refused(two_checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    latest = Checkpoints(two_checkpoints).find()
    forge_manifest(latest.path, lambda body: {"schema": SCHEMA + 1, "state_of_the_art": "quite another form"})
    with pytest.raises(CheckpointError, match=rf"schema {SCHEMA + 1}.*Upgrade"):
        Checkpoints(two_checkpoints).find()
    assert count_unreadable(two_checkpoints, [latest.path / "manifest.json"], caplog) == 1
    assert "Upgrade" in caplog.text
    save(str(two_checkpoints), 15)
    assert latest.path.exists()  # kept for after an upgrade


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
def test_a_malformed_manifest_is_detected(two_checkpoints: Path, caplog: pytest.LogCaptureFixture, change: Any) -> None:
    path = two_checkpoints / "000000000020"
    forge_manifest(path, change)
    assert count_unreadable(two_checkpoints, [path / "manifest.json", path / "state.json"], caplog) == 1


OPENED: list[str] | None = None


def _record_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        event == "open" and OPENED is not None and not isinstance(arguments[0], int)
    ):  # an int is a descriptor that is open already
        OPENED.append(str(arguments[0]))


sys.addaudithook(_record_opened)


@contextlib.contextmanager
def opened_files() -> Iterator[list[str]]:
    """Yield a list that collects the names of the files opened inside the context."""
    global OPENED
    OPENED = names = []
    try:
        yield names
    finally:
        OPENED = None


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def test_the_canary_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


def test_pickles_in_place_of_any_file_are_not_loaded(two_checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    canary = two_checkpoints.parent / "canary"
    objects = io.BytesIO()
    np.save(objects, np.array([Canary(canary)], object), allow_pickle=True)
    for path in list_files(two_checkpoints):
        for content in (pickle.dumps(Canary(canary)), objects.getvalue()):
            with damage(path), damage(path.parent / "manifest.json") if path.parent.name[0] == "0" else damage():
                if path.name in ("state.json", "state.safetensors", "policy.safetensors"):
                    forge_file(path.parent, path.name, content)
                else:
                    path.write_bytes(content)
                assert count_unreadable(two_checkpoints, [path], caplog) > 0
    assert not canary.exists()


def test_pickled_objects_in_a_block_are_not_loaded(two_checkpoints: Path) -> None:
    canary, path = two_checkpoints.parent / "canary", two_checkpoints / "000000000020"
    objects = io.BytesIO()
    np.save(objects, np.array([Canary(canary)], object), allow_pickle=True)
    name = hashlib.sha256(objects.getvalue()).hexdigest()
    (two_checkpoints / "blocks" / f"{name}.npy").write_bytes(objects.getvalue())
    forge_manifest(path, lambda body: body.update(blocks={"state/replay": [name]}))
    with pytest.raises(CheckpointError, match=name):
        Checkpoint(path).state()
    assert not canary.exists()


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "content",
    [*(json.dumps(doc).encode() for doc in HOSTILE), b"", b"{", b"\xff", b"1" * 5000, DEEP],
    ids=lambda content: content[:50].decode(errors="replace"),
)
def test_malformed_states_are_refused(two_checkpoints: Path, content: bytes) -> None:
    path = two_checkpoints / "000000000020"
    forge_file(path, "state.json", content)
    with opened_files() as names, pytest.raises(CheckpointError, match=r"state\.json"):
        Checkpoint(path).state()
    assert all(name.startswith(str(two_checkpoints)) for name in names)
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
def test_no_file_outside_the_directory_is_read(two_checkpoints: Path, name: Any) -> None:
    (two_checkpoints.parent / "outside.npy").write_bytes(next((two_checkpoints / "blocks").iterdir()).read_bytes())
    path = two_checkpoints / "000000000020"
    forge_manifest(path, lambda body: body["files"].update({"../../outside.npy": body["files"]["state.json"]}))
    with opened_files() as names:
        Checkpoint(path).state()
        forge_manifest(path, lambda body: body.update(blocks={"state/replay": [name]}))
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Checkpoint(path).state()
        Checkpoints(two_checkpoints).newest_readable()
        save(str(two_checkpoints), 30)
    assert names
    assert all(name.startswith(str(two_checkpoints)) for name in names)
    assert (two_checkpoints.parent / "outside.npy").exists()


def safetensors_file(header: Any, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(8)


TERA = 1 << 42


@pytest.mark.parametrize(
    "content",
    [
        safetensors_file({"x": {"dtype": "F32", "shape": [TERA], "data_offsets": [0, 4 * TERA]}}),
        safetensors_file({"x": {"dtype": "F32", "shape": [TERA], "data_offsets": [0, 8]}}),
        safetensors_file({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}),
        safetensors_file({"x": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}),
        safetensors_file({"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}),
        safetensors_file({"x": {"dtype": "object", "shape": [1], "data_offsets": [0, 8]}}),
        safetensors_file({"x": 3}), safetensors_file([]), safetensors_file({}, TERA), safetensors_file({}, 2**64 - 1),
        b"",
    ],
)  # fmt: skip
def test_tensors_with_false_sizes_are_refused(two_checkpoints: Path, content: bytes) -> None:
    path = two_checkpoints / "000000000020"
    for name in ("state.safetensors", "policy.safetensors"):
        with damage(path / name, path / "manifest.json"):
            forge_file(path, name, content)
            assert_refused_without_allocating(path, name)


@pytest.mark.parametrize("shape", [f"({TERA},)", f"({TERA}, {TERA})", "(0, 3)", "(-1,)", "(9" + "9" * 5000 + ",)", "("])
@pytest.mark.parametrize("descr", ["<f8", "|O", "<f5", "<M8[x]", "|V1000000000000"])
def test_blocks_with_false_sizes_are_refused(two_checkpoints: Path, shape: str, descr: str) -> None:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + (len(text) % 65536).to_bytes(2, "little") + text + bytes(8)
    checkpoint = Checkpoint(two_checkpoints / "000000000020")
    name = checkpoint.manifest["blocks"]["state/replay"][0]
    (two_checkpoints / "blocks" / f"{name}.npy").write_bytes(content)
    assert_refused_without_allocating(checkpoint.path, name)


def assert_refused_without_allocating(path: Path, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=re.escape(name)):
            Checkpoint(path).state()
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_false_size_in_the_manifest_is_not_allocated(two_checkpoints: Path) -> None:
    path = two_checkpoints / "000000000020"
    forge_manifest(path, lambda body: body["files"]["state.json"].update(size=TERA))
    assert_refused_without_allocating(path, "state.json")


def test_blocks_of_different_shapes_are_refused(two_checkpoints: Path) -> None:
    path = two_checkpoints / "000000000020"
    store = blocks.BlockStore(two_checkpoints / "blocks")
    names = [name for array in (np.zeros(2), np.zeros((2, 2)), np.zeros(2, "f4")) for name in store.put(array)]
    forge_manifest(path, lambda body: body.update(blocks={"state/replay": names}))
    with pytest.raises(CheckpointError, match="fit together"):
        Checkpoint(path).state()
