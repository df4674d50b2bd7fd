"""Imports without garbage collection."""

import gc
import subprocess
import sys

import pytest

from raceway.imports import fast_imports


def test_the_collector_pauses_and_goes_on():
    with fast_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), fast_imports():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with fast_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_command_exempts_its_libraries_from_collection():
    program = (
        "import gc, sys; sys.argv[1:] = ['list']; from raceway import cli; cli.main(); print(gc.get_freeze_count())"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(output.split()[-1]) > 0
