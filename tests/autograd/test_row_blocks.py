"""Threads that compute blocks: results in order, errors raised, and no thread left behind."""

from __future__ import annotations

import gc
import pickle
import threading

import pytest
import torch

from raceway.autograd.row_blocks import BlockThreads, run_blocks, run_parallel, split_rows


def helpers() -> set[threading.Thread]:
    gc.collect()  # those of a test that raised end with its traceback
    return {thread for thread in threading.enumerate() if thread.name.startswith("row-blocks")}


def test_results_are_in_the_order_of_the_blocks() -> None:
    threads, before = BlockThreads(3), helpers()
    with threads.active():
        assert run_parallel(lambda number: number * number, range(20)) == [number * number for number in range(20)]
        assert len(helpers() - before) == 2, "the calling thread computes too"
    assert run_parallel(lambda number: number + 1, range(3)) == [1, 2, 3], "without threads"


def test_blocks_are_computed_with_one_torch_thread_and_without_gradients() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with BlockThreads(2).active():
            seen = run_blocks(lambda _: (torch.get_num_threads(), torch.is_grad_enabled()), split_rows(8, 1))
        assert set(seen) == {(1, False)}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_error_of_a_block_is_raised_after_all_blocks_ended() -> None:
    ended = []

    def compute(number: int) -> None:
        if number in (1, 3):
            raise ValueError(f"block {number}")
        ended.append(number)

    with BlockThreads(2).active(), pytest.raises(ValueError, match="block 1"):
        run_parallel(compute, range(6))
    assert sorted(ended) == [0, 2, 4, 5]


def test_threads_end_with_their_owner_and_are_not_pickled() -> None:
    threads, before = BlockThreads(2), helpers()
    assert threads.map(lambda number: -number, [1, 2]) == [-1, -2]
    (helper,) = helpers() - before
    copy = pickle.loads(pickle.dumps(threads))
    assert copy.map(lambda number: number, [1]) == [1]
    del threads, copy
    helper.join(timeout=60)
    assert not helper.is_alive()
