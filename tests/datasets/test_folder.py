"""A dataset in a folder: complete or not there at all, and never trusted."""

import hashlib
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.datasets import DatasetWriter, open_dataset, save_dataset
from raceway.datasets.folder import _hash
from raceway.errors import ConfigError, DatasetError
from tests.datasets.toy_data import POINT, TURNS, episodes, write

PART = "part-00000.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", episodes([3, -2]), episodes([1], 5))
    return tmp_path / "data"


def read_all(folder: Path) -> None:
    for _ in open_dataset(folder).batches():
        pass


def change_index(folder: Path, change: Callable[[Any], None], *, rehash: bool = True) -> None:
    """Change the body of `dataset.json`, and its hash as well."""
    doc = json.loads((folder / "dataset.json").read_text())
    change(doc["body"])
    if rehash:
        doc["sha256"] = _hash(doc["body"])
    (folder / "dataset.json").write_text(json.dumps(doc))


def replace_part(folder: Path, content: bytes) -> None:
    """Replace the first part, and its size and hash in `dataset.json` as well."""
    (folder / PART).write_bytes(content)
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_index(folder, lambda body: body["parts"][0].update(entry))


def test_the_description(folder: Path) -> None:
    body = json.loads((folder / "dataset.json").read_text())["body"]
    assert (body["schema"], body["episodes"], body["steps"], body["about"]) == (1, 3, 6, {"env": "Toy-v0"})
    assert body["returns"] == {"mean": 5.0, "std": pytest.approx(np.std([3, 7, 5])), "min": 3.0, "max": 7.0}
    assert body["observation_space"] == {"type": "Box", "low": -1.0, "high": 1.0, "shape": [2], "dtype": "float32"}
    assert [(part["episodes"], part["steps"]) for part in body["parts"]] == [(2, 5), (1, 1)]
    assert sorted(os.listdir(folder)) == ["dataset.json", PART, "part-00001.safetensors"]


def test_episodes_share_parts_up_to_their_size(tmp_path: Path) -> None:
    size = sum(np.asarray(column).nbytes for column in episodes([10]).values())
    with DatasetWriter(tmp_path / "data", POINT, TURNS, {}, part_bytes=3 * size) as writer:
        for number in range(7):
            writer.add(episodes([10], 10 * number))
    body = json.loads((tmp_path / "data" / "dataset.json").read_text())["body"]
    assert [part["episodes"] for part in body["parts"]] == [3, 3, 1]
    assert open_dataset(tmp_path / "data").rows(np.arange(70))["reward"].tolist() == list(range(70))


def test_an_existing_path_is_never_overwritten(folder: Path) -> None:
    before = (folder / "dataset.json").read_bytes()
    with pytest.raises(ConfigError, match="data exists, and a dataset is never overwritten"):
        write(folder, episodes([1]))
    assert (folder / "dataset.json").read_bytes() == before


