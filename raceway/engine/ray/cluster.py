"""Starting, joining and leaving Ray, and the resources of its nodes."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from raceway.engine.base import Resources
from raceway.engine.process.worker import thread_environment
from raceway.engine.ray import private_api, ray
from raceway.engine.ray.joining import check_joinable, explain_failure
from raceway.errors import ConfigError, ResourceError


class RayCluster:
    """The Ray instance of an engine: one that runs already, a cluster that it joins, or a local one that it starts.

    Args:
        address: as `RayEngine` takes it.
        init_options: further arguments for `ray.init`.
    """

    _local_node: ClassVar[str] = ""  # the node of the last local Ray that was started in this process

    def __init__(self, address: str | None, init_options: Mapping[str, Any] | None) -> None:
        if ray is None:
            raise ConfigError("the ray engine needs Ray: pip install 'raceway[ray]'")
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        if address.startswith("ray://"):
            raise ConfigError(f"{address}: the driver must run on a node of the cluster, so use address='auto' there")
        self._started_here = not ray.is_initialized()
        self.is_local = self._started_here and address == "local"
        """Whether Raceway has started this Ray, here or in another engine, on this machine only."""
        self._directory: str | None = None
        if self._started_here:
            self._start(address, dict(init_options or {}))
        self.node: str = ray.get_runtime_context().get_node_id()
        """The driver's node."""
        if self.is_local:
            RayCluster._local_node = self.node
        self.is_local = self.node == RayCluster._local_node

    def _start(self, address: str, options: dict[str, Any]) -> None:
        """Start or join Ray. Its processes block SIGINT themselves, so Ctrl-C reaches the driver alone."""
        options = {"address": address, "log_to_driver": True, "logging_level": logging.ERROR} | options
        private_api.print_on_stderr()
        if not self.is_local:
            with _environment(check_joinable(address, options)):
                private_api.reread_authentication()
                self._join(address, options)
            return
        options.setdefault("include_dashboard", False)
        if "_temp_dir" not in options:
            # Not where TMPDIR points: Ray's sockets live in it, and their paths must be short.
            self._directory = tempfile.mkdtemp(prefix=f"raceway-{os.getpid()}-", dir="/tmp")
        # Workers inherit these: faster than having Ray prepare an environment for every actor.
        variables = thread_environment(1) | {"RAY_USAGE_STATS_ENABLED": "0"} | private_api.ordinary_priority()
        with _environment(variables | private_api.own_token()):
            private_api.reread_authentication()
            try:
                uses_directory = private_api.start_ray(options, self._directory)
            except BaseException:
                self._remove_directory()
                raise
        if not uses_directory:
            self._remove_directory()

    def _join(self, address: str, options: dict[str, Any]) -> None:
        try:
            private_api.start_ray(options, None)
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            raise explain_failure(address, error) from error

    def close(self) -> None:
        """End Ray if it was started here, or leave the cluster if it was joined here."""
        if self._started_here:
            ray.shutdown()
            private_api.reread_authentication()
            self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_cluster_resources(needs: Resources) -> None:
    """Raise ResourceError if no node of the cluster has these resources."""
    amounts = _amounts(needs)
    if not amounts:
        return
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(name, 0) >= amount for name, amount in amounts.items()) for node in nodes):
        available = "; ".join(_format_amounts({name: node.get(name, 0) for name in amounts}) for node in nodes)
        raise ResourceError(
            f"{_format_amounts(amounts)} were requested, and no node of the Ray cluster has that. "
            f"They have: {available}"
        )


def describe_shortage(needs: Resources) -> str:
    """Return which of the requested resources are free, for an actor that Ray has not started."""
    amounts, free = _amounts(needs), ray.available_resources()
    if not amounts:
        return ""
    available = _format_amounts({name: free.get(name, 0) for name in amounts})
    return f"; it requested {_format_amounts(amounts)}, and the cluster has {available} free"


def _amounts(needs: Resources) -> dict[str, float]:
    amounts = {"CPU": needs.cpus or 0, "GPU": needs.gpus, **(needs.custom or {})}
    return {name: amount for name, amount in amounts.items() if amount}


def _format_amounts(amounts: Mapping[str, float]) -> str:
    names = {"CPU": "cpus", "GPU": "gpus"}
    return ", ".join(f"{amount:g} {names.get(name, name)}" for name, amount in amounts.items())
