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
from tests.checkpoints.test_encoding import DTYPES, identical


def state_at(steps: int, **more: Any) -> dict[str, Any]:
    weights = {"layer.weight": np.full((3, 2), steps, "f4"), "layer.bias": np.arange(3.0), "scale": np.array(0.5)}
    return {"learner": {"policy": weights, "steps": steps}, "flow": (steps, [np.arange(4)]), **more}


def save(checkpoints: Checkpoints, steps: int, score: Any = None, **more: Any) -> Checkpoint:
    return checkpoints.save(state_at(steps, **more), {"steps": steps, "score": score})


def all_steps(checkpoints: Checkpoints) -> list[int]:
    return [checkpoint.steps for checkpoint in checkpoints.all()]


def list_files(directory: Path) -> dict[str, tuple[int, int]]:
    """Return inode and size of every file: a rewritten file has a new inode."""
    files = {path.relative_to(directory).as_posix(): path.stat() for path in directory.rglob("*") if path.is_file()}
    return {name: (status.st_ino, status.st_size) for name, status in files.items()}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)
    return 1024


def test_a_saved_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "checkpoints")
    saved = save(checkpoints, 20, 1.5)
    found = Checkpoints(tmp_path / "deep" / "checkpoints").find("latest")
    assert found.path == saved.path == tmp_path / "deep" / "checkpoints" / "000000000020"
    assert found.about == {"steps": 20, "score": 1.5}
    assert found.sha256 == saved.sha256
    assert identical(found.state(), state_at(20))
    assert identical(found.weights(), state_at(20)["learner"]["policy"])


def test_find_lists_the_existing_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoints.find()
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoints.newest_readable()
    for steps in (5, 10):
        save(checkpoints, steps)
    assert [checkpoints.find(which).steps for which in ("latest", "best", 5, "5", "10")] == [10, 10, 5, 5, 10]
    for which in (7, "tenth", -5):
        with pytest.raises(CheckpointError, match=f"no checkpoint at {which} steps. There are: 5, 10"):
            checkpoints.find(which)


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps, score in ((1, 5.0), (2, 9.0), (3, None), (4, 1.0), (5, 2.0)):
        save(checkpoints, steps, score)
    assert all_steps(checkpoints) == [2, 4, 5]
    assert checkpoints.find("best").steps == 2
    save(checkpoints, 6, 9.0)  # an equal score, later
    assert all_steps(checkpoints) == [5, 6]
    with pytest.raises(ConfigError, match="keep"):
        Checkpoints(tmp_path, keep=0)


@pytest.mark.parametrize("score", [math.nan, "high", None, [1]])
def test_an_invalid_score_is_never_the_best(tmp_path: Path, score: Any) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, -math.inf)
    save(checkpoints, 2, score)
    assert checkpoints.find("best").steps == 1


def test_steps_are_sorted_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for steps in (999_999_999_999, 1_000_000_000_000, 2_000_000_000_000):
        save(checkpoints, steps)
    assert all_steps(checkpoints) == [1_000_000_000_000, 2_000_000_000_000]


def test_the_description_may_hold_numpy_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved = checkpoints.save({}, {"steps": np.int64(3), "score": np.float32(0.5), "by": {1: np.int8(2), "a": (1,)}})
    assert Checkpoint(saved.path).about == {"steps": 3, "score": 0.5, "by": {"1": 2, "a": [1]}}
    with pytest.raises(ConfigError, match="plain data"):
        checkpoints.save({}, {"steps": 4, "policy": object()})
    assert sorted(os.listdir(tmp_path)) == ["000000000003", "blocks"]


def test_equal_states_have_equal_hashes(tmp_path: Path, small_blocks: int) -> None:
    first, second = Checkpoints(tmp_path / "first"), Checkpoints(tmp_path / "second")
    large = np.arange(3 * small_blocks)
    assert save(first, 5, large=large).sha256 == save(second, 5, large=large.copy()).sha256
    large[2000] += 1
    assert save(first, 5, large=large).sha256 != second.find().sha256


