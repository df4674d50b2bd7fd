"""Creating services, and passing references and futures to them."""

import os
import time
from functools import partial

import numpy as np
import pytest

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, Runner, ServiceFuture
from tests.conftest import GENEROUS
from tests.runner import services
from tests.runner.conftest import REMOTE, engines
from tests.runner.services import Counter, Multiplier, add

# Creating services.


def test_service_of_a_function(rr: Runner) -> None:
    service = rr.service(add)
    assert isinstance(service(1, 3), ServiceFuture)
    assert rr.get([service(n, b=n) for n in range(5)]) == [0, 2, 4, 6, 8]
    assert service(1).get(GENEROUS) == 2


def test_service_of_a_partial(rr: Runner) -> None:
    assert rr.get(rr.service(partial(add, b=10))(1)) == 11


def test_service_of_a_lambda_and_a_callable_object(rr: Runner) -> None:
    assert rr.get(rr.service(lambda x: x + 1)(1)) == 2
    assert rr.get(rr.service(Multiplier(3))(5)) == 15


def test_a_class_is_instantiated_in_each_worker(rr: Runner) -> None:
    service = rr.service(Counter)
    assert service.increment(5).get(GENEROUS) >= 5


def test_an_instance_keeps_its_state(rr: Runner) -> None:
    service = rr.service(Counter(10))
    assert rr.get([service.increment() for _ in range(5)]) == [11, 12, 13, 14, 15]
    assert rr.get(service.get()) == 15


@engines(*REMOTE)
def test_an_autoscaled_instance_has_one_state_per_worker(rr: Runner) -> None:
    service = rr.service(Counter(), autoscale=True, workers=2)
    rr.get([service.slow(0.05) for _ in range(8)])
    states = {}
    while len(states) < 2:
        for pid, count in rr.get([service.where() for _ in range(8)]):
            states[pid] = count
    assert sum(states.values()) == 8


@engines(*REMOTE)
def test_number_of_workers(rr: Runner) -> None:
    service = rr.service(services.sleep, workers=3, warmup=3)
    pids = rr.service(lambda: (time.sleep(0.05), os.getpid())[1], workers=3)
    assert len(set(rr.get([pids() for _ in range(12)]))) == 3
    single = rr.service(services.pid, autoscale=False)
    assert len(set(rr.get([single() for _ in range(6)]))) == 1
    assert service._backend.services[service._id].workers


def test_warmup_starts_workers_now(rr: Runner) -> None:
    service = rr.service(add, warmup=2)
    workers = service._backend.services[service._id].workers
    assert len(workers) == 2
    assert all(worker.ready.done() for worker in workers)


def test_warmup_beyond_the_default_number_of_workers_starts_that_many(rr: Runner) -> None:
    service = rr.service(add, warmup=3)  # the Runner has workers=2
    assert len(service._backend.services[service._id].workers) == 3


def test_an_instance_has_one_worker_to_warm_up(rr: Runner) -> None:
    with pytest.raises(ConfigError, match="warmup=2 needs autoscale=True"):
        rr.service(Counter(), warmup=2)
    service = rr.service(Counter(), autoscale=True, warmup=2)
    assert len(service._backend.services[service._id].workers) == 2


# References and futures as arguments.


def test_a_reference_arrives_as_its_value(rr: Runner) -> None:
    weights = rr.put_object({"w": np.ones(100_000)})
    assert isinstance(weights, ObjectRef)
    service = rr.service(services.kind_of)
    assert rr.get(service(weights)) == "dict"
    assert rr.get(service(value=weights)) == "dict"
    assert rr.get(service([weights])) == "list"
    assert rr.get(rr.service(lambda box: type(box[0]).__name__)([weights])) == "ObjectRef"


def test_a_future_arrives_as_its_result(rr: Runner) -> None:
    service = rr.service(add)
    chain = service(1, 1)
    for _ in range(5):
        chain = service(chain, 1)
    assert chain.get(GENEROUS) == 7
    assert rr.get(service(service(1, 1), b=service(2, 2))) == 6
    array = rr.service(lambda n: np.ones(n))
    assert rr.get(rr.service(services.total)(array(200_000))) == 200_000


def test_a_future_may_be_passed_several_times(rr: Runner) -> None:
    service = rr.service(add)
    slow = rr.service(services.sleep)
    future = slow(0.2, 5)
    assert rr.get([service(future, future), service(future, 1), service(future, b=future)]) == [10, 6, 10]


def test_a_failed_future_fails_the_calls_that_depend_on_it(rr: Runner) -> None:
    bad = rr.service(services.fail)()
    with pytest.raises(LookupError, match="boom"):
        rr.service(add)(bad, 1).get(GENEROUS)


def test_calls_to_an_instance_keep_their_order_when_one_waits_for_a_future(rr: Runner) -> None:
    counter = rr.service(Counter())
    slow = rr.service(services.sleep)(0.2, 100)
    first, second = counter.increment(slow), counter.increment(1)
    assert rr.get([first, second]) == [100, 101], "in the order sent"


def test_a_future_in_a_container_stays_a_future(rr: Runner) -> None:
    service = rr.service(add)
    assert rr.get(rr.service(lambda box: box["f"].get() + 1)({"f": service(1, 1)})) == 3
    returned = rr.get(rr.service(lambda services: [services[0](5, 5)])([service]))
    assert rr.get(returned) == [10], "a worker can return a future"
