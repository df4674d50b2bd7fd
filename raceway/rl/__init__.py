"""Reinforcement learning mathematics as small pure functions on arrays, and the batch that they work on.

The functions on tensors are loaded when they are first used: importing torch takes a second or more, and replay shards,
environments and datasets do not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raceway.rl.advantages import VTrace, generalised_advantages, v_trace
from raceway.rl.baselines import baseline_advantages, linear_baseline
from raceway.rl.batch import (
    Batch,
    Episodes,
    Fragment,
    Layout,
    Rows,
    Trials,
    columns_with,
    concat,
    has_segments,
    is_repeated,
    is_replayed,
    layout_of,
    masked_mean,
    num_rows,
    num_steps,
    split_episodes,
    tree_map,
    without_episode_columns,
)
from raceway.rl.evolution import (
    ars_coefficients,
    centred_ranks,
    direction_noise,
    es_coefficients,
    sum_of_directions,
)
from raceway.rl.joint import joint
from raceway.rl.moments import Moments
from raceway.rl.returns import discounted_returns, episode_sums, standardise_episodes
from raceway.rl.schedules import LinearSchedule
from raceway.rl.segments import Segments, find_segments, sequence_segments
from raceway.rl.spaces import empty, fill, network_obs_space, row_of
from raceway.rl.transitions import episode_transitions, n_step_transitions, next_obs_of, sequences

if TYPE_CHECKING:
    from raceway.rl.distributional_targets import (
        drop_largest,
        expected_values,
        project_distribution,
        quantile_huber_loss,
        quantile_midpoints,
    )
    from raceway.rl.offline import (
        conservative_penalty,
        expectile_loss,
        exponential_weights,
        importance_weighted,
        q_scale,
        scaled_advantages,
    )
    from raceway.rl.policy_losses import TensorVTrace, clipped_surrogate, fragment_v_trace, target_worker_ratio
    from raceway.rl.targets import (
        double_q_target,
        inverse_value_rescaling,
        q_lambda_returns,
        q_target,
        rescaled_target,
        retrace,
        sequence_priorities,
        soft_target,
        soft_value,
        value_rescaling,
    )

__all__ = [
    "Batch",
    "Episodes",
    "Fragment",
    "Layout",
    "LinearSchedule",
    "Moments",
    "Rows",
    "Segments",
    "TensorVTrace",
    "Trials",
    "VTrace",
    "ars_coefficients",
    "baseline_advantages",
    "centred_ranks",
    "clipped_surrogate",
    "columns_with",
    "concat",
    "conservative_penalty",
    "direction_noise",
    "discounted_returns",
    "double_q_target",
    "drop_largest",
    "empty",
    "episode_sums",
    "episode_transitions",
    "es_coefficients",
    "expected_values",
    "expectile_loss",
    "exponential_weights",
    "fill",
    "find_segments",
    "fragment_v_trace",
    "generalised_advantages",
    "has_segments",
    "importance_weighted",
    "inverse_value_rescaling",
    "is_repeated",
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
    "project_distribution",
    "q_lambda_returns",
    "q_scale",
    "q_target",
    "quantile_huber_loss",
    "quantile_midpoints",
    "rescaled_target",
    "retrace",
    "row_of",
    "scaled_advantages",
    "sequence_priorities",
    "sequence_segments",
    "sequences",
    "soft_target",
    "soft_value",
    "split_episodes",
    "standardise_episodes",
    "sum_of_directions",
    "target_worker_ratio",
    "tree_map",
    "v_trace",
    "value_rescaling",
    "without_episode_columns",
]

_MODULES = {
    "drop_largest": "distributional_targets",
    "expected_values": "distributional_targets",
    "project_distribution": "distributional_targets",
    "quantile_huber_loss": "distributional_targets",
    "quantile_midpoints": "distributional_targets",
    "TensorVTrace": "policy_losses",
    "clipped_surrogate": "policy_losses",
    "conservative_penalty": "offline",
    "expectile_loss": "offline",
    "exponential_weights": "offline",
    "fragment_v_trace": "policy_losses",
    "importance_weighted": "offline",
    "q_scale": "offline",
    "scaled_advantages": "offline",
    "target_worker_ratio": "policy_losses",
    "double_q_target": "targets",
    "inverse_value_rescaling": "targets",
    "q_lambda_returns": "targets",
    "q_target": "targets",
    "rescaled_target": "targets",
    "retrace": "targets",
    "sequence_priorities": "targets",
    "soft_target": "targets",
    "soft_value": "targets",
    "value_rescaling": "targets",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
