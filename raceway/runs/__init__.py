"""Runs: the run directory and its files; reading, comparing and resuming runs."""

from raceway.runs.directory import RunDirectory
from raceway.runs.provenance import versions

__all__ = ["RunDirectory", "versions"]
