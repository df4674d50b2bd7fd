"""Raceway: distributed reinforcement learning as a dataflow."""

__version__ = "0.1.0"

__all__ = ["__version__"]
