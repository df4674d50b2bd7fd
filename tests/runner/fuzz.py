"""Random programs of nested calls, with kills: every call ends, with the right result or a clear error.

python -m tests.runner.fuzz --seconds 120 --seed 7

A program is a tree of calls. The driver sends some trees to several services, and each call sends the calls below it,
to any service, its own too, and combines their results. Meanwhile a thread may kill workers, and a service may be
closed. Then these laws hold:

- every call ends: with the result that the tree has when it is evaluated by hand, with an exception that the tree
  raises, or with the error of a killed worker or of a closed service, if there is one;
- afterwards the Runner has forgotten everything: no callback, wait, future, object or stored value is left;
- after closing, no process is left.

The seed of a round decides its program and how often workers are killed; it is part of every failure's message.
"""

import argparse
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from raceway.errors import ActorDied, ActorStartError, EngineClosed
from raceway.runner import Runner
from tests.conftest import _processes, eventually
from tests.runner.random_programs import Box, Class, Instance, Node, failures, random_tree, result, run, same

CEILING = 120.0
"""Seconds after which a round that has not ended hangs: it takes about one."""


@contextmanager
def killing(rr: Runner, rng: random.Random, pause: float | None) -> Iterator[list[int]]:
    """Kill a random worker now and then; yield the list of killed processes."""
    killed: list[int] = []
    stop = threading.Event()

    def kill() -> None:
        while pause and not stop.wait(rng.expovariate(1 / pause)):
            with rr._backend.engine.lock:
                pids = sorted(actor.pid for actor in rr._backend.pools if actor.pid is not None)
                if pids:
                    killed.append(rng.choice(pids))
                    with suppress(ProcessLookupError):
                        os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def open_services(rr: Runner, rng: random.Random) -> Box:
    """Create services of every sort, of random sizes."""
    options = lambda: {"workers": rng.randint(1, 3), "deadline": rng.choice([None, CEILING])}  # noqa: E731
    services = [
        rr.service(run, **options()),
        rr.service(Class, **options()),
        rr.service(partial(run), workers=2, warmup=rng.randint(0, 2)),
        rr.service(Class(), autoscale=True, **options()),
    ]
    return Box(rr, services, rr.service(Instance()), rr.service(time.sleep, workers=1, deadline=0.2))


def run_trees(box: Box, trees: list[Node], killed: list[int], closes: bool = False) -> None:
    """Send trees of calls to their services, perhaps close one of these, wait for all, and check how they end."""
    futures = [box.call(tree) for tree in trees]
    if closes:
        time.sleep(0.1)
        box.services[-1].close()
    _, pending = box.rr.wait(futures, timeout=CEILING)
    assert not pending, f"{pending} hang; held: {left_behind(box.rr)}"
    for tree, future in zip(trees, futures, strict=True):
        if not (closes and isinstance(future.exception(), EngineClosed)):
            check_end(tree, future, killed)


def check_end(tree: Node, future: Any, killed: list[int]) -> None:
    """Check that a call that is done has ended as it should."""
    error = future.exception()
    if error is None:
        assert same(future.get(), result(tree)), f"{tree} returned {future.get()}"
        assert not failures(tree), f"{tree} should have failed"
    elif isinstance(error, LookupError):
        assert error.args[0] in failures(tree), f"{tree} raised {error!r}"
    else:
        assert isinstance(error, (ActorDied, ActorStartError)), f"{tree} raised {error!r}"
        assert killed, f"{tree} raised {error!r}, but no worker was killed"


def left_behind(rr: Runner) -> dict[str, Any]:
    """Return what a Runner without outstanding calls still holds, and should not."""
    backend = rr._backend
    gc.collect()
    with backend.engine.lock:
        backend.table.sweep()
        held = {
            "queued calls": [pool.name for pool in backend.services.values() if pool._queue],
            "running calls": [worker.name for worker in backend.pools if worker.calls],
            "blocked workers": list(backend.blocked_workers.waits),
            "timeouts": list(backend.blocked_workers.timeouts._callbacks),
            "selections": list(backend.selections),
            "futures": list(backend.futures.values()),
            "objects": list(backend.objects.stored),
            "stored values": list(backend.engine._stored),
        }
    return {name: items for name, items in held.items() if items}


def play_round(seed: int) -> int:
    """Run a random program and check the laws; return the number of killed workers."""
    rng = random.Random(seed)
    engine = "inline" if seed % 8 == 0 else "process"
    pause = None if engine == "inline" or rng.random() < 0.3 else rng.choice([0.02, 0.1, 0.3])
    labels = iter(range(10**6))
    trees = [random_tree(rng, labels, rng.randint(0, 3)) for _ in range(rng.randint(2, 6))]
    if engine == "inline":  # where a call that sleeps for ten minutes does, and threads share the one stack
        trees = [tree for tree in trees if not {"exceed_deadline", "use_threads"} & {node.kind for node in tree.all()}]
    with Runner("fuzz", engine=engine, workers=2) as rr:
        box = open_services(rr, rng)
        closes = rng.random() < 0.15
        with killing(rr, random.Random(seed), pause) as killed:  # not `rng`, which decides the program alone
            run_trees(box, trees, killed, closes)
        assert eventually(lambda: not left_behind(rr), CEILING), f"left behind: {left_behind(rr)}"
    return len(killed)


def fuzz(seconds: float, seed: int, verbose: bool = False) -> tuple[int, int]:
    """Run rounds for some seconds, with seeds from `seed`; return the number of rounds and of killed workers."""
    stop, num_rounds, num_killed = time.monotonic() + seconds, 0, 0
    before = _processes()
    while time.monotonic() < stop:
        start = time.monotonic()
        try:
            killed = play_round(seed + num_rounds)
            assert eventually(lambda: _processes() <= before), f"leaked processes: {_processes() - before}"
        except BaseException as error:
            error.add_note(f"in the round of seed {seed + num_rounds}")
            raise
        num_rounds, num_killed = num_rounds + 1, num_killed + killed
        if verbose:
            print(f"seed {seed + num_rounds - 1}: {killed} killed, {time.monotonic() - start:.1f} s", flush=True)
    return num_rounds, num_killed


def main(arguments: list[str] | None = None) -> int:
    """Fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to run")
    parser.add_argument("--seed", type=int, help="seed of the first round; random by default")
    parser.add_argument("--verbose", action="store_true", help="print every round")
    options = parser.parse_args(arguments)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    logging.getLogger("raceway.runner").setLevel(logging.ERROR)  # a warning for every worker that is killed
    print(f"rounds from seed {seed}", flush=True)
    num_rounds, num_killed = fuzz(options.seconds, seed, options.verbose)
    print(f"{num_rounds} rounds, {num_killed} workers killed: every law held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
