"""The GPUs of this machine, and which of them a worker may use."""

from __future__ import annotations

import os


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if devices is not None:
        return [gpu for gpu in devices.split(",") if gpu.strip() not in ("", "-1")]
    try:
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        return []


def gpu_environment(count: float, worker_index: int) -> dict[str, str]:
    """Return the variables that assign GPUs to a worker, round-robin; workers that ask for fractions share one."""
    gpus = visible_gpus()
    if not count or not gpus:
        return {}
    names = [gpus[(worker_index + i) % len(gpus)] for i in range(max(1, round(count)))]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)}
