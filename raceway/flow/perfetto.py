"""Write the events of a run as a trace for Perfetto and chrome://tracing.

with TraceWriter("trace.json") as writer, flow.start() as run:
    run.subscribe(writer)
    for item in run: ...
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from raceway.flow.monitoring import Event

_DRIVER = 0
_MICRO = 1e6


class TraceWriter:
    """A subscriber that writes a trace: a track per shard with a slice per item, counters, and failures.

    The trace of a program that was killed is still readable: viewers do not need the end of the list.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115
        self._file.write("[\n")
        self._tracks: set[tuple[int, int]] = set()
        self._labels: list[str] = []
        self._last: dict[str, tuple[float, int]] = {}

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if event.kind == "start":
            self._labels = [node["label"] for node in event.data["nodes"]]
            self._write({"ph": "M", "pid": _DRIVER, "name": "process_name", "args": {"name": "driver"}})
        elif event.kind == "items":
            self._write_items(event.data["items"])
        elif event.kind == "counters":
            self._write_counters(event)
        else:
            base = {"ph": "i", "pid": _DRIVER, "tid": 0, "s": "g", "ts": event.time * _MICRO}
            self._write({**base, "name": event.kind, "args": dict(event.data)})

    def _write_items(self, items: list[tuple[int, int, int, float, float]]) -> None:
        rows = []
        for gather, shard, sequence, started, finished in items:
            if (gather, shard) not in self._tracks:
                self._tracks.add((gather, shard))
                name = self._labels[gather] if gather < len(self._labels) else f"gather {gather}"
                self._write({"ph": "M", "pid": 1 + gather, "name": "process_name", "args": {"name": name}})
                track = {"ph": "M", "pid": 1 + gather, "tid": shard, "name": "thread_name"}
                self._write({**track, "args": {"name": f"shard {shard}"}})
            duration = max(finished - started, 0.0) * _MICRO
            # Formatted by hand: there is a row for every item, and json.dumps would be the largest cost.
            rows.append(
                f'{{"ph":"X","pid":{1 + gather},"tid":{shard},"name":"item {sequence}",'
                f'"ts":{started * _MICRO:.1f},"dur":{duration:.1f}}},\n'
            )
        self._file.write("".join(rows))

    def _write_counters(self, event: Event) -> None:
        for name, counters in event.data["nodes"].items():
            last_time, last_items = self._last.get(name, (event.time, 0))
            rate = (counters.items - last_items) / (event.time - last_time) if event.time > last_time else 0.0
            self._last[name] = (event.time, counters.items)
            row = {"ph": "C", "pid": _DRIVER, "name": name, "ts": event.time * _MICRO}
            self._write({**row, "args": {"items/s": round(rate, 3)}})

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + ",\n")

    def close(self) -> None:
        """Complete the file and close it."""
        if not self._file.closed:
            self._file.write('{"ph":"M","pid":0,"name":"process_labels","args":{"labels":"raceway"}}\n]\n')
            self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
