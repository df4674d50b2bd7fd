"""Workers that die, and uses of the Runner that are errors."""

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.errors import ActorDied, ActorStartError, ConfigError, EngineClosed, ForeignReference, SerializationError
from raceway.runner import Runner
from tests.conftest import GENEROUS, eventually
from tests.runner import services
from tests.runner.conftest import REMOTE, engines
from tests.runner.services import CannotStart, Counter, add

# Workers that die.


@engines(*REMOTE)
def test_only_the_running_call_is_lost(rr: Runner) -> None:
    service = rr.service(lambda n: services.die() if n == 3 else n, workers=2)
    futures = [service(n) for n in range(10)]
    with pytest.raises(ActorDied):
        futures[3].get(GENEROUS)
    assert rr.get([future for n, future in enumerate(futures) if n != 3], timeout=2 * GENEROUS) == [
        0,
        1,
        2,
        *range(4, 10),
    ]


@engines("process")
def test_queued_calls_survive_the_death_of_a_worker(rr: Runner) -> None:
    service = rr.service(lambda n: services.die() if n == 700 else n, workers=2)
    futures = [service(n) for n in range(2000)]
    rr.wait(futures, timeout=GENEROUS)
    failed = [n for n, future in enumerate(futures) if future.exception() is not None]
    assert failed == [700]
    assert all(future.get() == n for n, future in enumerate(futures) if n != 700)


@engines("process")
def test_calls_survive_the_death_of_the_launcher(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=1, warmup=1)
    running, queued = service(600), service(0.0, "ran")
    assert eventually(lambda: running.actor is not None)
    rr._backend.engine._processes.launcher.process.kill()
    with pytest.raises(ActorDied):
        running.get(GENEROUS)
    assert queued.get(GENEROUS) == "ran"


@engines("process")
def test_an_argument_that_the_driver_cannot_unpickle_fails(rr: Runner) -> None:
    inner = rr.service(services.kind_of)
    outer = rr.service(lambda: rr.get(inner(services.WorkerOnly())))
    with pytest.raises(Exception, match="only in a worker"):
        outer().get(GENEROUS)


@engines(*REMOTE)
def test_a_stateful_worker_is_not_replaced(rr: Runner) -> None:
    counter = rr.service(Counter())
    counter.increment().get(GENEROUS)
    first, second = counter.die(), counter.increment()
    with pytest.raises(ActorDied):
        first.get(GENEROUS)
    with pytest.raises(ActorDied, match="state"):
        second.get(GENEROUS)
    with pytest.raises(ActorDied, match="state"):
        counter.increment().get(GENEROUS)


class Restless:
    """Its second, fourth and sixth workers are killed while they start."""

    counter = ""

    def __init__(self) -> None:
        with open(self.counter, "a") as file:
            file.write("x")
        if os.path.getsize(self.counter) in (2, 4, 6):
            services.die()

    def wait_for(self, path: str) -> str:
        return str(services.wait_for_file(path, "done"))


@engines("process")
def test_failed_starts_are_counted_in_a_row(rr: Runner, tmp_path: Path) -> None:
    go = str(tmp_path / "go")

    class Service(Restless):
        counter = str(tmp_path / "starts")

    service = rr.service(Service, workers=4)
    futures = []
    for num_workers in range(1, 5):  # one more worker at a time, so that a successful start follows each failed one
        futures.append(service.wait_for(go))
        workers = rr._backend.services[service._id].workers
        assert eventually(lambda: sum(worker.ready.done() for worker in workers) == num_workers)  # noqa: B023
    futures += [service.wait_for(go) for _ in range(5)]
    open(go, "w").close()
    assert rr.get(futures, timeout=2 * GENEROUS) == ["done"] * 9
    assert os.path.getsize(Service.counter) == 7


