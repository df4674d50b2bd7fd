"""Reinforcement learning mathematics as small pure functions on arrays, and the batch that they work on."""

from raceway.rl.advantages import VTrace, generalised_advantages, v_trace
from raceway.rl.baselines import baseline_advantages, linear_baseline
from raceway.rl.batch import (
    Batch,
    Episodes,
    Fragment,
    Layout,
    Rows,
    columns_with,
    concat,
    has_segments,
    is_replayed,
    layout_of,
    masked_mean,
    num_rows,
    num_steps,
    split_episodes,
    tree_map,
    without_episode_columns,
)
from raceway.rl.joint import joint
from raceway.rl.returns import discounted_returns, episode_sums, standardise_episodes
from raceway.rl.schedules import LinearSchedule
from raceway.rl.segments import Segments, find_segments, sequence_segments
from raceway.rl.spaces import empty, fill, network_obs_space, row_of
from raceway.rl.transitions import n_step_transitions, next_obs_of, sequences

__all__ = [
    "Batch",
    "Episodes",
    "Fragment",
    "Layout",
    "LinearSchedule",
    "Rows",
    "Segments",
    "VTrace",
    "baseline_advantages",
    "columns_with",
    "concat",
    "discounted_returns",
    "empty",
    "episode_sums",
    "fill",
    "find_segments",
    "generalised_advantages",
    "has_segments",
    "is_replayed",
    "joint",
    "layout_of",
    "linear_baseline",
    "masked_mean",
    "n_step_transitions",
    "network_obs_space",
    "next_obs_of",
    "num_rows",
    "num_steps",
    "row_of",
    "sequence_segments",
    "sequences",
    "split_episodes",
    "standardise_episodes",
    "tree_map",
    "v_trace",
    "without_episode_columns",
]
