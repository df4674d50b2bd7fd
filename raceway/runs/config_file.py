"""Reading config.json, a run's description of itself, from a file that is not trusted.

It carries schema numbers, its own and that of metrics.jsonl. A file of an older version is migrated here, so that no
other module needs to know old formats; a file of a newer version is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from raceway.errors import ConfigError
from raceway.file_schemas import Document, Migrations, migrate, schema_mismatch

CONFIG_SCHEMA = 2
"""Schema number of config.json, its `schema`."""
METRICS_SCHEMA = 1
"""Schema number of metrics.jsonl, the `metrics_schema` of config.json: the meaning of the metric names."""


def _add_env_and_importable(about: Document) -> Document:
    """Migrate schema 1 to 2. Schema 1 is older than checkpoints: it has no policy and no spaces."""
    config = about["config"]
    env = {"name": config["env"], "kwargs": config.get("env_kwargs", {}), "vector": config.get("vector", "auto")}
    importable = dict.fromkeys(("env", "network", "env_kwargs"), True)
    return {"metrics_schema": 1, "env": env, "importable": importable, **about}


CONFIG_MIGRATIONS: Migrations = {1: _add_env_and_importable}

_REQUIRED = {
    "algorithm": str,
    "config": {"env": str, "seed": int},
    "env": {"name": str, "kwargs": dict, "vector": str},
    "importable": {"env": bool, "network": bool, "env_kwargs": bool},
    "resumes": list,
    "setting_sources": dict,
}
_REQUIRED_WITH_POLICY = {
    "config": {"network": str, "env_kwargs": dict},
    "policy": {
        "kind": str, "network": str, "hidden": list, "normalise": bool, "num_slots": int,
        "activation": (str, type(None)), "shared": bool,
    },
    "spaces": {"observation": dict, "action": dict},
}  # fmt: skip


def read_config(path: str | Path) -> Document:
    """Return the description of a run, checked and migrated to the current schema.

    A run of an older version has no `policy` and no `spaces`; see `has_policy`. Its `setting_sources` are empty.
    """
    directory, file = Path(path), Path(path) / "config.json"
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}. `raceway list --runs` lists the runs.")
    if not file.is_file():
        names = sorted(config.parent.name for config in directory.glob("*/config.json"))
        hint = f" It contains the runs {', '.join(names[:5])}: choose one of them." if names else ""
        raise ConfigError(f"{directory} is not a run: it has no config.json.{hint}")
    about = read_json(file)
    schema = _check_schema_number(file, about, "schema", CONFIG_SCHEMA)
    problem = schema_mismatch(about, {"config": {"env": str}})
    if problem is None:
        current = migrate(about, schema, CONFIG_SCHEMA, CONFIG_MIGRATIONS)
        about = {"resumes": [], "setting_sources": {}, **current, "schema": CONFIG_SCHEMA}
        _check_schema_number(file, about, "metrics_schema", METRICS_SCHEMA)
        problem = _find_problem(about)
    if problem:
        raise ConfigError(f"{file} is corrupt: {problem}. Repair it, or train again: the run cannot be used.")
    return about


def _find_problem(about: Document) -> str | None:
    """Return the first entry that is missing or of a wrong type, or None."""
    problem = schema_mismatch(about, _REQUIRED)
    if problem is None and has_policy(about):
        problem = schema_mismatch(about, _REQUIRED_WITH_POLICY)
    if problem is not None:
        return problem
    mismatches = (schema_mismatch(resume, {}, "resumes") for resume in about["resumes"])
    return next((mismatch for mismatch in mismatches if mismatch), None)


def has_policy(about: Document) -> bool:
    """Whether the description of a run includes its policy. Runs older than checkpoints do not."""
    return about.get("policy") is not None and about.get("spaces") is not None


def _check_schema_number(file: Path, about: Document, name: str, newest: int) -> int:
    """Return a schema number, after checking that this version can read it."""
    schema = about.get(name)
    if type(schema) is not int or schema < 1:
        raise ConfigError(f"{file} is corrupt: its {name} is {schema!r}. Repair it, or train again.")
    if schema > newest:
        raise ConfigError(
            f"{file} has {name} {schema}, and this version of raceway reads up to {newest}. Upgrade raceway."
        )
    return schema


def read_json(path: Path) -> Document:
    """Return the JSON object in a file."""
    try:
        doc = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Repair it, or remove the directory of that run.") from error
    if not isinstance(doc, dict):
        raise ConfigError(f"{path} is corrupt: it holds a {type(doc).__name__}, not an object. Repair it.")
    return doc
