"""TensorBoard event files, read back as TensorBoard reads them."""

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
from raceway.runs.tensorboard import TensorBoardWriter
from tests.conftest import GENEROUS
from tests.runs.fake_runs import metrics_row

ROOT = Path(__file__).parents[2]


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def read_events(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        length_bytes, record = data[:8], data[12 : 12 + length]
        checksums = struct.unpack("<I", data[8:12]) + struct.unpack("<I", data[12 + length : 16 + length])
        assert checksums == (masked_crc32c(length_bytes), masked_crc32c(record))
        yield event_pb2.Event.FromString(record)
        data = data[16 + length :]


def read_scalars(directory: Path) -> dict[int, dict[str, float]]:
    """Return the scalars of each step, by TensorBoard's rules: a restart purges its step and all later ones."""
    scalars: dict[int, dict[str, float]] = {}
    for path in sorted(directory.iterdir()):
        first, *events = read_events(path)
        assert first.file_version == "brain.Event:2"
        for event in events:
            if event.session_log.status == event_pb2.SessionLog.START:
                scalars = {step: values for step, values in scalars.items() if step < event.step}
            else:
                scalars[event.step] = {value.tag: value.simple_value for value in event.summary.value}
    return scalars


def test_every_number_is_written_under_its_name(tmp_path: Path) -> None:
    row = metrics_row(3, None) | {
        "train/loss": np.float32(0.5), "train/policy_lag": 2, "eval/mean_reward": math.nan, "note": "text",
        "flag": True,
    }  # fmt: skip
    with TensorBoardWriter(tmp_path / "new" / "directory") as writer:
        writer.add(row)
    ((step, scalars),) = read_scalars(tmp_path / "new" / "directory").items()
    assert step == 300
    assert scalars.pop("eval/mean_reward") != 0
    assert scalars == {
        "time/iterations": 3, "time/total_timesteps": 300, "time/episodes": 30, "time/time_elapsed": 1.5,
        "time/fps": 200, "train/loss": 0.5, "train/policy_lag": 2,
    }  # fmt: skip


def test_frequent_rows_are_thinned_out_except_evaluations_and_the_last(tmp_path: Path) -> None:
    clock = Clock()
    writer = TensorBoardWriter(tmp_path, clock=clock)
    for number in range(1, 101):  # 64 rows a second
        clock.now += 1 / 64
        writer.add(metrics_row(number, 1.0) | ({"eval/mean_reward": 5.0} if number == 50 else {}))
    writer.close()
    assert list(read_scalars(tmp_path)) == [100, 1400, 2700, 4000, 5000, 6300, 7600, 8900, 10_000]
    assert read_scalars(tmp_path)[5000]["eval/mean_reward"] == 5.0


def test_infrequent_rows_are_all_written(tmp_path: Path) -> None:
    clock = Clock()
    with TensorBoardWriter(tmp_path, clock=clock) as writer:
        for number in range(1, 6):
            clock.now += 1.0
            writer.add(metrics_row(number, 1.0))
    assert list(read_scalars(tmp_path)) == [100, 200, 300, 400, 500]


def test_a_resumed_run_replaces_later_steps(tmp_path: Path) -> None:
    for steps, from_step, mean in (((1, 2, 3, 4), None, 1.0), ((3, 4, 5), 200, 2.0)):
        clock = Clock()
        with TensorBoardWriter(tmp_path, from_step, clock=clock) as writer:
            for number in steps:
                clock.now += 1.0
                writer.add(metrics_row(number, mean))
    scalars = read_scalars(tmp_path)
    assert {step: values["rollout/ep_rew_mean"] for step, values in scalars.items()} == {
        100: 1.0, 200: 1.0, 300: 2.0, 400: 2.0, 500: 2.0,
    }  # fmt: skip


def test_the_file_is_flushed_ten_times_a_minute(tmp_path: Path) -> None:
    clock, sizes = Clock(), set()
    writer = TensorBoardWriter(tmp_path, clock=clock)
    for number in range(1, 121):  # two a second, for a minute
        clock.now += 0.5
        writer.add({"time/total_timesteps": number})
        sizes.add(writer.path.stat().st_size)
    writer.close()
    assert len(sizes) == 11  # at the start, and ten times
    assert len(read_scalars(tmp_path)) == 120


def test_a_flush_writes_the_pending_row(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path, clock=Clock())
    writer.add(metrics_row(1, 1.0))
    writer.add(metrics_row(2, 1.0))
    writer.flush()
    assert list(read_scalars(tmp_path)) == [100, 200]
    writer.close()
    writer.close()
    assert list(read_scalars(tmp_path)) == [100, 200]


def test_a_full_disk_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    writer = TensorBoardWriter(tmp_path, clock=clock)
    writer._file.close()
    writer._file = open("/dev/full", "wb")  # noqa: SIM115
    for number in range(1, 300):
        clock.now += 1.0
        writer.add(metrics_row(number, 1.0))
    writer.close()
    assert len(caplog.messages) == 1
    assert "No space left" in caplog.text


def test_a_full_disk_leaves_no_incomplete_record(tmp_path: Path) -> None:
    """TensorBoard cannot read past one."""
    clock = Clock()
    writer = TensorBoardWriter(tmp_path, clock=clock)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(1, 40):
        if number == 10:
            writer.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 100, before[1]))
        if number == 30:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        clock.now += 10.0
        writer.add(metrics_row(number, 1.0) | {"train/" + "long" * 4000: 1.0})
    writer.close()
    assert list(read_scalars(tmp_path)) == [*range(100, 1000, 100), *range(3000, 4000, 100)]


KILLED = """
import os, signal, sys
from pathlib import Path
from raceway.runs.tensorboard import TensorBoardWriter
now = [0.0]
writer = TensorBoardWriter(Path(sys.argv[1]), clock=lambda: now[0])
for number in range(1, 101):
    now[0] += 0.5
    writer.add({"time/total_timesteps": number, "train/loss": 0.1})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_only_the_last_seconds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=GENEROUS)
    assert done.returncode == -signal.SIGKILL
    assert max(read_scalars(tmp_path / "run")) >= 100 - 12  # two rows a second, for six seconds


def test_a_missing_tensorboardx_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.proto", None)
    with pytest.raises(ConfigError, match="pip install tensorboardX"):
        TensorBoardWriter(tmp_path / "run")
    assert not (tmp_path / "run").exists()
