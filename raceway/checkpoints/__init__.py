"""Checkpoints: what is saved of a run, and how it is written, verified and read."""
