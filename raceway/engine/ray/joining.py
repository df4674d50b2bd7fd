"""Joining a Ray cluster: what can be wrong, each as one error that says what to set."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raceway.engine.ray import private_api, ray
from raceway.errors import ConfigError, ConnectionFailed

_PROBE = Path(__file__).with_name("probe.py")
_PROBE_SECONDS = 60.0  # only a probe that hangs takes so long; its answer is then unknown
_RIGHT_ADDRESS = (
    "Set the address to the host:port that `ray start --head` printed, or to 'auto' on a machine where "
    "`ray start` has run"
)
_GET_TOKEN = "`ray get-auth-token` prints it there"


def check_joinable(address: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Raise ConnectionFailed if a driver in this process cannot join the Ray cluster at an address.

    Args:
        address: "auto", or host:port of the cluster's head.
        options: the arguments of `ray.init`.

    Returns:
        Environment variables to join it with: the authentication that the cluster uses, as far as it is known.
    """
    findings = _probe(address, options)
    error = _explain(address, findings)
    if error is not None:
        raise error
    if findings.get("uses_tokens") is None:
        return {}
    return {"RAY_AUTH_MODE": "token" if findings["uses_tokens"] else "disabled"}


def explain_failure(address: str, error: Exception) -> ConnectionFailed:
    """Return the error for a cluster that the probe found joinable, and that Ray could not join."""
    text = getattr(error, "message", str(error)).strip() or type(error).__name__
    cause = "" if error.__cause__ is None else str(error.__cause__).strip()
    reason = ": ".join(part.splitlines()[0].rstrip(".") for part in (text, cause) if part)
    advice = (
        f". {_RIGHT_ADDRESS}" if isinstance(error, ConnectionError) else ""
    )  # others come from a cluster found there
    return ConnectionFailed(f"cannot join the Ray cluster at {address!r}: {reason}{advice}")


def _probe(address: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of `probe.py`; none if it fails, as it may with another version of Ray."""
    arguments = [address, options.get("_node_ip_address") or "", options.get("_temp_dir") or ""]
    command = [sys.executable or "python3", "-P", str(_PROBE), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        findings = json.loads(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return findings if isinstance(findings, dict) else {}


def _explain(address: str, findings: Mapping[str, Any]) -> Exception | None:
    place, detail = repr(findings.get("address", address)), findings.get("detail", "")
    if place != repr(address):  # found for "auto", or instead of the loopback address, which other nodes cannot use
        place += f" (address {address!r})"
    match findings.get("problem", ""):
        case "":
            return None
        case "address":
            return ConfigError(f"address {address!r}: expected host:port, such as '10.0.0.1:6379', or 'auto'")
        case "no local node":
            text = (
                "address 'auto': no Ray runs on this machine. Run `ray start --head` or "
                "`ray start --address=<head>:6379` here first, or leave out the address to start a local Ray"
            )
        case "unreachable":
            text = f"no Ray cluster at {place}: {detail}. {_RIGHT_ADDRESS}"
        case "silent":
            text = f"no Ray cluster at {place}: what listens there is not the head of one. {_RIGHT_ADDRESS}"
        case "token":
            text = _explain_token(place, detail, findings["uses_tokens"])
        case "version":
            own = f"Ray {ray.__version__} on Python {platform.python_version()}"
            text = (
                f"the Ray cluster at {place} runs {detail}, and this process {own}. Install the same versions on every "
                "machine"
            )
        case _:
            text = (
                f"this machine is not a node of the Ray cluster at {place}. Run "
                f"`ray start --address={findings['address']}` here first, or start the program on one of the nodes"
            )
    return ConnectionFailed(text)


def _explain_token(place: str, detail: str, cluster_uses_tokens: bool) -> str:
    if not cluster_uses_tokens:
        return (
            f"the Ray cluster at {place} uses no authentication, and RAY_AUTH_MODE=token is set here. Unset it, or "
            "restart the cluster with RAY_AUTH_MODE=token on every node"
        )
    source, mode = private_api.token_source(), os.environ.get("RAY_AUTH_MODE")
    if detail == "wrong":
        return f"the Ray cluster at {place} refuses the token in {source}. Replace it with the head's: {_GET_TOKEN}"
    problem = f"the Ray cluster at {place} requires a token, and "
    if detail == "unreadable":
        return problem + f"{source} is missing or empty. Put the head's there: {_GET_TOKEN}"
    if source is not None:
        return problem + f"RAY_AUTH_MODE is {'not set' if mode is None else repr(mode)}. Set RAY_AUTH_MODE=token"
    setting = "Put" if mode == "token" else "Set RAY_AUTH_MODE=token, and put"
    return problem + f"this machine has none. {setting} the head's into ~/.ray/auth_token: {_GET_TOKEN}"
