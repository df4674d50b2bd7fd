"""`python -m raceway`."""

from raceway.cli import entry

entry()
