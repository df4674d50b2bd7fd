"""Joining a Ray cluster: whatever is wrong is one error that says what to set."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raceway.cli import main
from raceway.engine.ray import joining, private_api, probe
from raceway.engine.ray.joining import check_joinable, explain_failure
from raceway.errors import ConfigError, ConnectionFailed

RIGHT_ADDRESS = (
    "Set the address to the host:port that `ray start --head` printed, or to 'auto' on a machine where "
    "`ray start` has run"
)


@pytest.fixture
def head(ray_session: None) -> str:
    """The address of a Ray that asks for a token."""
    import ray

    return ray.get_runtime_context().gcs_address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:  # and not listening
        bound.bind(("", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def refusal(address: str) -> str:
    with pytest.raises(ConnectionFailed) as raised:
        check_joinable(address, {})
    return str(raised.value)


# With a real Ray.


def test_a_token_is_required(head: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert refusal(head) == (
        f"the Ray cluster at '{head}' requires a token, and this machine has none. Set RAY_AUTH_MODE=token, and put "
        "the head's into ~/.ray/auth_token: `ray get-auth-token` prints it there"
    )
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("wrong")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert refusal(head) == (
        f"the Ray cluster at '{head}' refuses the token in {tmp_path}/.ray/auth_token. Replace it with the head's: "
        "`ray get-auth-token` prints it there"
    )


def test_versions_must_be_the_same(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.experimental import internal_kv

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", token_of_this_ray())
    key, namespace = b"CLUSTER_METADATA", b"cluster"
    metadata = internal_kv._internal_kv_get(key, namespace=namespace)
    other = json.loads(metadata) | {"ray_version": "2.40.0", "python_version": "3.12.1"}
    try:
        internal_kv._internal_kv_put(key, json.dumps(other).encode(), overwrite=True, namespace=namespace)
        message = refusal(head)
    finally:
        internal_kv._internal_kv_put(key, metadata, overwrite=True, namespace=namespace)
    assert f"the Ray cluster at '{head}' runs Ray 2.40.0 on Python 3.12.1, and this process Ray " in message
    assert message.endswith(". Install the same versions on every machine")
    assert check_joinable(head, {}) == {"RAY_AUTH_MODE": "token"}


def token_of_this_ray() -> str:
    from ray._raylet import AuthenticationTokenLoader

    token: str = AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    return token


def test_training_without_a_cluster_is_one_error(
    closed_port: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # nor is the Ray of other tests
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "reinforce", "--env", "cartpole", "--engine", "ray", "--num-workers", "1"]
    assert main([*arguments, "--address", closed_port]) == 1
    error = capsys.readouterr().err
    assert f"{closed_port.rpartition(':')[2]}'" in error
    assert error.endswith(f"nothing listens on that port. {RIGHT_ADDRESS}\n")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert "RAY_AUTH_MODE" not in os.environ


# Without Ray.


@pytest.mark.parametrize(
    ("address", "detail"),
    [("nowhere.invalid:6379", "the host name is unknown"), ("127.0.0.1:closed", "nothing listens on that port")],
)
def test_addresses_that_cannot_be_reached(address: str, detail: str, closed_port: str) -> None:
    with pytest.raises(probe.Refused) as raised:
        probe._connect(closed_port if address.endswith("closed") else address)
    assert raised.value.problem == "unreachable"
    assert raised.value.detail == detail


@pytest.mark.parametrize(
    ("address", "findings", "expected"),
    [
        ("head", {"problem": "address"}, "address 'head': expected host:port, such as '10.0.0.1:6379', or 'auto'"),
        (
            "auto",
            {"problem": "no local node"},
            "address 'auto': no Ray runs on this machine. Run `ray start --head` or",
        ),
        (
            "auto",
            {"problem": "silent"},
            "at 'a:1' (address 'auto'): what listens there is not the head of one. Set the",
        ),
        (
            "a:1",
            {"problem": "other node"},
            "this machine is not a node of the Ray cluster at 'a:1'. Run `ray start --ad",
        ),
        (
            "a:1",
            {"problem": "token", "uses_tokens": False},
            "uses no authentication, and RAY_AUTH_MODE=token is set he",
        ),
        (
            "a:1",
            {
                "problem": "token",
                "uses_tokens": True,
                "detail": "unreadable",
                "variables": {"RAY_AUTH_TOKEN_PATH": "x"},
            },
            "requires a token, and RAY_AUTH_TOKEN_PATH=x is missing or empty. Put the head's there",
        ),
        (
            "a:1",
            {"problem": "token", "uses_tokens": True, "variables": {"RAY_AUTH_TOKEN": "x"}},
            "requires a token, and RAY_AUTH_MODE is not set. Set RAY_AUTH_MODE=token",
        ),
        (
            "a:1",
            {"problem": "token", "uses_tokens": True, "variables": {"RAY_AUTH_MODE": "token"}},
            "requires a token, and this machine has none. Put the head's into ~/.ray/auth_token",
        ),
    ],
)
def test_every_problem_is_explained(
    address: str, findings: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in findings.pop("variables", {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "_probe", lambda *_: {"address": "a:1", "detail": ""} | findings)
    with pytest.raises((ConnectionFailed, ConfigError)) as raised:
        check_joinable(address, {})
    assert expected in str(raised.value)


@pytest.mark.parametrize(("uses_tokens", "mode"), [(True, "token"), (False, "disabled")])
def test_the_driver_uses_the_authentication_of_the_cluster(
    uses_tokens: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = {"problem": "", "address": "a:1", "uses_tokens": uses_tokens}
    monkeypatch.setattr(joining, "_probe", lambda *_: findings)
    assert check_joinable("auto", {}) == {"RAY_AUTH_MODE": mode}


def test_a_probe_that_fails_decides_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("raise ImportError('another Ray')")
    monkeypatch.setattr(joining, "_PROBE", tmp_path / "probe.py")
    assert check_joinable("a:1", {}) == {}


def test_what_ray_reports_itself_is_one_line() -> None:
    error = ConnectionError("Failed to connect to Ray cluster at a:1")
    error.__cause__ = RuntimeError("Failed to connect to GCS.\nTraceback (most recent call last):\n ...")
    reason = "Failed to connect to Ray cluster at a:1: Failed to connect to GCS"
    assert str(explain_failure("a:1", error)) == f"cannot join the Ray cluster at 'a:1': {reason}. {RIGHT_ADDRESS}"
    error = RuntimeError("Can't find a `node_ip_address.json` file from /tmp/ray.\nHave you started Ray?")
    reason = "Can't find a `node_ip_address.json` file from /tmp/ray"
    assert str(explain_failure("a:1", error)) == f"cannot join the Ray cluster at 'a:1': {reason}", "it was found there"


def test_a_local_ray_uses_the_users_token_or_one_of_its_own(tmp_path: Path) -> None:
    own = private_api.own_token({})
    assert own["RAY_AUTH_MODE"] == "token"
    assert len(own["RAY_AUTH_TOKEN"]) == 64
    assert private_api.own_token({})["RAY_AUTH_TOKEN"] != own["RAY_AUTH_TOKEN"]
    assert private_api.own_token({"RAY_AUTH_TOKEN": "x"}) == {"RAY_AUTH_MODE": "token"}
    assert private_api.own_token({"RAY_AUTH_MODE": "disabled"}) == {}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x")
    assert private_api.own_token({}) == {"RAY_AUTH_MODE": "token"}
