"""The number of compute threads during trainings, and after them."""

import threading
from collections.abc import Iterator

import pytest
import torch

from raceway.machine import worker_compute_settings
from tests.conftest import GENEROUS


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", ["main", "other"])
def test_every_thread_gets_its_compute_threads_back_when_its_training_ends(first: str) -> None:
    entered, leave, numbers = threading.Event(), threading.Event(), dict[str, int]()

    def other() -> None:
        with worker_compute_settings():
            entered.set()
            leave.wait(GENEROUS)
        numbers["other"] = torch.get_num_threads()

    thread = threading.Thread(target=other)
    with worker_compute_settings():
        thread.start()
        entered.wait(GENEROUS)
        if first == "other":
            leave.set()
            thread.join(GENEROUS)
        with worker_compute_settings():
            pass
        assert torch.get_num_threads() == 1
    numbers["main"] = torch.get_num_threads()
    new_thread = threading.Thread(target=lambda: numbers.update(new=torch.get_num_threads()))
    new_thread.start()
    new_thread.join(GENEROUS)
    leave.set()
    thread.join(GENEROUS)
    assert (numbers["main"], numbers["other"], torch.get_num_threads()) == (3, 3, 3)
    assert numbers["new"] == (1 if first == "main" else 3)  # limited while the other training goes on
