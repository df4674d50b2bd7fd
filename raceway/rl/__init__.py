"""The mathematics of reinforcement learning as small pure functions on arrays, and what a batch of them is."""

from raceway.rl.advantages import VTrace, generalised_advantages, v_trace
from raceway.rl.baselines import baseline_advantages, linear_baseline
from raceway.rl.batch import Batch, concat, num_rows, num_steps, parts_of, rows_of, tree_map
from raceway.rl.returns import discounted_returns, episode_sums, standardise_episodes
from raceway.rl.schedules import Linear
from raceway.rl.spaces import empty, fill, obs_space_of, row_of
from raceway.rl.statistics import (
    bootstrap_interval,
    improvement_interval,
    interquartile_mean,
    probability_of_improvement,
)
from raceway.rl.transitions import n_step_transitions, next_obs_of, sequences

__all__ = [
    "Batch",
    "Linear",
    "VTrace",
    "baseline_advantages",
    "bootstrap_interval",
    "concat",
    "discounted_returns",
    "empty",
    "episode_sums",
    "fill",
    "generalised_advantages",
    "improvement_interval",
    "interquartile_mean",
    "linear_baseline",
    "n_step_transitions",
    "next_obs_of",
    "num_rows",
    "num_steps",
    "obs_space_of",
    "parts_of",
    "probability_of_improvement",
    "row_of",
    "rows_of",
    "sequences",
    "standardise_episodes",
    "tree_map",
    "v_trace",
]
