"""What `import raceway` gives, and what it costs."""

import importlib.metadata
import subprocess
import sys

import pytest

import raceway
import raceway.flow
import raceway.runner
from raceway.engine.base import Engine
from raceway.engine.inline import InlineEngine
from raceway.engine.process.engine import ProcessEngine
from raceway.engine.ray.engine import RayEngine

# The stable API. A name is added here on purpose, and removed only after its deprecation (see CONTRIBUTING.md).
PUBLIC_NAMES = ["RacewayError", "Runner", "__version__", "load", "make_engine", "resume", "train"]
FLOW_NAMES = [
    "Counters",
    "Envelope",
    "Event",
    "Failures",
    "Iter",
    "ParIter",
    "RateLimit",
    "Run",
    "Shard",
    "Source",
    "StreamEnd",
    "create",
    "given",
    "send_msg",
    "union",
    "union_async",
]
RUNNER_NAMES = ["Future", "ObjectRef", "Runner", "Service", "get_object", "patch_object", "update_object"]
ENGINE_VERBS = [
    "call",
    "close",
    "get",
    "glance",
    "keep",
    "kill",
    "message",
    "nudge",
    "promise",
    "put",
    "restart",
    "send",
    "serve",
    "spawn",
    "wait",
]

# Heavy packages that importing raceway must leave to whoever needs them.
IMPORTED_LATER = {"torch", "ray", "torchrl", "tensordict"}


def test_public_names() -> None:
    assert sorted(raceway.__all__) == sorted(PUBLIC_NAMES)
    assert sorted(raceway.runner.__all__) == sorted(RUNNER_NAMES)
    assert sorted(raceway.flow.__all__) == sorted(FLOW_NAMES)
    verbs = {name for name, value in vars(Engine).items() if callable(value) and not name.startswith("_")}
    assert sorted(verbs) == sorted(ENGINE_VERBS)


def test_every_engine_has_every_verb() -> None:
    missing = [
        (engine.__name__, verb)
        for engine in (InlineEngine, ProcessEngine, RayEngine)
        for verb in ENGINE_VERBS
        if not callable(getattr(engine, verb, None))
    ]
    assert missing == []


def test_every_public_name_exists() -> None:
    for module in (raceway, raceway.flow, raceway.runner):
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        assert missing == []
    with pytest.raises(AttributeError, match="no attribute 'runer'"):
        _ = raceway.runer


def test_version_is_the_installed_one() -> None:
    assert raceway.__version__ == importlib.metadata.version("raceway")


def test_import_is_light_and_silent() -> None:
    program = "import sys, raceway; print(*sorted(set(sys.argv[1:]) & set(sys.modules)))"
    command = [sys.executable, "-W", "error", "-c", program, *sorted(IMPORTED_LATER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")
