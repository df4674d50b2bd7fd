"""What a run has written down of itself, whoever wrote it, and with whichever version."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from raceway.errors import ConfigError
from raceway.runs import schema
from raceway.runs.reader import read_run
from raceway.runs.schema import METRICS, SCHEMA, has_policy, last_row, read_config, read_metrics
from tests.runs.run_folders import make_run, row_of

POLICY = {
    "kind": "actor", "network": "mlp", "hidden": [8], "normalise": False, "num_slots": 1, "activation": None,
    "shared": False,
}  # fmt: skip
SPACES = {"observation": {"type": "Discrete"}, "action": {"type": "Discrete"}}
NOW: dict[str, Any] = {
    "schema": SCHEMA, "metrics_schema": METRICS, "algorithm": "ppo",
    "config": {"env": "CartPole-v1", "seed": 0, "network": "mlp", "env_kwargs": {}},
    "env": {"name": "CartPole-v1", "kwargs": {}, "vector": "auto"},
    "importable": {"env": True, "network": True, "env_kwargs": True}, "policy": POLICY, "spaces": SPACES,
}  # fmt: skip


def written_down(folder: Path, about: Any) -> Path:
    make_run(folder)
    (folder / "config.json").write_text(json.dumps(about))
    return folder


def places(doc: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inside = [(*before, key) for key in doc] if isinstance(doc, dict) else []
    return inside + [deeper for place in inside for deeper in places(doc[place[-1]], place)]


NEEDED = [place for place in places(NOW) if place[0] not in ("policy", "spaces") or len(place) == 2]


@pytest.mark.parametrize("place", NEEDED, ids=".".join)
def test_whatever_is_missing_or_of_another_type_is_named(tmp_path: Path, place: tuple[str, ...]) -> None:
    assert read_config(written_down(tmp_path / "good", NOW)) == NOW | {"resumes": []}
    for number, value in enumerate(("missing", 2.5, None, [3], "x", {"y": 1})):
        about = json.loads(json.dumps(NOW))
        inside = about
        for name in place[:-1]:
            inside = inside[name]
        if isinstance(value, type(inside[place[-1]])):
            continue
        if value == "missing":
            del inside[place[-1]]
        else:
            inside[place[-1]] = value
        if (place[-1], value) == ("activation", "x"):
            continue
        with pytest.raises(ConfigError, match=rf"config.json .*{place[-1]}"):
            read_config(written_down(tmp_path / str(number), about))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "\0" * 50, "[" * 100_000, '{"schema": 1e999}', '{"schema": true}']
)
def test_what_is_no_config_is_named(tmp_path: Path, text: str) -> None:
    path = make_run(tmp_path / "run")
    (path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"run/config.json (is corrupt|cannot be read)"):
        read_config(path)


@pytest.mark.parametrize("resumes", [5, [5], {}, [[]]])
def test_resumes_are_checked_too(tmp_path: Path, resumes: Any) -> None:
    with pytest.raises(ConfigError, match=r"resumes .*not an? "):
        read_config(written_down(tmp_path / "run", NOW | {"resumes": resumes}))


@pytest.mark.parametrize(("name", "newest"), [("schema", SCHEMA), ("metrics_schema", METRICS)])
def test_what_a_newer_version_wrote_is_refused(tmp_path: Path, name: str, newest: int) -> None:
    path = written_down(tmp_path / "run", NOW | {name: newest + 1})
    with pytest.raises(ConfigError, match=rf"is of {name} {newest + 1}, and this .* reads up to {newest}. Upgrade"):
        read_config(path)
    with pytest.raises(ConfigError, match="Upgrade"):
        read_metrics(path)


def test_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    config = {"env": "CartPole-v1", "seed": 3, "lr": 0.1, "env_kwargs": {"gravity": 1}}
    path = written_down(tmp_path / "run", {"schema": 1, "algorithm": "ppo", "config": config})
    about = read_config(path)
    assert (about["schema"], about["metrics_schema"], about["config"]) == (SCHEMA, 1, config)
    assert about["env"] == {"name": "CartPole-v1", "kwargs": {"gravity": 1}, "vector": "auto"}
    assert not has_policy(about)
    assert (read_run(path).seed, len(read_run(path).metrics)) == (3, 2)


def test_rows_are_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(row: dict[str, Any]) -> dict[str, Any]:
        return {"time/frames_per_second" if name == "time/fps" else name: value for name, value in row.items()}

    path = written_down(tmp_path / "run", NOW)
    monkeypatch.setattr(schema, "METRICS", METRICS + 1)
    monkeypatch.setattr(schema, "ROWS", {METRICS: renamed})
    assert [row["time/frames_per_second"] for row in read_metrics(path)] == [200.0, 200.0]
    assert last_row(path)["time/frames_per_second"] == 200.0


def test_lines_that_are_no_rows_are_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_run(tmp_path / "run", [1.0])
    bad = [b'{"time/iterations": 2, "ti{"time/iterations": 3}', b"\0" * 50, b"[1]", b"{}", b'{"time/iterations": "x"}']
    content = b"\n".join([*bad, b"[" * 100_000, json.dumps(row_of(9, 5.0)).encode(), b'{"time/iter'])
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(content)
    with caplog.at_level(logging.WARNING):
        assert [row["time/iterations"] for row in read_metrics(path)] == [1, 9]
    (message,) = caplog.messages
    assert "has 6 lines that are no rows of metrics, which are left out. The first is line 2" in message
    assert last_row(path)["time/iterations"] == 9


def test_a_line_that_is_being_written_is_not_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = make_run(tmp_path / "run", [1.0])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"time/iter')
    assert len(read_metrics(path)) == 1
    assert not caplog.messages
