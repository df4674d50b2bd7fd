"""config.json: what is refused in it, and migrations from older versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from raceway.errors import ConfigError
from raceway.runs.config_file import CONFIG_SCHEMA, METRICS_SCHEMA, has_checkpoints, read_config
from raceway.runs.metrics_file import read_metrics
from raceway.runs.reader import read_run
from tests.runs.fake_runs import make_run

SPACES = {"observation": {"type": "Discrete"}, "action": {"type": "Discrete"}}
CURRENT: dict[str, Any] = {
    "schema": CONFIG_SCHEMA, "metrics_schema": METRICS_SCHEMA, "algorithm": "ppo",
    "config": {"env": "CartPole-v1", "seed": 0, "network": "mlp", "env_kwargs": {}},
    "env": {"name": "CartPole-v1", "kwargs": {}, "vector": "auto"},
    "importable": {"env": True, "network": True, "env_kwargs": True}, "spaces": SPACES,
}  # fmt: skip


def write_run(path: Path, about: Any) -> Path:
    make_run(path)
    (path / "config.json").write_text(json.dumps(about))
    return path


def key_paths(doc: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all keys in a nested document."""
    paths = [(*prefix, key) for key in doc] if isinstance(doc, dict) else []
    return paths + [nested for path in paths for nested in key_paths(doc[path[-1]], path)]


REQUIRED = [path for path in key_paths(CURRENT) if path[0] != "spaces" or len(path) == 2]


@pytest.mark.parametrize("key_path", REQUIRED, ids=".".join)
def test_an_entry_that_is_missing_or_of_a_wrong_type_is_named(tmp_path: Path, key_path: tuple[str, ...]) -> None:
    assert read_config(write_run(tmp_path / "good", CURRENT)) == CURRENT | {"resumes": [], "setting_sources": {}}
    for number, value in enumerate(("missing", 2.5, None, [3], "x", {"y": 1})):
        about = json.loads(json.dumps(CURRENT))
        parent, key = about, key_path[-1]
        for name in key_path[:-1]:
            parent = parent[name]
        if isinstance(value, type(parent[key])):
            continue
        if value == "missing":
            del parent[key]
        else:
            parent[key] = value
        with pytest.raises(ConfigError, match=rf"config.json .*{key}"):
            read_config(write_run(tmp_path / str(number), about))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "\0" * 50, "[" * 100_000, '{"schema": 1e999}', '{"schema": true}']
)
def test_a_malformed_config_is_named(tmp_path: Path, text: str) -> None:
    path = make_run(tmp_path / "run")
    (path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"run/config.json (is corrupt|cannot be read)"):
        read_config(path)


@pytest.mark.parametrize("resumes", [5, [5], {}, [[]]])
def test_resumes_are_checked_too(tmp_path: Path, resumes: Any) -> None:
    with pytest.raises(ConfigError, match=r"resumes .*not an? "):
        read_config(write_run(tmp_path / "run", CURRENT | {"resumes": resumes}))


def test_sources_of_settings_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"setting_sources .*not an? "):
        read_config(write_run(tmp_path / "run", CURRENT | {"setting_sources": ["lr"]}))


@pytest.mark.parametrize(("name", "newest"), [("schema", CONFIG_SCHEMA), ("metrics_schema", METRICS_SCHEMA)])
def test_a_newer_schema_is_refused(tmp_path: Path, name: str, newest: int) -> None:
    path = write_run(tmp_path / "run", CURRENT | {name: newest + 1})
    with pytest.raises(ConfigError, match=rf"has {name} {newest + 1}, and this .* reads up to {newest}. Upgrade"):
        read_config(path)
    with pytest.raises(ConfigError, match="Upgrade"):
        read_metrics(path)


def test_the_first_schema_is_migrated(tmp_path: Path) -> None:
    config = {"env": "CartPole-v1", "seed": 3, "lr": 0.1, "env_kwargs": {"gravity": 1}}
    path = write_run(tmp_path / "run", {"schema": 1, "algorithm": "ppo", "config": config})
    about = read_config(path)
    assert (about["schema"], about["metrics_schema"], about["config"]) == (CONFIG_SCHEMA, 1, config)
    assert about["env"] == {"name": "CartPole-v1", "kwargs": {"gravity": 1}, "vector": "auto"}
    assert not has_checkpoints(about)
    assert (read_run(path).seed, len(read_run(path).metrics)) == (3, 2)
