"""Files of events, read back as TensorBoard reads them."""

import math
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from raceway.errors import ConfigError
from raceway.runs.tensorboard import Events
from tests.conftest import GENEROUS
from tests.runs.run_folders import row_of

ROOT = Path(__file__).parents[2]


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def events_in(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        head, record = data[:8], data[12 : 12 + length]
        sums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + length : 16 + length])
        assert sums == (masked_crc32c(head), masked_crc32c(record))
        yield event_pb2.Event.FromString(record)
        data = data[16 + length :]


def scalars_in(folder: Path) -> dict[int, dict[str, float]]:
    """Return the scalars of each step, by TensorBoard's rules: a restart purges what had its step or a later one."""
    found: dict[int, dict[str, float]] = {}
    for path in sorted(folder.iterdir()):
        first, *events = events_in(path)
        assert first.file_version == "brain.Event:2"
        for event in events:
            if event.session_log.status == event_pb2.SessionLog.START:
                found = {step: values for step, values in found.items() if step < event.step}
            else:
                found[event.step] = {value.tag: value.simple_value for value in event.summary.value}
    return found


def test_every_number_is_under_its_name(tmp_path: Path) -> None:
    row = row_of(3, None) | {
        "train/loss": np.float32(0.5), "train/policy_lag": 2, "eval/mean_reward": math.nan, "note": "text",
        "flag": True,
    }  # fmt: skip
    with Events(tmp_path / "new" / "folder") as events:
        events.add(row)
    (found,) = scalars_in(tmp_path / "new" / "folder").items()
    step, scalars = found
    assert step == 300
    assert scalars.pop("eval/mean_reward") != 0
    assert scalars == {
        "time/iterations": 3, "time/total_timesteps": 300, "time/episodes": 30, "time/time_elapsed": 1.5,
        "time/fps": 200, "train/loss": 0.5, "train/policy_lag": 2,
    }  # fmt: skip


def test_rows_are_thinned_but_evaluations_and_the_last_are_kept(tmp_path: Path) -> None:
    clock = Clock()
    events = Events(tmp_path, clock=clock)
    for number in range(1, 101):  # 64 rows a second
        clock.now += 1 / 64
        events.add(row_of(number, 1.0) | ({"eval/mean_reward": 5.0} if number == 50 else {}))
    events.close()
    assert list(scalars_in(tmp_path)) == [100, 1400, 2700, 4000, 5000, 6300, 7600, 8900, 10_000]
    assert scalars_in(tmp_path)[5000]["eval/mean_reward"] == 5.0


def test_slow_rows_are_all_written(tmp_path: Path) -> None:
    clock = Clock()
    with Events(tmp_path, clock=clock) as events:
        for number in range(1, 6):
            clock.now += 1.0
            events.add(row_of(number, 1.0))
    assert list(scalars_in(tmp_path)) == [100, 200, 300, 400, 500]


def test_a_resumed_run_takes_the_place_of_what_came_later(tmp_path: Path) -> None:
    for steps, from_step, mean in (((1, 2, 3, 4), None, 1.0), ((3, 4, 5), 200, 2.0)):
        clock = Clock()
        with Events(tmp_path, from_step, clock=clock) as events:
            for number in steps:
                clock.now += 1.0
                events.add(row_of(number, mean))
    found = scalars_in(tmp_path)
    assert {step: values["rollout/ep_rew_mean"] for step, values in found.items()} == {
        100: 1.0, 200: 1.0, 300: 2.0, 400: 2.0, 500: 2.0,
    }  # fmt: skip


def test_it_is_flushed_ten_times_a_minute(tmp_path: Path) -> None:
    clock, sizes = Clock(), set()
    events = Events(tmp_path, clock=clock)
    for number in range(1, 121):  # two a second, for a minute
        clock.now += 0.5
        events.add({"time/total_timesteps": number})
        sizes.add(events.path.stat().st_size)
    events.close()
    assert len(sizes) == 11  # at the start, and ten times
    assert len(scalars_in(tmp_path)) == 120


def test_a_flush_writes_what_is_held_back(tmp_path: Path) -> None:
    events = Events(tmp_path, clock=Clock())
    events.add(row_of(1, 1.0))
    events.add(row_of(2, 1.0))
    events.flush()
    assert list(scalars_in(tmp_path)) == [100, 200]
    events.close()
    events.close()
    assert list(scalars_in(tmp_path)) == [100, 200]


def test_a_full_disk_is_told_once_and_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    events = Events(tmp_path, clock=clock)
    events._file.close()
    events._file = open("/dev/full", "wb")  # noqa: SIM115
    for number in range(1, 300):
        clock.now += 1.0
        events.add(row_of(number, 1.0))
    events.close()
    assert len(caplog.messages) == 1
    assert "No space left" in caplog.text


def test_a_full_disk_leaves_no_torn_record(tmp_path: Path) -> None:
    """Behind one, TensorBoard finds nothing any more."""
    clock = Clock()
    events = Events(tmp_path, clock=clock)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(1, 40):
        if number == 10:
            events.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (events.path.stat().st_size + 100, before[1]))
        if number == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        clock.now += 10.0
        events.add(row_of(number, 1.0) | {"train/" + "long" * 4000: 1.0})
    events.close()
    assert list(scalars_in(tmp_path)) == [*range(100, 1000, 100), *range(3000, 4000, 100)]


KILLED = """
import os, signal, sys
from pathlib import Path
from raceway.runs.tensorboard import Events
now = [0.0]
events = Events(Path(sys.argv[1]), clock=lambda: now[0])
for number in range(1, 101):
    now[0] += 0.5
    events.add({"time/total_timesteps": number, "train/loss": 0.1})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_the_last_seconds_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=GENEROUS)
    assert done.returncode == -signal.SIGKILL
    assert max(scalars_in(tmp_path / "run")) >= 100 - 12  # two rows a second, and six seconds


def test_without_tensorboardx_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.proto", None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        Events(tmp_path / "run")
    assert not (tmp_path / "run").exists()
