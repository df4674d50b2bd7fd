"""The ray engine: a cluster, lost nodes, shipped modules, and Ray's private API."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raceway.engine.ray import private_api
from raceway.engine.ray.modules import collect_sources
from tests.conftest import GENEROUS

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"} | environment,
        check=False,
    )


def test_a_cluster_that_loses_a_node(tmp_path: Path) -> None:
    """It asks for a token, and its nodes have only the modules that the driver ships."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "__init__.py").write_text("")
    (tmp_path / "beside" / "helper.py").write_text("def triple(x):\n    return 3 * x\n")
    process = run("-m", "tests.engine.node_loss", str(tmp_path), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="secret")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.splitlines() == [
        "the modules were shipped",
        "the engine continues",
        "the runner continues",
        "the actor was restarted",
    ]
    assert "state-dump" not in process.stderr, "the log of the lost node was printed"


def test_collecting_sources(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text("x = 1\n")
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "__init__.py").write_text("y = 2\n")
    (tmp_path / "package" / "inner" / "deep.py").write_text("z = 3\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "no.py").write_text("")
    sources = collect_sources([str(tmp_path), *sys.path[-1:]])
    assert set(sources) == {"alone", "package", "package.inner", "package.inner.deep"}
    assert sources["package"][:2] == ("y = 2\n", True)


@pytest.mark.usefixtures("ray_session")
def test_a_ray_that_was_running_already_is_left_running() -> None:
    import ray

    from raceway.engine import make_engine

    with make_engine("ray") as engine:
        assert engine.spawn(list).call("__len__").result(GENEROUS) == 0
    assert ray.is_initialized()


# The private API works with the installed Ray, and the fallback with a Ray that lacks it.


def test_direct_call_falls_back_to_the_public_api() -> None:
    class Method:
        def remote(self) -> str:
            return "public"

    class Handle:
        repeat = Method()

    class HandleWithOtherOptions(Handle):
        def _actor_method_call(self, method_name: str, options: object) -> str:
            raise AssertionError("it takes other options")

    class FittingHandle(Handle):
        def _actor_method_call(
            self, method_name: str, num_returns: int, max_task_retries: int, enable_task_events: bool
        ) -> str:
            return f"{method_name} directly"

    handles = (Handle(), HandleWithOtherOptions(), FittingHandle())
    results = [private_api.direct_call(handle, "repeat")() for handle in handles]
    assert results == ["public", "public", "repeat directly"]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("has_private_call", [True, False])
def test_repeated_calls_with_and_without_private_api(has_private_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from raceway.engine import make_engine

    calls = []
    original = private_api.direct_call

    def direct_call(handle: Any, method: str) -> Any:
        call = original(handle, method) if has_private_call else getattr(handle, method).remote
        assert hasattr(call, "func") is has_private_call, "the installed Ray has no such function any more"
        return lambda: calls.append(method) or call()

    monkeypatch.setattr(private_api, "direct_call", direct_call)
    with make_engine("ray") as engine:
        actor, message = engine.spawn(list), engine.message("append", (1,))
        for _ in range(3):
            engine.send(actor, message).result(GENEROUS)
        assert actor.call("__len__").result(GENEROUS) == 3
    assert calls == ["repeat", "repeat"]


def test_ray_prints_on_stderr_if_it_has_the_private_function(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = []

    def print_to_stdstream(data: dict[str, Any], ignore_prefix: bool) -> None:
        printed.append(data)

    print_to_stdstream.__module__ = "worker"
    worker = SimpleNamespace(__name__="worker", print_to_stdstream=print_to_stdstream)
    monkeypatch.setattr(private_api, "ray", SimpleNamespace(_private=SimpleNamespace(worker=worker)))
    assert private_api.print_on_stderr()
    replaced = worker.print_to_stdstream
    assert private_api.print_on_stderr(), "a second call must change nothing"
    assert worker.print_to_stdstream is replaced
    worker.print_to_stdstream({"is_err": False, "lines": ["hello"]}, ignore_prefix=True)
    died = "Raylet is terminated. Possible reasons include: (1) SIGKILL. Last 20 lines of the Raylet logs:\n  a\n  b\n"
    worker.print_to_stdstream({"is_err": False, "lines": [died], "pid": "raylet"}, ignore_prefix=False)
    assert printed == [
        {"is_err": True, "lines": ["hello"]},
        {
            "is_err": True,
            "lines": ["Raylet is terminated. Possible reasons include: (1) SIGKILL."],
            "pid": "raylet",
        },
    ]
    for lacking in (SimpleNamespace(), SimpleNamespace(_private=SimpleNamespace(worker=SimpleNamespace()))):
        monkeypatch.setattr(private_api, "ray", lacking)
        assert not private_api.print_on_stderr()


def test_the_installed_ray_can_print_on_stderr() -> None:
    assert private_api.print_on_stderr()


def test_ray_uses_our_directory_or_falls_back_to_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def init(**options: Any) -> None:
        calls.append(options)
        if "_temp_dir" in options and refuses:
            raise RuntimeError("Unknown keyword argument(s): _temp_dir")

    monkeypatch.setattr(private_api, "ray", SimpleNamespace(init=init))
    refuses = False
    assert private_api.start_ray({"address": "local"}, "/tmp/somewhere")
    assert not private_api.start_ray({"address": "auto"}, None)
    refuses = True
    assert not private_api.start_ray({"address": "local"}, "/tmp/somewhere")
    local = {"address": "local"}
    with_directory = local | {"_temp_dir": "/tmp/somewhere"}
    assert calls == [with_directory, {"address": "auto"}, with_directory, local]


def test_other_errors_of_starting_ray_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(private_api, "ray", SimpleNamespace(init=init))
    with pytest.raises(RuntimeError, match="no room"):
        private_api.start_ray({}, "/tmp/somewhere")


def test_the_users_priority_of_workers_is_kept() -> None:
    assert private_api.ordinary_priority({}) == {"RAY_worker_niceness": "0"}
    assert private_api.ordinary_priority({"RAY_worker_niceness": "7"}) == {"RAY_worker_niceness": "7"}


def test_a_local_ray_has_ordinary_priority_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A token in the home would turn on authentication for the clusters that the user starts later."""
    program = """
import glob, os
from raceway.engine import make_engine

def variables():  # Ray sets others that change nothing
    names = ("OMP_NUM_THREADS", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    return [os.environ.get(name) for name in names]

class Worker:
    def niceness_and_authentication(self):
        return os.nice(0), os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"])

before = variables()
with make_engine("ray") as engine:
    print(engine.spawn(Worker).call("niceness_and_authentication").result(60), before == variables())
    pattern = f"/tmp/raceway-{os.getpid()}-*"
    print(len(glob.glob(pattern + "/session_latest")), end=" ")
print(len(glob.glob(pattern)), os.listdir(os.environ["HOME"]))
"""
    process = run("-c", program, HOME=str(tmp_path))
    # Ray's setting of niceness is added to that of the driver.
    expected = [f"({os.nice(0)}, 'token', 64) True", "1 0 []"]
    assert process.stdout.splitlines() == expected, process.stdout + process.stderr