@pytest.mark.parametrize("dtype", [*DTYPES, ">i4", ">f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (400, 3), (2, 3000)])
def test_arrays_survive_a_round_trip(tmp_path: Path, small_blocks: int, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tree = {"x": array, "learner": {"policy": {"w": array}}}
    saved = Checkpoints(tmp_path).save(tree, {"steps": 1})
    assert identical(saved.state(), tree)
    assert identical(saved.weights(), {"w": array})
    assert identical(saved.state()["x"], np.array(array[...]))


def test_non_contiguous_arrays_survive_a_round_trip(tmp_path: Path, small_blocks: int) -> None:
    array = np.arange(4000.0).reshape(40, 100)
    views = (array[::2], array.T, array[::-1], np.asfortranarray(array), array[:, 3], array[:1])
    for steps, view in enumerate(views):
        assert np.array_equal(Checkpoints(tmp_path).save({"x": view}, {"steps": steps}).state()["x"], view)


def test_loaded_arrays_are_writable(tmp_path: Path, small_blocks: int) -> None:
    tree = {"small": np.zeros(3), "one_block": np.zeros(5, ">f8"), "many_blocks": np.zeros((small_blocks, 2))}
    saved = Checkpoints(tmp_path).save({**state_at(1), **tree}, {"steps": 1})
    for array in (*(saved.state()[name] for name in tree), *saved.weights().values()):
        array[...] = 7


def test_large_weights_are_stored_with_the_policy(tmp_path: Path, small_blocks: int) -> None:
    weights = {"layer": np.arange(2.0 * small_blocks)}
    saved = Checkpoints(tmp_path).save({"learner": {"policy": weights}}, {"steps": 1})
    assert identical(saved.weights(), weights)
    assert not os.listdir(tmp_path / "blocks")


def test_only_changed_blocks_are_written(tmp_path: Path, small_blocks: int) -> None:
    checkpoints, large = Checkpoints(tmp_path, keep=2), np.arange(16 * small_blocks // 8).reshape(-1, 4)
    save(checkpoints, 1, large=large)
    first = list_files(tmp_path / "blocks")
    assert len(first) == 16
    large[5] = -1
    save(checkpoints, 2, large=large)
    second = list_files(tmp_path / "blocks")
    assert len(second) == 17
    assert first.items() <= second.items()
    save(Checkpoints(tmp_path, keep=2), 3, large=large)  # as another process would, which verifies the existing blocks
    third = list_files(tmp_path / "blocks")
    assert len(third) == 16  # the first checkpoint is gone, and the block that only it referred to
    assert third.items() <= second.items()
    assert all(identical(checkpoint.state()["large"], large) for checkpoint in checkpoints.all())
    save(checkpoints, 4)
    assert len(list_files(tmp_path / "blocks")) == 16
    save(checkpoints, 5)
    assert not list_files(tmp_path / "blocks")


def test_a_very_large_array_gets_larger_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    save(Checkpoints(tmp_path), 1, large=np.arange(100_000))
    assert 128 <= len(list_files(tmp_path / "blocks")) <= 257


def test_a_corrupt_block_is_rewritten(tmp_path: Path, small_blocks: int) -> None:
    large = np.arange(8 * small_blocks // 8)
    for steps, corrupt in enumerate((_flip_bit, _truncate, _replace_with_directory)):
        save(Checkpoints(tmp_path), 2 * steps, large=large)
        corrupt(sorted((tmp_path / "blocks").iterdir())[0])
        with pytest.raises(CheckpointError):
            Checkpoints(tmp_path).find(2 * steps).state()
        assert identical(save(Checkpoints(tmp_path), 2 * steps + 1, large=large).state()["large"], large)


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    path.write_bytes(b"")


def _replace_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def test_a_large_replay_buffer_is_saved_incrementally(tmp_path: Path) -> None:
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
    first = list_files(tmp_path)
    replay.insert(rows(1000))
    saved = checkpoints.save({"replay": replay.state()}, {"steps": 2})
    written = {name: status for name, status in list_files(tmp_path).items() if name not in first}
    assert first.items() <= list_files(tmp_path).items()
    assert 0 < sum(size for _, size in written.values()) < 0.1 * sum(size for _, size in first.values())
    assert sum(name.startswith("blocks/") for name in written) <= 5  # one per column
    restored = Replay(1_000_000, seed=9)
    restored.restore(saved.state()["replay"])
    assert identical(restored.state(), replay.state())
    assert identical(restored.sample(1000), replay.sample(1000))


def test_saving_at_the_same_steps_replaces_the_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 5)
    saved = checkpoints.save(state_at(6), {"steps": 5})
    assert identical(saved.state(), state_at(6))
    assert sorted(os.listdir(tmp_path)) == ["000000000005", "blocks"]


def test_a_later_corrupt_checkpoint_does_not_displace_good_ones(tmp_path: Path) -> None:
    """A run that resumed from an earlier checkpoint saves at fewer steps than the corrupt one has."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 100)
    save(Checkpoints(tmp_path, keep=2), 200)
    _flip_bit(tmp_path / "000000000200" / "state.json")
    for steps in (150, 160):
        save(checkpoints, steps)
        assert checkpoints.newest_readable()[0].steps == steps
    save(checkpoints, 200)
    assert identical(checkpoints.newest_readable()[1], state_at(200))
    assert all_steps(checkpoints) == [200]


def test_unrelated_files_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for name in ("notes.txt", "best", "²"):
        (tmp_path / name).touch()
    for steps in (1, 2):
        save(checkpoints, steps)
    assert sorted(os.listdir(tmp_path)) == ["000000000002", "best", "blocks", "notes.txt", "²"]


def test_a_state_that_cannot_be_saved_leaves_no_files(tmp_path: Path, small_blocks: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    before = list_files(tmp_path)
    with pytest.raises(ConfigError, match="state/flow/x"):
        checkpoints.save({"large": np.arange(1000), "flow": {"x": object()}}, {"steps": 2})
    with pytest.raises(ConfigError, match="plain data"):  # raised after its blocks were written
        checkpoints.save({"large": np.arange(1000)}, {"steps": 2, "x": object()})
    assert list_files(tmp_path) == before


class SometimesFull(Checkpoints):
    """Checkpoints on a disk that can be full."""

    full = False

    def save(self, state: Any, about: Any) -> Checkpoint:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().save(state, about)


def test_the_saver_retries_when_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = SometimesFull(tmp_path)
    saver = Saver(checkpoints, every=10, seconds=0)

    def attempt(steps: int) -> Checkpoint | None:
        return saver.save(lambda: state_at(steps), {"steps": steps})

    assert attempt(10)
    checkpoints.full = True
    assert [attempt(steps) for steps in (20, 30, 35)] == [None, None, None]
    assert saver.last is not None
    assert saver.last.steps == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert not saver.due(39)  # an attempt costs time, so the next one waits until it is due
    assert saver.due(40)
    checkpoints.full = False
    assert attempt(40)
    assert [record.getMessage() for record in caplog.records[1:]] == ["checkpoints can be saved again"]
    checkpoints.full = True
    attempt(50)
    assert len(caplog.records) == 3


def test_the_saver_raises_errors_that_are_not_the_disk(tmp_path: Path) -> None:
    def state() -> Any:
        raise TimeoutError("a worker did not answer")

    with pytest.raises(TimeoutError):
        Saver(Checkpoints(tmp_path), every=1, seconds=0).save(state, {"steps": 1})


def test_the_saver_does_not_save_the_same_state_twice(tmp_path: Path) -> None:
    saver = Saver(Checkpoints(tmp_path), every=10, seconds=0)
    calls: list[int] = []
    state: Callable[[], Any] = lambda: calls.append(1)  # noqa: E731
    assert saver.save(state, {"steps": 0})
    assert saver.save(state, {"steps": 0})
    assert len(calls) == 1


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


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    saved = save(Checkpoints(tmp_path), 3)
    body = json.loads((saved.path / "manifest.json").read_text())["body"]
    assert body["files"].keys() == {"state.json", "state.safetensors", "policy.safetensors"}
