"""Replay buffers: the newest experience, sampled uniformly or by priority."""

from raceway.replay.buffer import Replay
from raceway.replay.frame_storage import Frames
from raceway.replay.hindsight import Hindsight
from raceway.replay.sum_tree import SumTree

__all__ = ["Frames", "Hindsight", "Replay", "SumTree"]
