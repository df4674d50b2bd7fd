"""What a worker reports of the episodes that ended: success, keys of their infos, and the metrics of callbacks."""

from __future__ import annotations

import pickle
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from raceway.errors import INTERRUPTS, ConfigError
from raceway.rl import Batch
from raceway.rl.episode_info import EPISODE_INFO, as_number, encode_episodes, success_of


@dataclass(frozen=True)
class EpisodeCallbacks:
    """Callbacks with `on_episode_end`, pickled as they were before the training, so that every engine gets a copy."""

    pickled: tuple[bytes, ...]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Identifies this part of the run. Errors in batches that were saved by an earlier part are not raised again."""

    @classmethod
    def of(cls, callbacks: Sequence[Any]) -> EpisodeCallbacks | None:
        """Return the callbacks for the workers, or None if there are none."""
        return cls(tuple(map(_pickle, callbacks))) if callbacks else None

    def load(self) -> list[Any]:
        """Return a copy of the callbacks."""
        return [pickle.loads(part) for part in self.pickled]


def _pickle(callback: Any) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        pickled: bytes = cloudpickle.dumps(callback)  # classes of a script are pickled by value
    except Exception as error:
        raise ConfigError(
            f"the callback {type(callback).__name__} has on_episode_end, so a copy of it is sent to every worker, and "
            f"it cannot be pickled: {error}. Create what cannot be pickled in on_train_start, or leave it out of "
            "__getstate__."
        ) from error
    return pickled


def info_label(key: str) -> str:
    """Return how warnings refer to an entry of an info."""
    return f"info[{key!r}]"


class EpisodeEnd(NamedTuple):
    """What was read from the info of an episode's last step."""

    report: dict[str, Any]
    info: dict[str, Any]
    """The info for callbacks; empty if there are none."""


NO_INFO = EpisodeEnd({}, {})


class EpisodeReporter:
    """Selects what is reported of an episode from the info of its last step.

    Args:
        info_keys: entries of the info that are reported if they are numbers.
        callbacks: their `on_episode_end` is called with the info, once the batch of the episode is complete.
        token: see `EpisodeCallbacks`.
    """

    def __init__(self, info_keys: Sequence[str] = (), callbacks: Sequence[Any] = (), token: str = "") -> None:
        self.info_keys, self.callbacks, self.token = tuple(info_keys), tuple(callbacks), token

    def read(self, info: Any) -> EpisodeEnd:
        """Read the info of an episode's last step, which the environment may change in its next step."""
        if not isinstance(info, Mapping) or not info:
            return NO_INFO
        report: dict[str, Any] = {}
        if "is_success" in info:
            success = success_of(info)
            if success is not None:
                report["success"] = success
            elif info["is_success"] is not None:
                report["invalid"] = {info_label("is_success"): describe(info["is_success"])}
        for key in self.info_keys:
            value = info.get(key)
            if value is None:
                continue
            number = as_number(value)
            if number is None:
                report.setdefault("invalid", {})[info_label(key)] = describe(value)
            else:
                report.setdefault("env", {})[key] = number
        if not self.callbacks:
            return EpisodeEnd(report, {}) if report else NO_INFO
        return EpisodeEnd(report, {
            key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()
        })  # fmt: skip

    def column(self, ends: Sequence[EpisodeEnd], totals: Callable[[], Batch]) -> Batch:
        """Return the column `episode_info` of a batch with these episodes, if there is something to report.

        Args:
            ends: the episodes.
            totals: returns their `episode_return` and `episode_length`, which only callbacks need.
        """
        if not self.callbacks or not ends:
            reports = [end.report for end in ends]
        else:
            columns = totals()
            episodes = zip(ends, columns["episode_return"], columns["episode_length"], strict=True)
            reports = [self._call_callbacks(end, float(total), int(length)) for end, total, length in episodes]
        return {EPISODE_INFO: encode_episodes(reports)} if any(reports) else {}

    def _call_callbacks(self, end: EpisodeEnd, episode_return: float, length: int) -> dict[str, Any]:
        """Return the report of an episode with the metrics of the callbacks, or the error of the first that raised."""
        report, metrics = dict(end.report), dict[str, float]()
        for callback in self.callbacks:
            try:
                info = {**end.info, "episode": {"r": episode_return, "l": length}}
                for name, value in _checked(callback.on_episode_end(info)).items():
                    if name in metrics:
                        raise ValueError(f"another callback returned a metric {name!r} already. Rename one of them.")
                    number = as_number(value)
                    if number is None:
                        label = f"the metric {name!r} of {type(callback).__name__}.on_episode_end"
                        report["invalid"] = {**report.get("invalid", {}), label: describe(value)}
                    else:
                        metrics[name] = number
            except INTERRUPTS:
                raise
            except Exception as error:
                text = "".join(traceback.format_exception(type(error), error, _own_frames(error)))
                named = {"callback": type(callback).__name__, "problem": f"{type(error).__name__}: {error}"}
                return {**report, "error": {**named, "traceback": text, "token": self.token}}
        return {**report, "metrics": metrics} if metrics else report


def _checked(metrics: Any) -> Mapping[str, Any]:
    """Return what `on_episode_end` returned, if it is a mapping from names or None."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise TypeError(f"on_episode_end must return a dict of numbers by name, or None, not {metrics!r}")
    return metrics


def _own_frames(error: Exception) -> Any:
    """Return the traceback of an error without the frame that called the callback."""
    return error.__traceback__.tb_next or error.__traceback__ if error.__traceback__ is not None else None


def describe(value: Any) -> str:
    """Return a value that is no finite number in short, for warnings.

    >>> describe("x"), describe(float("nan")), describe(np.zeros((3, 2)))
    ('of type str', 'nan', 'of type ndarray with shape (3, 2)')
    """
    if isinstance(value, (float, np.floating)):
        return str(float(value))
    shape = getattr(value, "shape", None)
    return f"of type {type(value).__name__}" + (f" with shape {tuple(shape)}" if shape else "")
