"""What only the ray engine has: nodes that are lost, and modules that are shipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raceway.engine.ray.engine import _straight
from raceway.engine.ray.modules import collect_sources
from tests.conftest import GENEROUS

ROOT = Path(__file__).parents[2]


def test_the_loss_of_a_node() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.node_loss"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("the ")]  # Ray says things in between
    assert said == ["the engine goes on", "the actor is back", "the runner goes on"]


def test_sources_are_collected(tmp_path: Path) -> None:
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
    """The modules are moved away before a worker imports them, so only what was shipped can serve."""
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
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("42\n"), done.stdout


@pytest.mark.usefixtures("ray_session")
def test_an_engine_leaves_a_ray_that_it_found() -> None:
    import ray

    from raceway.engine import make_engine

    with make_engine("ray") as engine:
        assert engine.spawn(list).call("__len__").result(GENEROUS) == 0
    assert ray.is_initialized()


def test_calls_go_the_usual_way_if_this_ray_has_no_shorter_one() -> None:
    class Method:
        def remote(self) -> str:
            return "the usual way"

    class Handle:
        again = Method()

    class OtherHandle(Handle):
        def _actor_method_call(self, method_name: str, options: object) -> str:
            raise AssertionError("it takes other options")

    class FittingHandle(Handle):
        def _actor_method_call(
            self, method_name: str, num_returns: int, max_task_retries: int, enable_task_events: bool
        ) -> str:
            return f"{method_name} straight"

    found = [_straight(handle, "again")() for handle in (Handle(), OtherHandle(), FittingHandle())]
    assert found == ["the usual way", "the usual way", "again straight"]


@pytest.mark.parametrize(("given", "wanted"), [({}, 0), ({"RAY_worker_niceness": "7"}, 7)])
def test_a_ray_of_its_own_runs_workers_at_ordinary_priority(given: dict[str, str], wanted: int) -> None:
    program = """
import os
from raceway.engine import make_engine
before = dict(os.environ)
with make_engine("ray") as engine:
    class Nice:
        def level(self):
            return os.nice(0)

    print("niceness", engine.spawn(Nice).call("level").result(60), before == dict(os.environ))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | given,
        check=False,
    )
    assert f"niceness {wanted} True" in done.stdout, done.stdout + done.stderr
