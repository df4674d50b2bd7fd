"""Encode values as bytes and back. The memory of arrays is kept out of the pickle, so it is copied only once.

A value becomes a `Payload`: a pickle of its structure, the raw memory of its larger arrays, and the handles
(references to things in the driver) that it contains. Numpy arrays are decoded as read-only views of the memory in
which the engine put them; torch tensors are decoded as private, writable copies.

Written by hand because neither pickle nor cloudpickle is enough: pickle is fast but sends `__main__` by name,
cloudpickle sends it by value but costs ten times as much per message. So pickle is tried first, and cloudpickle is used
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
    from raceway.engine._reference_counts import Handle

INLINE_BYTES = 32 * 1024
"""Arrays up to this size are part of the pickle: a copy is cheaper than a block of shared memory."""

_PLAIN_KINDS = frozenset("biufcmMSU")  # dtypes defined by their `str`; others (records, bfloat16) are pickled


class Payload:
    """An encoded value.

    Attributes:
        body: the pickle.
        buffers: the memory of its larger arrays.
        handles: the handles it contains, or None.
        keep: anything that must stay alive as long as the payload.
    """

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
        """The number of bytes in the body and the buffers."""
        size = len(self.body)
        for buffer in self.buffers:
            size += buffer.nbytes
        return size


def encode(value: object, name: str = "value") -> Payload:
    """Encode a value.

    Args:
        value: the value.
        name: how errors refer to it.

    Raises:
        SerializationError: it cannot be pickled; the message names the part at fault.
    """
    if type(value) in _ATOMIC_TYPES:
        return Payload(pickle.dumps(value, 5), [])
    encoder = _encoders.current
    if encoder.busy:  # called by a __reduce__ that encodes something itself
        encoder = _Encoder()
    outer, _encoders.current = _encoders.current, encoder
    try:
        return encoder.encode(value)
    except SerializationError:
        raise
    except Exception as error:
        path, part, reason = _find_unpicklable(value, name, error)
        raise SerializationError(
            f"cannot send {path}: {_truncated_repr(part)} of type {type(part).__qualname__} cannot be pickled "
            f"({type(reason).__name__}: {reason}). Leave it out (with a __getstate__), or create it in the worker."
        ) from error
    finally:
        _encoders.current = outer


def decode(payload: Payload) -> Any:
    """Return the value. Numpy arrays are views of the payload's buffers; torch tensors are copies."""
    return pickle.loads(payload.body, buffers=payload.buffers)


def register_handle(handle: Handle) -> None:
    """Add a handle to the payload that is being encoded; called by the handle's `__reduce__`."""
    if not _encoders.current.busy:
        raise SerializationError(
            f"{handle!r} cannot be pickled: it is valid only within the run that created it. "
            "Pass it to a call, or save the value it refers to."
        )
    _encoders.current.handles.append(handle)


class _Encoder:
    """A pickler that is reused: creating one costs as much as encoding a small message."""

    def __init__(self) -> None:
        self.busy = False
        self.handles: list[Handle] = []
        self.buffers: list[Any] = []
        self._out = io.BytesIO()
        self._pickler = pickle.Pickler(self._out, 5, buffer_callback=self._add_buffer)
        self._pickler.dispatch_table = _DISPATCH_TABLE

    def encode(self, value: object) -> Payload:
        if len(_DISPATCH_TABLE) == 1:
            _register_torch()
        self.busy = True
        try:
            try:
                self._pickler.dump(value)
                body = self._out.getvalue()
            except SerializationError:
                raise
            except Exception:
                body = self._cloudpickle(value)  # lambdas and local classes, unless nothing can pickle it
            else:
                # In the worker, a reference to `__main__` by name would be to the worker's own `__main__`.
                if b"__main__" in body:
                    body = self._cloudpickle(value)
            return Payload(body, self.buffers, self.handles or None)
        finally:
            # Also after a failure: the next payload must not contain what was collected for this one.
            if self.buffers:
                self.buffers = []
            if self.handles:
                self.handles = []
            self.busy = False
            self._pickler.clear_memo()
            self._out.seek(0)
            self._out.truncate()

    def _cloudpickle(self, value: object) -> bytes:
        import cloudpickle  # type: ignore[import-untyped]

        self.buffers, self.handles = [], []
        out = io.BytesIO()
        pickler = cloudpickle.Pickler(out, 5, buffer_callback=self._add_buffer)
        pickler.dispatch_table = ChainMap(_DISPATCH_TABLE, pickler.dispatch_table)
        pickler.dump(value)
        return out.getvalue()

    def _add_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a buffer out of the pickle and return False, or return True if it is small."""
        raw = buffer.raw()
        if raw.nbytes <= INLINE_BYTES:
            return True
        self.buffers.append(raw)
        return False


# Reducing and rebuilding arrays and tensors. The functions that rebuild them are registered as pickle extension codes:
# six bytes, instead of a module and a name to look up for every array of every message.


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.hasobject:
        return array.__reduce_ex__(4)  # protocol 4, as there is no buffer: its elements must be pickled
    order = "C"
    if not array.flags.c_contiguous:
        if array.flags.f_contiguous:
            order, array = "F", array.T
        else:
            array = np.ascontiguousarray(array)
    kind = dtype.str if dtype.kind in _PLAIN_KINDS else dtype
    if array.nbytes <= INLINE_BYTES:
        return _build_array, (array.tobytes(), kind, array.shape, order)
    raw: Any = array.view(np.uint8) if dtype.kind in "mMV" else array  # kinds that the buffer protocol does not support
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

_DISPATCH_TABLE: dict[type, Callable[..., Any]] = {np.ndarray: _reduce_array}
_ATOMIC_TYPES = frozenset({int, float, bool, str, bytes, type(None)})


def _register_torch() -> None:
    """Add tensors to the dispatch table once the program has imported torch; never import it here."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        _DISPATCH_TABLE.update({torch.Tensor: _reduce_tensor, torch.nn.Parameter: _reduce_tensor})


class _Encoders(threading.local):
    def __init__(self) -> None:
        self.current = _Encoder()


_encoders = _Encoders()


def _find_unpicklable(
    value: object, path: str, error: BaseException, depth: int = 0
) -> tuple[str, object, BaseException]:
    """Descend to the smallest part that cannot be pickled; return its path, the part, and the error it raises."""
    if depth < 8:
        for step, child in _children(value):
            try:
                _Encoder().encode(child)
            except Exception as reason:
                return _find_unpicklable(child, path + step, reason, depth + 1)
    return path, value, error


def _children(value: object) -> list[tuple[str, object]]:
    """Return the parts of a value, each with the suffix that it adds to the path of the value."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    children = [(f".{name}", child) for name, child in getattr(value, "__dict__", {}).items()]
    closure = getattr(value, "__closure__", None)
    if closure:
        names = value.__code__.co_freevars  # type: ignore[attr-defined]
        cells = zip(names, closure, strict=True)
        children += [(f" closure variable {name}", cell.cell_contents) for name, cell in cells]
    return children


def _truncated_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__qualname__} whose repr fails>"
    return text if len(text) <= 80 else text[:77] + "..."
