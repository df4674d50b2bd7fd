"""Reading config.json, a run's description of itself, from a file that is not trusted.

It carries schema numbers, its own and that of metrics.jsonl. A file of an older version is migrated here, so that no
other module needs to know old formats; a file of a newer version is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from raceway.errors import ConfigError
from raceway.file_schemas import Document, Migrations, migrate, schema_mismatch

CONFIG_SCHEMA = 3
"""Schema number of config.json, its `schema`."""
METRICS_SCHEMA = 1
"""Schema number of metrics.jsonl, the `metrics_schema` of config.json: the meaning of the metric names."""


def _add_env_and_importable(about: Document) -> Document:
    """Migrate schema 1 to 2. Schema 1 is older than checkpoints: it has no policy and no spaces."""
    config = about["config"]
    env = {"name": config["env"], "kwargs": config.get("env_kwargs", {}), "vector": config.get("vector", "auto")}
    importable = dict.fromkeys(("env", "network", "env_kwargs"), True)
    return {"metrics_schema": 1, "env": env, "importable": importable, **about}


def _batch_steps_of_impala(about: Document) -> Document:
    """Migrate schema 2 to 3. The learning batch of IMPALA was a number of fragments, and is one of steps."""
    config = dict(about["config"])
    num_fragments = config.pop("num_fragments", None)
    if about.get("algorithm") == "impala" and num_fragments is not None:
        envs_per_shard = config["num_envs"] // (config["num_shards"] or 1)
        config["batch_steps"] = num_fragments * envs_per_shard * config["fragment_steps"]
    return {**about, "config": config}


CONFIG_MIGRATIONS: Migrations = {1: _add_env_and_importable, 2: _batch_steps_of_impala}

_REQUIRED = {
    "algorithm": str,
    "config": {"env": str, "seed": int},
    "env": {"name": str, "kwargs": dict, "vector": str},
    "importable": {"env": bool, "network": bool, "env_kwargs": bool},
    "resumes": list,
    "setting_sources": dict,
}
_REQUIRED_WITH_CHECKPOINTS = {
    "config": {"network": str, "env_kwargs": dict},
    "spaces": {"observation": dict, "action": dict},
}
_REQUIRED_OF_POLICIES = {
    "agents": list,
    "algorithm": str,
    "config": {"network": str},
    "spaces": {"observation": dict, "action": dict},
}


def read_config(path: str | Path) -> Document:
    """Return the description of a run, checked and migrated to the current schema.

    A run of an older version has no `spaces`; see `has_checkpoints`. Its `setting_sources` are empty.
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
    problem = schema_mismatch(about, _REQUIRED) or _find_algorithm_problem(about)
    if problem is None and "policies" in about:
        problem = schema_mismatch(about, {"policies": dict})
        policies = about["policies"].items() if problem is None else ()
        problems = [
            schema_mismatch(policy, _REQUIRED_OF_POLICIES, f"policies.{name}") or _find_algorithm_problem(policy)
            for name, policy in policies
        ]
        problem = problem or next((text for text in problems if text), None)
    elif problem is None and has_checkpoints(about):
        problem = schema_mismatch(about, _REQUIRED_WITH_CHECKPOINTS)
    if problem is not None:
        return problem
    mismatches = (schema_mismatch(resume, {}, "resumes") for resume in about["resumes"])
    return next((mismatch for mismatch in mismatches if mismatch), None)


def _find_algorithm_problem(about: Document) -> str | None:
    """Return what is wrong about the algorithm of a run or of a policy, or None."""
    if ":" in about["algorithm"]:
        return f"its algorithm {about['algorithm']!r} is no name"  # it would be imported
    if not isinstance(about.get("algorithm_import"), str | None):
        return f"its algorithm_import is {about['algorithm_import']!r}"
    return None


def has_checkpoints(about: Document) -> bool:
    """Whether a run can have checkpoints, from which its agent is rebuilt. Runs of the first version have none."""
    return about.get("spaces") is not None or "policies" in about


def algorithm_label(about: Document) -> str:
    """Return the algorithms of a run: one, or those of several policies.

    >>> algorithm_label({"algorithm": "ppo"})
    'ppo'
    >>> algorithm_label({"algorithm": "ppo", "policies": {"a": {"algorithm": "ppo"}, "b": {"algorithm": "dqn"}}})
    'dqn+ppo'
    """
    policies = about.get("policies")
    return "+".join(sorted({policy["algorithm"] for policy in policies.values()})) if policies else about["algorithm"]


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
