"""Runs: their folders, their metrics, what people see of them."""

from raceway.runs.directory import RunDirectory, versions
from raceway.runs.plots import plot_returns, plot_seeds

__all__ = ["RunDirectory", "plot_returns", "plot_seeds", "versions"]