def test_a_path_that_another_process_wrote_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", POINT, TURNS, {}).__enter__()
    writer.add(episodes([1]))
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="data exists"):
        writer.__exit__(None, None, None)
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), DatasetWriter(tmp_path / "data", POINT, TURNS, {}, part_bytes=1) as writer:
        writer.add(episodes([3]))
        assert not (tmp_path / "data").exists()
        assert len(os.listdir(tmp_path)) == 1
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with (
        pytest.raises(DatasetError, match="data: it was not written: no episode was added"),
        DatasetWriter(tmp_path / "data", POINT, TURNS, {}),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DatasetError, match=r"file/data: it cannot be written \(File exists: .*/file\)"),
        DatasetWriter(tmp_path / "file" / "data", POINT, TURNS, {}),
    ):
        pytest.fail("it was opened")


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    """As a stand-in for the disk, the size of files is limited, which fails in the same call."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        with pytest.raises(DatasetError, match=r"data: it cannot be written \(File too large"):
            write(tmp_path / "data", episodes([20]), episodes([1000]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


def test_the_parents_of_a_path_are_created(tmp_path: Path) -> None:
    assert write(tmp_path / "some" / "new" / "data", episodes([2])).num_steps == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros(4, np.float32)}, r"its 2 episodes do not have the 4 steps of its rows"),
        ({"reward": np.zeros(5)}, r"the rows of 'reward' have shape \(\) and dtype float64, not .* float32"),
        ({"reward": np.array([0, 1, np.nan, 0, 0], np.float32)}, r"reward has numbers that are not finite, in row 2"),
        ({"obs": np.zeros((5, 3), np.float32)}, r"the rows of 'obs' have shape \(3,\)"),
        ({"obs": np.zeros((4, 2), np.float32)}, "obs has 4 rows, not 5"),
        ({"obs": {"a": np.zeros((5, 2), np.float32)}}, r"the rows of 'obs' have parts"),
        ({"action": np.full((5, 2), 2)}, r"action has \[2, 2\] in row 0, which is not in MultiDiscrete\(\[3 2\]\)"),
        ({"final_obs": np.zeros((5, 2), np.float32)}, "final_obs has 5 rows, not 2"),
        ({"terminated": np.zeros(5, bool)}, "do not all end with a step that is terminated or truncated"),
        ({"truncated": np.ones(5, bool)}, "and only there"),
        ({"length": np.array([5, 0])}, "its 2 episodes"),
        ({"log_prob": np.zeros(5)}, "it has the columns"),
    ],
)
def test_what_is_no_whole_episode_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        write(tmp_path / "data", {**episodes([3, -2]), **change})


def test_a_dtype_that_files_cannot_hold_is_refused(tmp_path: Path) -> None:
    space = spaces.Box(0, 1, (2,), np.dtype(">i4"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="obs has dtype >i4, which a dataset cannot hold"):
        DatasetWriter(tmp_path / "data", space, TURNS, {})


def flip_a_byte(folder: Path) -> None:
    content = bytearray((folder / PART).read_bytes())
    content[-3] ^= 1
    (folder / PART).write_bytes(content)


CORRUPTIONS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a changed byte": (flip_a_byte, rf"{PART}: it is corrupt: its hash is not the one in dataset.json"),
    "a short part": (lambda folder: os.truncate(folder / PART, 100), rf"{PART}: it has 100 bytes, and \d+ were"),
    "a missing part": (lambda folder: (folder / PART).unlink(), rf"{PART}: it cannot be read \(No such file"),
    "a linked part": (
        lambda folder: ((folder / PART).rename(folder / "x"), (folder / PART).symlink_to("x")),
        rf"{PART}: it cannot be read \(it is a symbolic link\)",
    ),
    "a directory": (
        lambda folder: ((folder / PART).unlink(), (folder / PART).mkdir()),
        rf"{PART}: it cannot be read \(it is not a regular file\)",
    ),
    "another part": (
        lambda folder: shutil.copy(folder / "part-00001.safetensors", folder / PART),
        rf"{PART}: it has \d+ bytes",
    ),
    "no JSON": (lambda folder: (folder / "dataset.json").write_text("{"), r"dataset.json: it is corrupt \(Expecting"),
    "a foreign file": (
        lambda folder: (folder / "dataset.json").write_text('{"name": "iris", "rows": 150}'),
        "dataset.json: it does not describe a dataset: sha256 is missing",
    ),
    "a list": (lambda folder: (folder / "dataset.json").write_text("[1]"), "it does not describe a dataset: all of it"),
    "deep": (lambda folder: (folder / "dataset.json").write_text("[" * 10**6), "dataset.json: it is corrupt"),
    "changed counts": (
        lambda folder: change_index(folder, lambda body: body.update(steps=7), rehash=False),
        "dataset.json: it is corrupt: its contents do not match its hash",
    ),
    "wrong counts": (
        lambda folder: change_index(folder, lambda body: body.update(steps=7)),
        "dataset.json: it is corrupt: its 7 steps are not those of its parts",
    ),
    "wrong counts of a part": (
        lambda folder: change_index(folder, lambda body: (body.update(steps=7), body["parts"][0].update(steps=6))),
        f"{PART}: it is corrupt: dataset.json has other numbers",
    ),
    "a negative count": (
        lambda folder: change_index(folder, lambda body: body["parts"][0].update(episodes=-1)),
        "part 0 has -1 episodes and 5 steps",
    ),
    "a part that is a number": (
        lambda folder: change_index(folder, lambda body: body.update(parts=[3])),
        "dataset.json: it is corrupt: part 0 is 3",
    ),
    "no spaces": (
        lambda folder: change_index(folder, lambda body: body.pop("action_space")),
        "dataset.json: it is corrupt: action_space is missing",
    ),
    "an unknown space": (
        lambda folder: change_index(folder, lambda body: body["action_space"].update(type="Text")),
        "dataset.json: it is corrupt: unknown type of space 'Text'",
    ),
    "an empty dataset": (
        lambda folder: change_index(folder, lambda body: body.update(episodes=0, steps=0, parts=[])),
        "dataset.json: the dataset is empty: it has no episode",
    ),
    "a future schema": (
        lambda folder: change_index(folder, lambda body: body.update(schema=2), rehash=False),
        r"dataset.json: it has schema 2, and this version of raceway reads up to 1\. Upgrade raceway",
    ),
    "other spaces than in the parts": (
        lambda folder: change_index(folder, lambda body: body["observation_space"].update(shape=[3])),
        rf"{PART}: it is corrupt \(ValueError",
    ),
}


@pytest.mark.parametrize(("corrupt", "message"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_corruption_is_one_clear_error(folder: Path, corrupt: Callable[[Path], Any], message: str) -> None:
    read_all(folder)
    corrupt(folder)
    with pytest.raises(DatasetError, match=message):
        read_all(folder)


def tensor_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ROWS = {"dtype": "F32", "shape": [5, 2], "data_offsets": [0, 40]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        struct.pack("<Q", 1 << 60),
        tensor_file(b"\xff\xfe"),
        tensor_file([1, 2]),
        tensor_file({}),
        tensor_file({"obs": 3}),
        tensor_file({"obs": {**ROWS, "data_offsets": [0, 40, 80]}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "data_offsets": [0, 10**12]}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "data_offsets": [-40, 0]}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "shape": [10**12, 2]}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "shape": [-5, 2]}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "shape": "x"}}, bytes(40)),
        tensor_file({"obs": {**ROWS, "dtype": "F64"}}, bytes(40)),
        tensor_file({"obs": ROWS}, bytes(40)),
    ],
)  # fmt: skip
def test_a_part_with_a_matching_hash_is_not_trusted(folder: Path, content: bytes) -> None:
    replace_part(folder, content)
    with pytest.raises(DatasetError, match=rf"{PART}: it is corrupt"):
        read_all(folder)


def test_values_in_a_part_with_a_matching_hash_are_not_trusted(folder: Path) -> None:
    content = (folder / PART).read_bytes()
    five = np.arange(5, dtype=np.float32).tobytes()  # the rewards
    assert content.count(five) == 1
    replace_part(folder, content.replace(five, np.full(5, np.inf, np.float32).tobytes()))
    with pytest.raises(DatasetError, match="it is corrupt: reward has numbers that are not finite, in row 0"):
        read_all(folder)


def test_a_copy_is_the_same_dataset(folder: Path) -> None:
    first = open_dataset(folder)
    second = save_dataset(first, folder.with_name("copy"))
    assert second.about == first.about
    np.testing.assert_array_equal(second.rows(np.arange(6))["obs"], first.rows(np.arange(6))["obs"])
    assert second.observation_space == first.observation_space
