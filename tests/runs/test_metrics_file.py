"""metrics.jsonl: migrations from older versions, and lines that are not rows."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from raceway.runs import metrics_file
from raceway.runs.config_file import METRICS_SCHEMA
from raceway.runs.metrics_file import last_row, read_metrics
from tests.runs.fake_runs import make_run, metrics_row
from tests.runs.test_config_file import CURRENT, write_run


def test_rows_are_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename_fps(row: dict[str, Any]) -> dict[str, Any]:
        return {"time/frames_per_second" if name == "time/fps" else name: value for name, value in row.items()}

    path = write_run(tmp_path / "run", CURRENT)
    monkeypatch.setattr(metrics_file, "METRICS_SCHEMA", METRICS_SCHEMA + 1)
    monkeypatch.setattr(metrics_file, "METRICS_MIGRATIONS", {METRICS_SCHEMA: rename_fps})
    assert [row["time/frames_per_second"] for row in read_metrics(path)] == [200.0, 200.0]
    assert last_row(path)["time/frames_per_second"] == 200.0


def test_invalid_lines_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_run(tmp_path / "run", [1.0])
    bad = [
        b'{"time/iterations": 2, "ti{"time/iterations": 3}',
        b"\0" * 50,
        b"[1]",
        b"{}",
        b'{"time/iterations": "x"}',
    ]
    content = b"\n".join([*bad, b"[" * 100_000, json.dumps(metrics_row(9, 5.0)).encode(), b'{"time/iter'])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(content)
    with caplog.at_level(logging.WARNING):
        assert [row["time/iterations"] for row in read_metrics(path)] == [1, 9]
    (message,) = caplog.messages
    assert "has 6 lines that are not rows of metrics, which are skipped. The first is line 2" in message
    assert last_row(path)["time/iterations"] == 9


def test_a_line_that_is_being_written_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_run(tmp_path / "run", [1.0])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"time/iter')
    assert len(read_metrics(path)) == 1
    assert not caplog.messages
