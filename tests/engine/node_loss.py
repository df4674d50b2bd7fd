"""A Ray cluster of two nodes, with authentication, one of which is lost. Run by test_ray.py in its own process.

Args: a directory with modules that no node can import once it is deleted, which this program does.
"""

import shutil
import sys

import numpy as np
import ray
from ray.cluster_utils import Cluster

from raceway.engine.base import Actor
from raceway.engine.ray.engine import RayEngine
from raceway.errors import ActorDied
from raceway.runner import Runner
from tests.engine.actors import Box
from tests.runner import services

HEALTH = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_timeout_ms": 500}
GENEROUS = 90.0


class Importer:
    def work(self, number: int) -> int:
        from beside.helper import triple

        return triple(number)


def main(directory: str) -> None:
    sys.path.insert(0, directory)
    head = {"num_cpus": 2, "resources": {"head": 4}, "include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    node = cluster.add_node(num_cpus=2, resources={"lost": 4})
    try:
        with RayEngine(address=cluster.address) as engine:
            survivor = engine.spawn(Box, resources={"head": 1})
            victim = engine.spawn(Box, resources={"lost": 1})
            check_shipped_modules(engine, survivor, directory)
            check_loss(cluster, node, survivor, victim)
            cluster.add_node(num_cpus=2, resources={"lost": 4})
            engine.restart(victim).result(GENEROUS)
            assert victim.incarnation == 1
            assert victim.call("echo", 3).result(GENEROUS) == 3
            print("the actor was restarted", flush=True)
        assert not ray.is_initialized()
    finally:
        cluster.shutdown()


def check_shipped_modules(engine: RayEngine, ready: Actor, directory: str) -> None:
    ready.ready.result(GENEROUS)
    shutil.rmtree(directory)
    assert engine.spawn(Importer).call("work", 14).result(GENEROUS) == 42
    print("the modules were shipped", flush=True)


def check_loss(cluster: Cluster, node: object, survivor: Actor, victim: Actor) -> None:
    """Lose the node under an engine and a Runner that use it at the same time."""
    victim.ready.result(GENEROUS)
    assert victim.node != survivor.node
    assert survivor.call("echo", np.ones(1000)).result(GENEROUS).sum() == 1000
    with Runner("nodes", engine="ray") as rr:
        pinned = rr.service(services.sleep, resources={"lost": 1}, workers=1, warmup=1)
        service = rr.service(services.sleep, workers=2, warmup=2)
        futures = [service(0.2, number) for number in range(20)]
        unaffected = survivor.call("sleep", 1.0)
        doomed = [victim.call("sleep", 600), victim.call("echo", 1), pinned(600)]
        cluster.remove_node(node, allow_graceful=False)
        for call in doomed:
            error = call.exception(GENEROUS)
            assert isinstance(error, ActorDied), error
        assert unaffected.result(GENEROUS) == "slept"
        assert survivor.call("echo", 2).result(GENEROUS) == 2
        print("the engine continues", flush=True)
        results = [(future.exception(GENEROUS), number, future) for number, future in enumerate(futures)]
        failed = [number for error, number, _ in results if error is not None]
        assert len(failed) <= 2, "at most what ran on the lost node"
        assert all(future.get() == number for error, number, future in results if error is None)
        print("the runner continues", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
