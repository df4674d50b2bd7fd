import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.checkpoints import blocks
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.errors import CheckpointError, ConfigError
from raceway.replay import Replay
from tests.checkpoints.test_encoding import DTYPES, same


def state_of(steps: int, **more: Any) -> dict[str, Any]:
    weights = {"layer.weight": np.full((3, 2), steps, "f4"), "layer.bias": np.arange(3.0), "scale": np.array(0.5)}
    return {"learner": {"policy": weights, "steps": steps}, "flow": (steps, [np.arange(4)]), **more}


def saved(checkpoints: Checkpoints, steps: int, score: Any = None, **more: Any) -> Checkpoint:
    return checkpoints.save(state_of(steps, **more), {"steps": steps, "score": score})


def steps_of(checkpoints: Checkpoints) -> list[int]:
    return [one.steps for one in checkpoints.all()]


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and size of every file: what is written anew has another inode."""
    found = {path.relative_to(folder).as_posix(): path.stat() for path in folder.rglob("*") if path.is_file()}
    return {name: (about.st_ino, about.st_size) for name, about in found.items()}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(blocks, "BLOCK", 1024)
    return 1024


def test_what_is_saved_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "checkpoints")
    made = saved(checkpoints, 20, 1.5)
    found = Checkpoints(tmp_path / "deep" / "checkpoints").find("latest")
    assert found.path == made.path == tmp_path / "deep" / "checkpoints" / "000000000020"
    assert found.about == {"steps": 20, "score": 1.5}
    assert found.sha256 == made.sha256
    assert same(found.state(), state_of(20))
    assert same(found.weights(), state_of(20)["learner"]["policy"])


def test_find_says_what_there_is(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoints.find()
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoints.newest_good()
    for steps in (5, 10):
        saved(checkpoints, steps)
    assert [checkpoints.find(which).steps for which in ("latest", "best", 5, "5", "10")] == [10, 10, 5, 5, 10]
    for which in (7, "tenth", -5):
        with pytest.raises(CheckpointError, match=f"no checkpoint of {which} steps. There are: 5, 10"):
            checkpoints.find(which)


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps, score in ((1, 5.0), (2, 9.0), (3, None), (4, 1.0), (5, 2.0)):
        saved(checkpoints, steps, score)
    assert steps_of(checkpoints) == [2, 4, 5]
    assert checkpoints.find("best").steps == 2
    saved(checkpoints, 6, 9.0)  # as good, and later
    assert steps_of(checkpoints) == [5, 6]
    with pytest.raises(ConfigError, match="keep"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("score", [math.nan, "high", None, [1]])
def test_what_is_no_score_is_never_the_best(tmp_path: Path, score: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 1, -math.inf)
    saved(checkpoints, 2, score)
    assert checkpoints.find("best").steps == 1


def test_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps in (999_999_999_999, 1_000_000_000_000, 2_000_000_000_000):
        saved(checkpoints, steps)
    assert steps_of(checkpoints) == [1_000_000_000_000, 2_000_000_000_000]


def test_what_is_told_may_have_numbers_of_numpy(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    made = checkpoints.save({}, {"steps": np.int64(3), "score": np.float32(0.5), "by": {1: np.int8(2), "a": (1,)}})
    assert Checkpoint(made.path).about == {"steps": 3, "score": 0.5, "by": {"1": 2, "a": [1]}}
    with pytest.raises(ConfigError, match="plain data"):
        checkpoints.save({}, {"steps": 4, "policy": object()})
    assert sorted(os.listdir(tmp_path)) == ["000000000003", "blocks"]


def test_the_same_state_has_the_same_hash(tmp_path: Path, small_blocks: int) -> None:
    one, other = Checkpoints(tmp_path / "one"), Checkpoints(tmp_path / "other")
    long = np.arange(3 * small_blocks)
    assert saved(one, 5, long=long).sha256 == saved(other, 5, long=long.copy()).sha256
    long[2000] += 1
    assert saved(one, 5, long=long).sha256 != other.find().sha256


@pytest.mark.parametrize("dtype", [*DTYPES, ">i4", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (400, 3), (2, 3000)])
def test_arrays_come_back_as_they_were(tmp_path: Path, small_blocks: int, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tree = {"x": array, "learner": {"policy": {"w": array}}}
    back = Checkpoints(tmp_path).save(tree, {"steps": 1})
    assert same(back.state(), tree)
    assert same(back.weights(), {"w": array})
    assert same(back.state()["x"], np.array(array[...]))


def test_arrays_that_are_not_in_a_row_come_back(tmp_path: Path, small_blocks: int) -> None:
    array = np.arange(4000.0).reshape(40, 100)
    for steps, one in enumerate((array[::2], array.T, array[::-1], np.asfortranarray(array), array[:, 3], array[:1])):
        assert np.array_equal(Checkpoints(tmp_path).save({"x": one}, {"steps": steps}).state()["x"], one)


def test_arrays_can_be_written_to(tmp_path: Path, small_blocks: int) -> None:
    tree = {"short": np.zeros(3), "one": np.zeros(5, ">f8"), "many": np.zeros((small_blocks, 2))}
    found = Checkpoints(tmp_path).save({**state_of(1), **tree}, {"steps": 1})
    for array in (*(found.state()[name] for name in tree), *found.weights().values()):
        array[...] = 7


def test_large_weights_are_where_weights_are_looked_for(tmp_path: Path, small_blocks: int) -> None:
    weights = {"layer": np.arange(2.0 * small_blocks)}
    made = Checkpoints(tmp_path).save({"learner": {"policy": weights}}, {"steps": 1})
    assert same(made.weights(), weights)
    assert not os.listdir(tmp_path / "blocks")


def test_only_blocks_that_changed_are_written(tmp_path: Path, small_blocks: int) -> None:
    checkpoints, long = Checkpoints(tmp_path, keep=2), np.arange(16 * small_blocks // 8).reshape(-1, 4)
    saved(checkpoints, 1, long=long)
    first = files_of(tmp_path / "blocks")
    assert len(first) == 16
    long[5] = -1
    saved(checkpoints, 2, long=long)
    second = files_of(tmp_path / "blocks")
    assert len(second) == 17
    assert first.items() <= second.items()
    saved(Checkpoints(tmp_path, keep=2), 3, long=long)  # another process knows nothing of them, and looks
    third = files_of(tmp_path / "blocks")
    assert len(third) == 16  # the first checkpoint is gone, with the block that only it had
    assert third.items() <= second.items()
    assert all(same(one.state()["long"], long) for one in checkpoints.all())
    saved(checkpoints, 4)
    assert len(files_of(tmp_path / "blocks")) == 16
    saved(checkpoints, 5)
    assert not files_of(tmp_path / "blocks")


def test_a_very_long_array_has_not_too_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 64)
    saved(Checkpoints(tmp_path), 1, long=np.arange(100_000))
    assert 128 <= len(files_of(tmp_path / "blocks")) <= 257


def test_a_block_that_was_spoilt_is_written_again(tmp_path: Path, small_blocks: int) -> None:
    long = np.arange(8 * small_blocks // 8)
    for steps, spoil in enumerate((_flip, _empty, _folder)):
        saved(Checkpoints(tmp_path), 2 * steps, long=long)
        spoil(sorted((tmp_path / "blocks").iterdir())[0])
        with pytest.raises(CheckpointError):
            Checkpoints(tmp_path).find(2 * steps).state()
        assert same(saved(Checkpoints(tmp_path), 2 * steps + 1, long=long).state()["long"], long)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def test_a_million_transitions(tmp_path: Path) -> None:
    replay, random = Replay(1_000_000, seed=1), np.random.default_rng(0)

    def rows(num: int) -> dict[str, Any]:
        return {
            "obs": random.normal(size=(num, 4)).astype("f4"), "next_obs": random.normal(size=(num, 4)).astype("f4"),
            "action": random.integers(0, 2, num), "reward": np.ones(num, "f4"), "terminated": random.random(num) < 0.01,
        }  # fmt: skip

    for _ in range(10):
        replay.insert(rows(100_000))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"replay": replay.state()}, {"steps": 1})
    first = files_of(tmp_path)
    replay.insert(rows(1000))
    made = checkpoints.save({"replay": replay.state()}, {"steps": 2})
    written = {name: about for name, about in files_of(tmp_path).items() if name not in first}
    assert first.items() <= files_of(tmp_path).items()
    assert 0 < sum(size for _, size in written.values()) < 0.1 * sum(size for _, size in first.values())
    assert sum(name.startswith("blocks/") for name in written) <= 5  # one a column
    other = Replay(1_000_000, seed=9)
    other.restore(made.state()["replay"])
    assert same(other.state(), replay.state())
    assert same(other.sample(1000), replay.sample(1000))


def test_the_same_steps_again_replace_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    saved(checkpoints, 5)
    made = checkpoints.save(state_of(6), {"steps": 5})
    assert same(made.state(), state_of(6))
    assert sorted(os.listdir(tmp_path)) == ["000000000005", "blocks"]


def test_what_is_later_and_spoilt_does_not_push_out_what_is_good(tmp_path: Path) -> None:
    """A run that had to go back saves fewer steps than the bad checkpoint has."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    saved(checkpoints, 100)
    saved(Checkpoints(tmp_path, keep=2), 200)
    _flip(tmp_path / "000000000200" / "state.json")
    for steps in (150, 160):
        saved(checkpoints, steps)
        assert checkpoints.newest_good()[0].steps == steps
    saved(checkpoints, 200)
    assert same(checkpoints.newest_good()[1], state_of(200))
    assert steps_of(checkpoints) == [200]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for name in ("notes.txt", "best", "²"):
        (tmp_path / name).touch()
    for steps in (1, 2):
        saved(checkpoints, steps)
    assert sorted(os.listdir(tmp_path)) == ["000000000002", "best", "blocks", "notes.txt", "²"]


