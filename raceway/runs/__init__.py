"""Runs: the run directory, its files and their schemas, reading, comparing and resuming runs."""

from raceway.runs.directory import RunDirectory, versions

__all__ = ["RunDirectory", "versions"]
