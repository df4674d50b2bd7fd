"""Values to bytes and back, with array memory kept apart so that it is copied once and never pickled.

A value becomes a `Payload`: a pickle of its structure, the raw memory of its larger arrays, and the handles
(references to things the driver keeps) found inside it. Numpy arrays come back as read-only views of wherever the
engine put the memory; torch tensors come back private and writable.

Written by hand because neither pickle nor cloudpickle alone does it: pickle is fast but sends `__main__` by name,
cloudpickle sends it by value but costs ten times as much a message. So pickle is tried first and cloudpickle takes over
when the value needs it.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from raceway.errors import SerializationError

if TYPE_CHECKING:
    from raceway.engine._handles import Handle

INLINE_BYTES = 32 * 1024
"""Arrays up to this size ride inside the pickle: below it a copy is cheaper than a slot of shared memory."""

_PLAIN_KINDS = frozenset("biufcmMSU")  # dtypes whose `str` says all; others (records, bfloat16) are pickled whole


class Payload:
    """One encoded value. `keep` holds on to whatever must outlive it (handles, a lease on shared memory)."""

    __slots__ = ("body", "buffers", "handles", "keep")

    def __init__(
        self, body: bytes | memoryview, buffers: list[Any], handles: list[Handle] | None = None, keep: Any = None
    ):
        self.body = body
        self.buffers = buffers
        self.handles = handles
        self.keep = keep

    @property
    def size(self) -> int:
        """How many bytes it has."""
        size = len(self.body)
        for buffer in self.buffers:
            size += buffer.nbytes
        return size


def encode(value: object, name: str = "value") -> Payload:
    """Encode a value; raise `SerializationError` naming the part at fault if it cannot travel."""
    if type(value) in _ATOMS:
        return Payload(pickle.dumps(value, 5), [])
    encoder = _encoders.mine
    if encoder.busy:  # a __reduce__ that encodes something itself
        encoder = _Encoder()
    outer, _encoders.mine = _encoders.mine, encoder
    try:
        return encoder.encode(value)
    except SerializationError:
        raise
    except Exception as error:
        where, part, reason = _find_culprit(value, name, error)
        raise SerializationError(
            f"cannot send {where}: {_shown(part)} of type {type(part).__qualname__} cannot be pickled "
            f"({type(reason).__name__}: {reason}). Leave it out (with a __getstate__), or make it in the worker."
        ) from error
    finally:
        _encoders.mine = outer


def decode(payload: Payload) -> Any:
    """Rebuild the value. Numpy arrays are views of the payload's buffers; torch tensors are copies."""
    return pickle.loads(payload.body, buffers=payload.buffers)


def note_handle(handle: Handle) -> None:
    """Tell the encode now running that the value holds `handle`; called by its `__reduce__`."""
    if not _encoders.mine.busy:
        raise SerializationError(
            f"{handle!r} cannot be pickled by itself: it means something only inside the run that made it. "
            "Pass it to a call, or save the value it refers to."
        )
    _encoders.mine.handles.append(handle)


