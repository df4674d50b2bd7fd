"""Memory that was freed is kept, so that it need not be made again."""

import ctypes
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from raceway.engine._core import EngineCore
from tests.conftest import GENEROUS
from tests.engine.conftest import REMOTE, engines

ROOT = Path(__file__).parents[2]
SIZES = [3 << 20, 8 << 20, 20 << 20, 36 << 20]  # bytes; the last one is more than the C library promises to keep


class Allocating:
    """Takes memory as a step of training does: several blocks, written to, and freed again."""

    def faults(self) -> int:
        """Return how many pages had to be made in ten steps, after two."""
        ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would be counted as one
        for step in range(12):
            if step == 2:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            blocks = [bytearray(size) for size in SIZES]
            del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


PAGES = 10 * sum(SIZES) // mmap.PAGESIZE


@engines(*REMOTE)
def test_workers_keep_what_they_free(engine: EngineCore) -> None:
    assert engine.spawn(Allocating).call("faults").result(GENEROUS) < PAGES / 20


def faults_of_a_program(first: str, **environ: str) -> tuple[int, int]:
    """Return pages made by allocating, and by what was done first, in a fresh process."""
    program = f"""
import resource
from raceway.engine.malloc import keep_freed_memory
from tests.engine.test_malloc import Allocating
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{first}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, Allocating().faults())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=GENEROUS,
        cwd=ROOT,
        env=os.environ | environ,
    )
    first_pages, pages = map(int, done.stdout.split())
    return pages, first_pages


def test_a_process_is_told_to_keep_what_it_frees() -> None:
    kept, taken = faults_of_a_program("keep_freed_memory()")
    assert 10 * kept < faults_of_a_program("")[0]
    assert taken < 1000  # it reserves addresses, and takes none of the memory


@pytest.mark.parametrize(
    "environ", [{"MALLOC_TRIM_THRESHOLD_": "100000"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=100000"}]
)
def test_what_the_user_told_the_c_library_holds(environ: dict[str, str]) -> None:
    assert faults_of_a_program("keep_freed_memory()", **environ)[0] > PAGES / 2
