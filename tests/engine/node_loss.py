"""A Ray cluster of two nodes, one of which is lost and comes back. Run by test_ray.py in its own process."""

import os

import numpy as np
import ray
from ray.cluster_utils import Cluster

from raceway.engine.ray.engine import RayEngine
from raceway.errors import ActorDied
from raceway.runner import Runner
from tests.engine.actors import Box
from tests.runner import services

HEALTH = {"health_check_period_ms": 500, "health_check_failure_threshold": 3, "health_check_timeout_ms": 500}
GENEROUS = 90.0


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "resources": {"head": 4}, "include_dashboard": False, "_system_config": HEALTH},
    )
    node = cluster.add_node(num_cpus=2, resources={"lost": 4})
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        check_engine(cluster, node)
        node = cluster.add_node(num_cpus=2, resources={"lost": 4})
        cluster.wait_for_nodes()
        check_runner(cluster, node)
    finally:
        ray.shutdown()
        cluster.shutdown()


def check_engine(cluster: Cluster, node: object) -> None:
    with RayEngine() as engine:
        survivor = engine.spawn(Box, resources={"head": 1})
        victim = engine.spawn(Box, resources={"lost": 1})
        survivor.ready.result(GENEROUS)
        victim.ready.result(GENEROUS)
        assert victim.node != survivor.node
        assert survivor.call("echo", np.ones(1000)).result(GENEROUS).sum() == 1000
        running, queued = victim.call("sleep", 600), victim.call("echo", 1)
        unaffected = survivor.call("sleep", 1.0)
        cluster.remove_node(node, allow_graceful=False)
        for call in (running, queued):
            error = call.exception(GENEROUS)
            assert isinstance(error, ActorDied), error
        assert unaffected.result(GENEROUS) == "slept"
        assert survivor.call("echo", 2).result(GENEROUS) == 2
        print("the engine continues", flush=True)
        new_node = cluster.add_node(num_cpus=2, resources={"lost": 4})
        cluster.wait_for_nodes()
        engine.restart(victim).result(GENEROUS)
        assert victim.incarnation == 1
        assert victim.call("echo", 3).result(GENEROUS) == 3
        print("the actor was restarted", flush=True)
    cluster.remove_node(new_node)


def check_runner(cluster: Cluster, node: object) -> None:
    with Runner("nodes", engine="ray") as rr:
        pinned = rr.service(services.sleep, resources={"lost": 1}, workers=1, warmup=1)
        service = rr.service(services.sleep, workers=2, warmup=2)
        doomed = pinned(600)
        futures = [service(0.2, number) for number in range(20)]
        cluster.remove_node(node, allow_graceful=False)
        error = doomed.exception(GENEROUS)
        assert isinstance(error, ActorDied), error
        results = [(future.exception(GENEROUS), number, future) for number, future in enumerate(futures)]
        failed = [number for error, number, _ in results if error is not None]
        assert len(failed) <= 2, "at most what ran on the lost node"
        assert all(future.get() == number for error, number, future in results if error is None)
        print("the runner continues", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
