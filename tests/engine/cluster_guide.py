"""Follow docs/cluster.md as it is written, on three hosts of this machine: `python -m tests.engine.cluster_guide`.

Needs root and takes about two minutes, so it is not part of the suite. Its only changes: `scp` copies between the
hosts' homes, the installed packages are this checkout's, and training has 3 workers and ends after two iterations.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.conftest import eventually
from tests.engine.cluster_hosts import Host, Hosts

ROOT = Path(__file__).parents[2]
LOCAL_RAY = "python -c 'import ray; ray.init(num_cpus=1, include_dashboard=False)'"
END = " --iterations 2 --run-dir /tmp/run"


def bash_blocks(section: str) -> list[str]:
    """Return the bash examples of a section of the guide."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    body = text.split(f". {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```bash\n(.*?)```", body, re.DOTALL)


def main() -> None:
    mode, on_head, on_others = bash_blocks("Start Ray")
    train = bash_blocks("Run")[0].replace("--num-workers 20", "--num-workers 3")
    with Hosts(3) as hosts:
        head, *others = hosts
        step("a local Ray has run on the head, and has left a token", head, LOCAL_RAY)
        step("the head", head, mode + on_head)
        token = head.run("cat ~/.ray/auth_token").stdout
        for host in others:
            host.run(f"mkdir -p /tmp/bin; printf 'printf %s > \"$3\"' '{token}' > /tmp/bin/scp; chmod +x /tmp/bin/scp")
            step("another machine", host, "PATH=/tmp/bin:$PATH\n" + mode + on_others)
        assert eventually(lambda: others[0].run(mode + "ray status").stdout.count(" 1 node_") == 3)
        for host in (head, others[1]):
            step("training", host, mode + train.strip() + END)
            step("its run directory", host, "ls /tmp/run/summary.json; rm -r /tmp/run")
        check_refusals(*others)
    print("the guide works as written")


def check_refusals(host: Host, other: Host) -> None:
    """Each is one line of error within seconds, and leaves no run directory."""
    train = "raceway train reinforce --env cartpole --engine ray --num-workers 1" + END + " --address "
    for command, expected in (
        (train + "10.0.0.1:6379", "Set RAY_AUTH_MODE=token"),
        ("RAY_AUTH_MODE=disabled " + train + "auto", "Set RAY_AUTH_MODE=token"),
        ("RAY_AUTH_MODE=token RAY_AUTH_TOKEN=abc " + train + "auto", "refuses the token in RAY_AUTH_TOKEN"),
        (train + "10.0.0.1:6380", "nothing listens on that port"),
        (train + "10.0.0.77:6379", "no Ray cluster at '10.0.0.77:6379'"),
        (train + "nowhere:6379", "the host name is unknown"),
    ):
        refuse(host, command, expected)
    other.run("RAY_AUTH_MODE=token ray stop --force")
    refuse(other, "RAY_AUTH_MODE=token " + train + "10.0.0.1:6379", "this machine is not a node")
    other.run("rm -r /tmp/ray")
    refuse(other, train + "auto", "no Ray runs on this machine")


def refuse(host: Host, command: str, expected: str) -> None:
    start = time.monotonic()
    process = host.run(command + " > /dev/null", check=False)
    print(f"{host.name}: {time.monotonic() - start:.1f} s: {process.stdout}", end="", flush=True)
    assert process.returncode == 1, process.returncode
    assert expected in process.stdout, expected
    assert process.stdout.count("\n") == 1, "more than one line of error"
    assert host.run("ls -d /tmp/run", check=False).returncode, "a run directory was left"


def step(label: str, host: Host, command: str) -> str:
    start = time.monotonic()
    output = host.run(command).stdout
    print(f"{host.name}: {label}: {time.monotonic() - start:.1f} s", flush=True)
    return output


if __name__ == "__main__":
    main()