def test_a_state_that_cannot_be_saved_leaves_nothing(tmp_path: Path, small_blocks: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 1)
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="state/flow/x"):
        checkpoints.save({"long": np.arange(1000), "flow": {"x": object()}}, {"steps": 2})
    with pytest.raises(ConfigError, match="plain data"):  # its blocks were written by then
        checkpoints.save({"long": np.arange(1000)}, {"steps": 2, "x": object()})
    assert files_of(tmp_path) == before


class Broken(Checkpoints):
    """A disk that is full until there is room."""

    full = False

    def save(self, state: Any, about: Any) -> Checkpoint:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().save(state, about)


def test_the_saver_goes_on_when_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken(tmp_path)
    saver = Saver(broken, every=10, seconds=0)

    def save(steps: int) -> Checkpoint | None:
        return saver.save(lambda: state_of(steps), {"steps": steps})

    assert save(10)
    broken.full = True
    assert [save(steps) for steps in (20, 30, 35)] == [None, None, None]
    assert saver.last is not None
    assert saver.last.steps == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert not saver.due(39)  # an attempt costs time, so the next is when it is due
    assert saver.due(40)
    broken.full = False
    assert save(40)
    assert [record.getMessage() for record in caplog.records[1:]] == ["checkpoints are saved again"]
    broken.full = True
    save(50)
    assert len(caplog.records) == 3


