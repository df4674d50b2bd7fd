"""Actors that the engine tests spawn."""

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np


class Box:
    """Stores values, and has a method for each thing that a test needs."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def add(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values)

    def all(self) -> list[Any]:
        return self.values

    def echo(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs else (args, kwargs)

    def pid(self) -> int:
        return os.getpid()

    def environ(self, name: str) -> str | None:
        return os.environ.get(name)

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def zeros(self, num_bytes: int) -> np.ndarray:
        return np.zeros(num_bytes, np.uint8)

    def write_into(self, array: np.ndarray) -> None:
        array[0] = 1

    def describe(self, array: Any) -> tuple[str, bool, bool]:
        return type(array).__name__, bool(array.flags.writeable), bool(array.flags.owndata)

    def total(self, nested: Any) -> float:
        return float(sum(part.sum() for part in nested["parts"]))

    def scale_tensor(self, tensor: Any) -> Any:
        tensor.mul_(2)
        return tensor

    def read(self, holder: dict[str, Any]) -> Any:
        return holder["ref"].get()

    def keep_ref(self, holder: dict[str, Any]) -> None:
        self.values.append(holder["ref"])

    def drop(self) -> None:
        self.values.clear()

    def threads(self) -> tuple[int, int]:
        import torch

        return torch.get_num_threads(), int(os.environ["OMP_NUM_THREADS"])

    def cpu_of_matmul(self) -> float:
        """Return the CPU time of matrix products per second of wall time: 1 for one thread."""
        a = np.ones((600, 600))
        begin, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < 0.5:
            a @ a
        return (time.process_time() - cpu) / (time.perf_counter() - begin)

    def say(self, text: str) -> None:
        print(text)


class Faulty(Box):
    """Fails in every possible way."""

    def raises(self) -> None:
        raise KeyError("missing")

    def raises_deep(self) -> None:
        def inner() -> None:
            raise ValueError("deep inside")

        inner()

    def raises_unpicklable(self) -> None:
        raise Unpicklable(threading.Lock())

    def raises_unloadable(self) -> None:
        raise Unloadable("one", "two")

    def raises_unshowable(self) -> None:
        raise Unshowable

    def returns_unpicklable(self) -> Any:
        return {"fine": 1, "model": Holder()}

    def sys_exit(self) -> None:
        sys.exit(3)

    def os_exit(self) -> None:
        os._exit(3)

    def segfault(self) -> None:
        ctypes.string_at(0)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), signum)
        time.sleep(60)

    def hold_gil(self, seconds: int) -> None:
        ctypes.PyDLL(None).sleep(seconds)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def stop_soon(self, num_bytes: int) -> np.ndarray:
        """Stop the process while it replies."""
        threading.Timer(0.0005, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        return np.zeros(num_bytes, np.uint8)

    def die_after(self, seconds: float) -> None:
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Unpicklable(Exception):
    def __init__(self, lock: Any) -> None:
        super().__init__("carries a lock")
        self.lock = lock


class Unloadable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")  # its args do not fit its constructor


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class BadStart:
    def __init__(self, how: str) -> None:
        if how == "raise":
            raise ValueError("the constructor failed")
        if how == "exit":
            print("last words", flush=True)
            os._exit(7)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(600)


class Reborn:
    """Counts in a file how often it was constructed."""

    def __init__(self, path: str) -> None:
        with open(path, "a") as file:
            file.write("x")
        self.number = os.path.getsize(path)

    def which(self) -> int:
        return self.number

    def die(self) -> None:
        os._exit(1)
