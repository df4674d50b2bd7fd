"""Reinforcement learning mathematics as small pure functions on arrays, and the batch that they work on."""

from raceway.rl.advantages import VTrace, generalised_advantages, v_trace
from raceway.rl.baselines import baseline_advantages, linear_baseline
from raceway.rl.batch import Batch, concat, num_rows, num_steps, split_episodes, tree_map, without_episode_columns
from raceway.rl.returns import discounted_returns, episode_sums, standardise_episodes
from raceway.rl.schedules import LinearSchedule
from raceway.rl.spaces import empty, fill, network_obs_space, row_of
from raceway.rl.transitions import n_step_transitions, next_obs_of, sequences

__all__ = [
    "Batch",
    "LinearSchedule",
    "VTrace",
    "baseline_advantages",
    "concat",
    "discounted_returns",
    "empty",
    "episode_sums",
    "fill",
    "generalised_advantages",
    "linear_baseline",
    "n_step_transitions",
    "network_obs_space",
    "next_obs_of",
    "num_rows",
    "num_steps",
    "row_of",
    "sequences",
    "split_episodes",
    "standardise_episodes",
    "tree_map",
    "v_trace",
    "without_episode_columns",
]
