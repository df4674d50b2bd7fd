"""Memory that was freed is kept, so that it need not be made again."""

import resource
import subprocess
import sys

from raceway.engine._core import EngineCore
from tests.conftest import GENEROUS
from tests.engine.conftest import REMOTE, engines

SIZES = [3 << 20, 8 << 20, 20 << 20, 36 << 20]  # bytes; the last one is more than the C library promises to keep


class Allocating:
    """Takes memory as a step of training does: several blocks, written to, and freed again."""

    def faults(self) -> int:
        """Return how many pages had to be made in ten steps, after two."""
        for step in range(12):
            if step == 2:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            blocks = [bytearray(size) for size in SIZES]
            del blocks
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


PAGES = 10 * sum(SIZES) // 4096


@engines(*REMOTE)
def test_workers_keep_what_they_free(engine: EngineCore) -> None:
    assert engine.spawn(Allocating).call("faults").result(GENEROUS) < PAGES / 20


def faults_of_a_program(first: str) -> tuple[int, int]:
    """Return pages made by allocating, and by what was done first, in a fresh process."""
    program = f"""
import ctypes, resource
from raceway.engine.memory import keep_freed_memory
from tests.engine.test_memory import Allocating
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{first}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, Allocating().faults())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=GENEROUS)
    first_pages, pages = map(int, done.stdout.split())
    return pages, first_pages


def test_a_process_is_told_to_keep_what_it_frees() -> None:
    assert faults_of_a_program("")[0] > PAGES / 2
    kept, taken = faults_of_a_program("keep_freed_memory()")
    assert kept < PAGES / 20
    assert taken < 1000  # it reserves addresses, and takes none of the memory
