"""Freed memory is kept for reuse instead of being returned to the kernel."""

import ctypes
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from raceway.engine.base import Engine
from tests.conftest import GENEROUS
from tests.engine.conftest import REMOTE, engines

ROOT = Path(__file__).parents[2]
SIZES = [3 << 20, 8 << 20, 20 << 20, 36 << 20]  # bytes; the last one is larger than the blocks that glibc always keeps


class Allocator:
    """Uses memory as a training step does: allocates several blocks, writes to them and frees them."""

    def page_faults(self) -> int:
        """Return the number of page faults in ten steps, after two steps of warm-up."""
        ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a huge page would count as one fault
        for step in range(12):
            if step == 2:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            blocks = [bytearray(size) for size in SIZES]
            del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


NUM_PAGES = 10 * sum(SIZES) // mmap.PAGESIZE


@engines(*REMOTE)
def test_workers_keep_freed_memory(engine: Engine) -> None:
    assert engine.spawn(Allocator).call("page_faults").result(GENEROUS) < NUM_PAGES / 20


def page_faults_in_new_process(setup: str, **environ: str) -> tuple[int, int]:
    """Return the page faults of an Allocator, and those of the setup before it, in a new process."""
    program = f"""
import resource
from raceway.engine.malloc import keep_freed_memory
from tests.engine.test_malloc import Allocator
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{setup}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, Allocator().page_faults())
"""
    completed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=GENEROUS,
        cwd=ROOT,
        env=os.environ | environ,
    )
    setup_faults, faults = map(int, completed.stdout.split())
    return faults, setup_faults


def test_a_process_keeps_freed_memory() -> None:
    faults, setup_faults = page_faults_in_new_process("keep_freed_memory()")
    assert 10 * faults < page_faults_in_new_process("")[0]
    assert setup_faults < 1000, "it reserves addresses, not memory"


@pytest.mark.parametrize(
    "environ", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"}]
)
def test_settings_of_the_user_take_precedence(environ: dict[str, str]) -> None:
    assert page_faults_in_new_process("keep_freed_memory()", **environ)[0] > NUM_PAGES / 2
