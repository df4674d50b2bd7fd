"""Replay: buffers of the newest experience, drawn from uniformly or by priority."""

from raceway.replay.buffer import Replay
from raceway.replay.frames import Frames
from raceway.replay.ledger import Ledger, ReplayCounts
from raceway.replay.sum_tree import SumTree

__all__ = ["Frames", "Ledger", "Replay", "ReplayCounts", "SumTree"]
