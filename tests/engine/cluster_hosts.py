"""Several hosts on one Linux machine, without containers: each has its own network, processes, /tmp and home.

It needs root, iproute2 and util-linux. `with Hosts(3) as hosts: hosts[0].run("ray start --head")`. The hosts are
10.0.0.1, 10.0.0.2, ... on a bridge of their own, and share the machine's other files. Leaving the context, or the death
of this process, ends all their processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_BEGIN = """
mount -t tmpfs tmpfs /tmp -o mode=1777
mount -t tmpfs tmpfs /dev/shm
mkdir /tmp/home
hostname {name}
echo ready
exec cat  # until the pipe is closed: by its owner's death too
"""


class Host:
    """One host: commands run in its namespaces."""

    def __init__(self, name: str, address: str, namespace: str) -> None:
        self.name, self.address = name, address
        flags = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "unshare", *flags, "sh", "-ec", _BEGIN.format(name=name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # unshare complains when its child is killed
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{name} did not start"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        self._init = children.split()[0]

    def run(
        self, command: str, *, variables: Mapping[str, str] | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command with an empty home and environment; return its output, both streams as one."""
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        environment = {"HOME": "/tmp/home", "PATH": path} | dict(variables or {})
        enter = ["nsenter", "-t", self._init, "--mount", "--uts", "--ipc", "--net", "--pid", "--wd=/tmp"]
        process = subprocess.run(
            [*enter, "env", "-i", *(f"{name}={value}" for name, value in environment.items()), "bash", "-ec", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and process.returncode:
            raise RuntimeError(f"{self.name}: {command}\nended with {process.returncode}:\n{process.stdout}")
        return process

    def close(self) -> None:
        """End every process of the host, as if its power were cut."""
        subprocess.run(["kill", "-9", self._init], check=False)
        self._process.communicate()


class Hosts(list[Host]):
    """A context with a number of hosts on one network."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count, self._stack = count, ExitStack()

    def __enter__(self) -> Hosts:
        with self._stack:  # undone if a step fails
            switch = self._namespace("switch")
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
            for number in range(1, self._count + 1):
                self.append(self._host(switch, number))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()
        self.clear()

    def _namespace(self, name: str) -> str:
        name = f"raceway-{os.getpid()}-{name}"
        _ip("netns", "add", name)
        self._stack.callback(_ip, "netns", "del", name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    def _host(self, switch: str, number: int) -> Host:
        namespace, address = self._namespace(f"host{number}"), f"10.0.0.{number}"
        _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        host = Host(f"host{number}", address, namespace)
        self._stack.callback(host.close)
        return host


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
