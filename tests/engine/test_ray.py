"""The ray engine: lost nodes, shipped modules, and Ray's private API."""

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


def test_losing_a_node() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.engine.node_loss"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("the ")]  # Ray prints others in between
    assert lines == ["the engine continues", "the actor was restarted", "the runner continues"]


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


def test_modules_are_shipped_to_a_cluster(tmp_path: Path) -> None:
    """The modules are deleted before a worker imports them, so only the shipped ones can be used."""
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "__init__.py").write_text("")
    (tmp_path / "beside" / "helper.py").write_text("def triple(x):\n    return 3 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import os, shutil, sys
import ray
from ray.cluster_utils import Cluster
from raceway.engine.ray.engine import RayEngine

class Actor:
    def work(self, x):
        from beside.helper import triple
        return triple(x)

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "include_dashboard": False}})
with RayEngine(address=cluster.address) as engine:
    warm = engine.spawn(list)
    warm.ready.result({GENEROUS * 2})
    shutil.rmtree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "beside"))
    print(engine.spawn(Actor).call("work", 14).result({GENEROUS * 2}))
cluster.shutdown()
"""
    )
    process = subprocess.run(
        [sys.executable, str(script)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("42\n"), process.stdout


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
    assert printed == [{"is_err": True, "lines": ["hello"]}]
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


@pytest.mark.parametrize(("variables", "niceness"), [({}, 0), ({"RAY_worker_niceness": "7"}, 7)])
def test_a_local_ray_runs_workers_at_ordinary_priority(variables: dict[str, str], niceness: int) -> None:
    program = """
import glob
import os
from raceway.engine import make_engine
from raceway.engine.process.worker import thread_environment
def variables():  # those that the engine sets while it starts Ray; Ray sets others
    return [os.environ.get(name) for name in (*thread_environment(1), "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness")]
before = variables()
with make_engine("ray") as engine:
    class Nice:
        def level(self):
            return os.nice(0)

    print("niceness", engine.spawn(Nice).call("level").result(60), before == variables())
    pattern = f"/tmp/raceway-{os.getpid()}-*"
    print("directories", len(glob.glob(pattern + "/session_latest")), end=" ")
print(len(glob.glob(pattern)))
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | variables,
        check=False,
    )
    level = os.nice(0) + niceness  # Ray's setting is added to that of the driver
    assert f"niceness {level} True" in process.stdout, process.stdout + process.stderr
    assert "directories 1 0" in process.stdout, "Ray's files were not in our directory, or it was not removed"
