"""Shared memory for messages: each process has one growing anonymous file, divided into blocks that are reused.

Only the process that owns an `Arena` allocates in it; others map it read-only (`ArenaReader`). Releasing a block takes
no message: for every pair of reader and block the `ControlFile` holds a release count, which only the reader writes,
when the last array that refers to the block is freed. The owner knows how often it sent the block and compares the
counts when it next needs memory. The files have no names, so nothing is left behind however the processes end.

Written by hand because `multiprocessing.shared_memory` names its segments (a killed process leaks them) and creates one
per value, which costs more than copying a megabyte.
"""
