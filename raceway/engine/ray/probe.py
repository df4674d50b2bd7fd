"""A program that finds out whether a driver on this machine can join a Ray cluster, and prints its findings as JSON.

`ray.init` retries for 20 to 60 seconds, logs a line a second and then raises its internals; with a wrong authentication
mode it even succeeds, and no actor ever starts. The checks here take about a second. They use Ray's private API, which
aborts the process in some cases, so `joining.py` runs them in a process of their own, and ignores one that fails.

    python -P probe.py ADDRESS [NODE_IP [TEMP_DIR]]

The JSON object has `problem` (see `Problem`), the `address` as host:port, a `detail`, and `uses_tokens`: whether the
cluster authenticates its nodes and drivers, or null if that is unknown.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
from typing import Any, Literal

CONNECT_SECONDS = 5
Problem = Literal[
    "",
    "no local node",  # the address is "auto", and no Ray runs on this machine
    "address",  # it is not host:port
    "unreachable",
    "silent",  # what listens there is not the head of a Ray cluster
    "token",  # it is missing or wrong, or the cluster uses none
    "version",  # of Ray or Python
    "other node",  # none of the cluster's nodes is this machine
]
_SETTINGS = {"py_gcs_connect_timeout_s": "5", "gcs_rpc_server_connect_timeout_s": "5"}


class Refused(Exception):
    """The cluster cannot be joined."""

    def __init__(self, problem: Problem, detail: object = "") -> None:
        super().__init__(problem)
        self.problem, self.detail = problem, str(detail)


def main(address: str, node_ip: str | None = None, temp_dir: str | None = None) -> dict[str, Any]:
    """Return the findings about the cluster at an address."""
    user_mode = os.environ.get("RAY_AUTH_MODE")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # until it is known that the cluster wants a token
    os.environ.update({f"RAY_{name}": value for name, value in _SETTINGS.items()})
    findings: dict[str, Any] = {"problem": "", "address": address, "detail": "", "uses_tokens": None}
    try:
        findings["address"] = _resolve(address, temp_dir)
        _connect(findings["address"])
        client = _client(findings["address"])
        findings["uses_tokens"] = client is None
        if client is None:
            is_found = address == "auto"  # on this machine: its token is the cluster's
            client = _client_with_token(findings["address"], user_mode or ("token" if is_found else "disabled"))
        elif user_mode is not None and user_mode.lower() == "token":
            raise Refused("token")
        _check_versions(client)
        _check_node(client, node_ip, temp_dir)
    except Refused as refusal:
        findings |= {"problem": refusal.problem, "detail": refusal.detail}
    return findings


def _resolve(address: str, temp_dir: str | None) -> str:
    services = _module("ray._private.services")
    try:
        resolved: str = services.canonicalize_bootstrap_address(address, temp_dir)
        services.extract_ip_port(resolved)
    except ConnectionError as error:
        raise Refused("no local node", error) from None
    except ValueError as error:
        raise Refused("address", error) from None
    return resolved


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except socket.gaierror:
        raise Refused("unreachable", "the host name is unknown") from None
    except ConnectionRefusedError:
        raise Refused("unreachable", "nothing listens on that port") from None
    except TimeoutError:
        raise Refused("unreachable", f"no answer within {CONNECT_SECONDS} s; a firewall may be in between") from None
    except OSError as error:
        raise Refused("unreachable", error.strerror or error) from None


def _client(address: str) -> Any:
    """Return a client of the head's control service, or None if the cluster requires another token, or any."""
    errors = _module("ray.exceptions")
    try:
        return _module("ray._raylet").GcsClient(address=address)
    except errors.AuthenticationError:
        return None
    except errors.RpcError as error:
        raise Refused("silent", error) from None


def _client_with_token(address: str, mode: str) -> Any:
    raylet, errors = _module("ray._raylet"), _module("ray.exceptions")
    try:
        has_token = raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    except errors.AuthenticationError:
        raise Refused("token", "unreadable") from None
    if mode.lower() != "token" or not has_token:  # without one, a client in this mode aborts the process
        raise Refused("token")
    os.environ["RAY_AUTH_MODE"] = "token"
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    client = _client(address)
    if client is None:
        raise Refused("token", "wrong")
    return client


def _check_versions(client: Any) -> None:
    cluster = _module("ray._common.usage.usage_lib").get_cluster_metadata(client)
    try:
        if cluster:
            _module("ray._private.utils").check_version_info(cluster, "")
    except RuntimeError:
        raise Refused("version", f"Ray {cluster['ray_version']} on Python {cluster['python_version']}") from None


def _check_node(client: Any, node_ip: str | None, temp_dir: str | None) -> None:
    services = _module("ray._private.services")
    try:
        services.get_node_to_connect_for_driver(client, node_ip, None, temp_dir, timeout_seconds=CONNECT_SECONDS)
    except RuntimeError as error:
        raise Refused("other node", error) from None


def _module(name: str) -> Any:
    """Import a module of Ray: untyped, as its types do not cover the private API."""
    return importlib.import_module(name)


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(*[argument or None for argument in sys.argv[1:]])  # type: ignore[arg-type]
    print(json.dumps(result))