class _Encoder:
    """A pickler that is used again and again: making one costs as much as encoding a small message."""

    def __init__(self) -> None:
        self.busy = False
        self.handles: list[Handle] = []
        self.buffers: list[Any] = []
        self._out = io.BytesIO()
        self._pickler = pickle.Pickler(self._out, 5, buffer_callback=self._collect)
        self._pickler.dispatch_table = _TABLE

    def encode(self, value: object) -> Payload:
        if len(_TABLE) == 1:
            _learn_torch()
        self.busy = True
        try:
            try:
                self._pickler.dump(value)
                body = self._out.getvalue()
            except SerializationError:
                raise
            except Exception:
                body = self._cloud_dump(value)  # lambdas, local classes, or nothing can do it
            else:
                # A reference to the driver's __main__ by name would load as the worker's own __main__.
                if b"__main__" in body:
                    body = self._cloud_dump(value)
            return Payload(body, self.buffers, self.handles or None)
        finally:
            # Also after a failure: what was collected for it must not come before what belongs to the next value.
            if self.buffers:
                self.buffers = []
            if self.handles:
                self.handles = []
            self.busy = False
            self._pickler.clear_memo()
            self._out.seek(0)
            self._out.truncate()

    def _cloud_dump(self, value: object) -> bytes:
        import cloudpickle  # type: ignore[import-untyped]

        self.buffers, self.handles = [], []
        out = io.BytesIO()
        pickler = cloudpickle.Pickler(out, 5, buffer_callback=self._collect)
        pickler.dispatch_table = ChainMap(_TABLE, pickler.dispatch_table)
        pickler.dump(value)
        return out.getvalue()

    def _collect(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes <= INLINE_BYTES:
            return True  # in band
        self.buffers.append(raw)
        return False


# How arrays and tensors are taken apart and put together. The functions that rebuild them are registered as pickle
# extension codes: six bytes instead of a module and a name to look up for every array of every message.


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.hasobject:
        return array.__reduce_ex__(4)  # 4: its elements must be pickled, so there is no memory to set apart
    order = "C"
    if not array.flags.c_contiguous:
        if array.flags.f_contiguous:
            order, array = "F", array.T
        else:
            array = np.ascontiguousarray(array)
    kind = dtype.str if dtype.kind in _PLAIN_KINDS else dtype
    if array.nbytes <= INLINE_BYTES:
        return _build_array, (array.tobytes(), kind, array.shape, order)
    raw: Any = array.view(np.uint8) if dtype.kind in "mMV" else array  # kinds that the buffer protocol does not know
    return _build_array, (pickle.PickleBuffer(raw), kind, array.shape, order)


def _build_array(data: Any, dtype: Any, shape: tuple[int, ...], order: str) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data)
    array.flags.writeable = False
    return array if order == "C" else array.T


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_neg():
        return tensor.__reduce_ex__(5)
    plain = tensor.detach().resolve_conj()
    raw: Any = plain.contiguous().reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    parameter = type(tensor) is torch.nn.Parameter
    dtype = str(tensor.dtype).removeprefix("torch.")
    data = raw.tobytes() if raw.nbytes <= INLINE_BYTES else pickle.PickleBuffer(raw)
    return _build_tensor, (data, dtype, tuple(tensor.shape), tensor.requires_grad, parameter)


def _build_tensor(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    import torch

    kind = getattr(torch, dtype)
    raw = torch.empty(math.prod(shape) * kind.itemsize, dtype=torch.uint8)
    if raw.numel():
        raw.numpy()[:] = np.frombuffer(data, np.uint8)
    tensor = raw.view(kind).reshape(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


_EXTENSION = 0x52570001  # any number above the single-byte range that no other library has registered
for _number, _name in enumerate(("_build_array", "_build_tensor")):
    copyreg.add_extension(__name__, _name, _EXTENSION + _number)

_TABLE: dict[type, Callable[..., Any]] = {np.ndarray: _reduce_array}
_ATOMS = frozenset({int, float, bool, str, bytes, type(None)})


def _learn_torch() -> None:
    """Add tensors to the private dispatch table once the program has imported torch, never before."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        _TABLE.update({torch.Tensor: _reduce_tensor, torch.nn.Parameter: _reduce_tensor})


class _Encoders(threading.local):
    def __init__(self) -> None:
        self.mine = _Encoder()


_encoders = _Encoders()


def _find_culprit(value: object, path: str, error: BaseException, depth: int = 0) -> tuple[str, object, BaseException]:
    """Walk down to the smallest part that cannot be pickled and return its path, itself and why."""
    if depth < 8:
        for step, child in _children(value):
            try:
                _Encoder().encode(child)
            except Exception as reason:
                return _find_culprit(child, path + step, reason, depth + 1)
    return path, value, error


def _children(value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    found = [(f".{name}", child) for name, child in getattr(value, "__dict__", {}).items()]
    closure = getattr(value, "__closure__", None)
    if closure:
        names = value.__code__.co_freevars  # type: ignore[attr-defined]
        found += [(f" closure variable {name}", cell.cell_contents) for name, cell in zip(names, closure, strict=True)]
    return found


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__qualname__} whose repr fails>"
    return text if len(text) <= 80 else text[:77] + "..."
