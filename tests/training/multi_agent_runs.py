"""Settings of small runs with several agents."""

from typing import Any

SPREAD, TIC_TAC_TOE = "pettingzoo:mpe2.simple_spread_v3", "pettingzoo:pettingzoo.classic.tictactoe_v3"
SMALL: dict[str, Any] = {
    "num_envs": 4, "num_shards": 2, "fragment_steps": 5, "hidden": (8,), "num_epochs": 2, "num_minibatches": 2,
    "lr_end": None, "metrics_interval": 0, "progress": False, "engine": "inline",
}  # fmt: skip
SHORT_SPREAD: dict[str, Any] = {**SMALL, "env": SPREAD, "env_kwargs": {"max_cycles": 10}}
PAIR = {"agents": ["agent_0", "agent_1"], "batch_steps": 160}
DQN = {"algorithm": "dqn", "learning_starts": 20, "batch_size": 8, "buffer_size": 500, "target_every": 5}
TWIN: dict[str, Any] = {"pair": PAIR, "single": {"agents": "agent_2", **DQN}}
TWO_PPO: dict[str, Any] = {"pair": PAIR, "single": {"agents": "agent_2", "num_epochs": 1}}
