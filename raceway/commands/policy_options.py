"""`--policies`: the policies of an environment with several agents."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raceway.commands.config_options import OptionGroup


def add_policies_option(group: OptionGroup) -> None:
    """Add the option."""
    group.add_argument(
        "--policies", metavar="shared|per-agent|FILE",
        help="With several agents (--env pettingzoo:...): one policy for all agents with equal spaces, one for every "
        "agent, or a .toml, .yaml or .json file of policies, agents and algorithms; see docs/several-agents.md. "
        "[shared]",
    )  # fmt: skip


def algorithm_of_policies(arguments: list[str]) -> str | None:
    """Return the algorithm of the first policy in the file of --policies, if there is one."""
    from raceway.settings.documents import read_document
    from raceway.training.policy_settings import is_policy_file

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--policies")
    path = parser.parse_known_args(arguments)[0].policies
    if path is None or not is_policy_file(path):
        return None
    from pathlib import Path

    tables = read_document(Path(path)).values.values()
    names = [table["algorithm"] for table in tables if isinstance(table, dict) and "algorithm" in table]
    return names[0] if names and isinstance(names[0], str) else None
