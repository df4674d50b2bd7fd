"""The public names of `import raceway`, and the cost of importing it."""

import importlib.metadata
import subprocess
import sys
from typing import Any

import pytest

import raceway
import raceway.flow
import raceway.runner
from raceway.engine.base import Engine
from raceway.engine.inline import InlineEngine
from raceway.engine.process.engine import ProcessEngine
from raceway.engine.ray.engine import RayEngine

# The stable API. Names are removed only after a deprecation (see CONTRIBUTING.md).
PUBLIC_NAMES = ["Callback", "RacewayError", "Runner", "__version__", "load", "make_engine", "record", "resume", "train"]
FLOW_NAMES = [
    "Counters",
    "Envelope",
    "Event",
    "Failures",
    "Iter",
    "NotReady",
    "ParIter",
    "RateLimit",
    "SharedStream",
    "Run",
    "Shard",
    "Source",
    "StreamEnd",
    "create",
    "injected",
    "send_msg",
    "send_msg_to_all",
    "union",
    "union_async",
]
RUNNER_NAMES = [
    "CallRecord",
    "ObjectRef",
    "Runner",
    "Service",
    "ServiceFuture",
    "get_object",
    "patch_object",
    "update_object",
]
ENGINE_VERBS = [
    "block",
    "call",
    "call_at",
    "can_start_call",
    "check_resources",
    "close",
    "complete",
    "create_future",
    "decode",
    "dispatch",
    "fill",
    "flush",
    "get",
    "kill",
    "message",
    "notify_waiters",
    "poll",
    "prefetch",
    "put",
    "restart",
    "running_actor",
    "send",
    "serve",
    "spawn",
    "store",
    "wait",
    "wake",
]

# Heavy packages that `import raceway` must not import.
HEAVY_PACKAGES = {"torch", "ray", "torchrl", "tensordict"}


@pytest.mark.parametrize(
    ("module", "old", "new"), [(raceway.runner, "Future", "ServiceFuture"), (raceway.flow, "given", "injected")]
)
def test_renamed_public_names_still_work_and_warn(module: Any, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{old} is now .*{new}.*0\.4"):
        assert getattr(module, old) is getattr(module, new)


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
    command = [sys.executable, "-W", "error", "-c", program, *sorted(HEAVY_PACKAGES)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (completed.returncode, completed.stdout.split(), completed.stderr) == (0, [], "")