def test_the_saver_passes_on_what_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    def state() -> Any:
        raise TimeoutError("a worker did not answer")

    with pytest.raises(TimeoutError):
        Saver(Checkpoints(tmp_path), every=1, seconds=0).save(state, {"steps": 1})


def test_the_saver_does_not_save_the_same_twice(tmp_path: Path) -> None:
    saver = Saver(Checkpoints(tmp_path), every=10, seconds=0)
    asked: list[int] = []
    state: Callable[[], Any] = lambda: asked.append(1)  # noqa: E731
    assert saver.save(state, {"steps": 0})
    assert saver.save(state, {"steps": 0})
    assert len(asked) == 1


def test_the_saver_counts_steps_and_seconds(tmp_path: Path) -> None:
    now = 0.0
    saver = Saver(Checkpoints(tmp_path), every=100, seconds=60, clock=lambda: now)
    assert [saver.due(steps) for steps in (0, 99, 100)] == [False, False, True]
    saver.save(dict, {"steps": 110})
    assert [saver.due(steps) for steps in (199, 200)] == [False, True]
    now = 60.0
    assert saver.due(111)
    saver.start(saver.last, 500)
    assert [saver.due(steps) for steps in (501, 600)] == [False, True]


def test_the_manifest_is_json_that_others_can_read(tmp_path: Path) -> None:
    made = saved(Checkpoints(tmp_path), 3)
    body = json.loads((made.path / "manifest.json").read_text())["body"]
    assert body["files"].keys() == {"state.json", "state.safetensors", "policy.safetensors"}
