"""A Ray cluster of two nodes, of which one is lost and comes back. Run by test_ray.py in a process of its own."""

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
        head_node_args={"num_cpus": 2, "resources": {"near": 4}, "include_dashboard": False, "_system_config": HEALTH},
    )
    far = cluster.add_node(num_cpus=2, resources={"far": 4})
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    try:
        engine_survives(cluster, far)
        far = cluster.add_node(num_cpus=2, resources={"far": 4})
        cluster.wait_for_nodes()
        runner_survives(cluster, far)
    finally:
        ray.shutdown()
        cluster.shutdown()


def engine_survives(cluster: Cluster, far: object) -> None:
    with RayEngine() as engine:
        near = engine.spawn(Box, resources={"near": 1})
        lost = engine.spawn(Box, resources={"far": 1})
        near.ready.result(GENEROUS)
        lost.ready.result(GENEROUS)
        assert lost.node != near.node
        assert near.call("echo", np.ones(1000)).result(GENEROUS).sum() == 1000
        running, waiting = lost.call("sleep", 600), lost.call("echo", 1)
        elsewhere = near.call("sleep", 1.0)
        cluster.remove_node(far, allow_graceful=False)
        for call in (running, waiting):
            error = call.exception(GENEROUS)
            assert isinstance(error, ActorDied), error
        assert elsewhere.result(GENEROUS) == "slept"
        assert near.call("echo", 2).result(GENEROUS) == 2
        print("the engine goes on", flush=True)
        back = cluster.add_node(num_cpus=2, resources={"far": 4})
        cluster.wait_for_nodes()
        engine.restart(lost).result(GENEROUS)
        assert lost.incarnation == 1
        assert lost.call("echo", 3).result(GENEROUS) == 3
        print("the actor is back", flush=True)
    cluster.remove_node(back)


def runner_survives(cluster: Cluster, far: object) -> None:
    with Runner("nodes", engine="ray") as rr:
        pinned = rr.service(services.sleep, resources={"far": 1}, workers=1, warmup=1)
        service = rr.service(services.sleep, workers=2, warmup=2)
        doomed = pinned(600)
        futures = [service(0.2, number) for number in range(20)]
        cluster.remove_node(far, allow_graceful=False)
        error = doomed.exception(GENEROUS)
        assert isinstance(error, ActorDied), error
        results = [(future.exception(GENEROUS), number, future) for number, future in enumerate(futures)]
        lost = [number for error, number, _ in results if error is not None]
        assert len(lost) <= 2, "at most what ran on the lost node"
        assert all(future.get() == number for error, number, future in results if error is None)
        print("the runner goes on", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    main()