@engines("process")
def test_calls_are_left_to_the_healthy_workers_if_no_more_can_start(
    rr: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.runner._pool._START_PAUSE_SECONDS", 1e6)
    go, counter = str(tmp_path / "go"), str(tmp_path / "starts")

    class OneLicence(Restless):
        def __init__(self) -> None:
            with open(counter, "a") as file:
                file.write("x")
            if os.path.getsize(counter) > 1:
                raise RuntimeError("no licence found")

    service = rr.service(OneLicence, workers=2, warmup=1)
    futures = [service.wait_for(go) for _ in range(5)]
    assert eventually(lambda: os.path.getsize(counter) == 2)
    assert eventually(lambda: len(rr._backend.services[service._id].workers) == 1)
    open(go, "w").close()
    assert rr.get(futures, timeout=GENEROUS) == ["done"] * 5
    assert os.path.getsize(counter) == 2, "it does not try again at once"


@engines("process")
def test_an_instance_whose_worker_is_killed_while_it_starts_is_started_again(rr: Runner, tmp_path: Path) -> None:
    counter = str(tmp_path / "starts")

    class KilledOnce(Counter):
        def __setstate__(self, state: dict[str, Any]) -> None:
            with open(counter, "a") as file:
                file.write("x")
            if os.path.getsize(counter) == 1:
                services.die()
            self.__dict__.update(state)

    service = rr.service(KilledOnce())
    assert rr.get([service.increment(), service.increment()], timeout=GENEROUS) == [1, 2]


# Errors.


def test_a_service_that_cannot_start(rr: Runner) -> None:
    service = rr.service(CannotStart)
    with pytest.raises(ActorStartError, match="no licence found"):
        rr.get([service.work() for _ in range(5)], timeout=GENEROUS)
    with pytest.raises(ActorStartError, match="no licence found"):
        service.work().get(GENEROUS)
    with pytest.raises(ActorStartError, match="no licence found"):
        rr.service(CannotStart, warmup=1)


def test_a_service_that_cannot_be_pickled(rr: Runner) -> None:
    lock = threading.Lock()
    with pytest.raises(SerializationError, match="closure variable lock"):
        rr.service(lambda: lock)


def test_a_closed_runner(rr: Runner) -> None:
    service = rr.service(add)
    ref = rr.put_object(1)
    service(1).get(GENEROUS)
    rr.close()
    for use in (lambda: service(1), lambda: rr.put_object(1), lambda: rr.service(add), lambda: rr.get_object(ref)):
        with pytest.raises(EngineClosed, match="closed"):
            use()
    rr.close()


@engines(*REMOTE)
def test_closing_fails_outstanding_calls(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=1, warmup=1)
    futures = [service(600) for _ in range(3)]
    rr.close()
    for future in futures:
        with pytest.raises(EngineClosed):
            future.get(GENEROUS)


@engines(*REMOTE)
def test_closing_a_service_fails_its_outstanding_calls(rr: Runner) -> None:
    service, other = rr.service(services.sleep, workers=1, warmup=1), rr.service(add)
    futures = [service(600) for _ in range(3)]
    dependent = other(futures[0])
    service.close()
    for future in (*futures, dependent, service(0.0)):
        with pytest.raises(EngineClosed, match="service 'sleep' was closed"):
            future.get(GENEROUS)
    assert other(1).get(GENEROUS) == 2
    with Runner("second", engine=rr._backend.engine) as second:
        running = second.service(services.sleep, warmup=1)(600)
    with pytest.raises(EngineClosed, match="Runner 'second' was closed"):
        running.get(GENEROUS)


def test_references_of_another_runner(rr: Runner) -> None:
    with Runner("other", engine="inline") as other:
        foreign = other.put_object(1)
        future = other.service(add)(1)
        with pytest.raises(ForeignReference, match="another Runner"):
            rr.get_object(foreign)
        with pytest.raises(ForeignReference):
            rr.service(add)(foreign)
        with pytest.raises(ForeignReference, match="'other'"):
            rr.get(future)
        with pytest.raises(ForeignReference, match="'other'"):
            rr.service(add)(future)


@engines("inline", "process")
def test_two_runners_at_once(rr: Runner) -> None:
    with Runner("second", engine=rr._backend.engine.name, workers=1) as second:
        a, b = rr.service(add), second.service(add)
        assert rr.get([a(n) for n in range(5)]) == second.get([b(n) for n in range(5)])
        weights = second.put_object(np.ones(100_000))
        assert second.get(second.service(services.total)(weights)) == 100_000


@engines("inline", "process")
def test_two_runners_on_one_engine(rr: Runner) -> None:
    with Runner("second", engine=rr._backend.engine) as second:
        assert second.get(second.service(add)(1)) == 2
        ref = second.put_object(1)
        with pytest.raises(ForeignReference):
            rr.get_object(ref)
    assert rr.get(rr.service(add)(1)) == 2, "closing the second Runner must leave the engine open"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrkers": 2}, "Did you mean 'workers'"),
        ({"workers": 0}, "workers"),
        ({"workers": "two"}, "workers"),
        ({"warmup": -1}, "warmup"),
        ({"workers": 1, "warmup": 2}, "warmup=2 exceeds the 1 workers"),
        ({"autoscale": False, "warmup": 2}, "warmup=2 needs autoscale=True"),
        ({"deadline": 0}, "deadline"),
        ({"resources": {"cpus": -1}}, "resources"),
        ({"autoscale": False, "workers": 3}, "autoscale=True"),
    ],
)
def test_invalid_service_options(options: dict[str, Any], message: str) -> None:
    with Runner("bad", engine="inline") as rr, pytest.raises(ConfigError, match=message):
        rr.service(add, **options)


def test_invalid_runner_options() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'process'"):
        Runner("bad", engine="proces")
    with pytest.raises(ConfigError, match="name"):
        Runner("")
    with pytest.raises(ConfigError, match="shared_memry"):
        Runner("bad", engine="process", shared_memry=3)


def test_unknown_methods() -> None:
    with Runner("names", engine="inline") as rr:
        counter = rr.service(Counter())
        with pytest.raises(AttributeError, match="Did you mean 'increment'"):
            counter.incremnt()
        with pytest.raises(AttributeError, match="_private"):
            counter._private()
        with pytest.raises(TypeError, match=r"not callable.*increment"):
            counter()
        with pytest.raises(ConfigError, match="expected a future"):
            rr.get([1])


def test_engine_from_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACEWAY_ENGINE", "inline")
    with Runner("environment") as rr:
        assert rr.get(rr.service(services.pid)()) == os.getpid()


def test_a_reference_cannot_be_pickled_outside_a_run(rr: Runner, tmp_path: Path) -> None:
    import pickle

    with pytest.raises(SerializationError, match="only within the run"):
        pickle.dumps(rr.put_object(1))
