"""Read arrays, numbers, text and containers of these out of a pickle, without running it.

A pickle names functions that unpickling calls. The few names that arrays need stand for classes of this
file here, which build the array from its bytes, and every other name is an error: nothing is imported.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from burnt.errors import DataError


def read_arrays(data: bytes, where: str) -> Any:
    """Read a pickle whose arrays are of bytes (uint8).

    Args:
        data: the pickle. Text of Python 2 is returned as bytes.
        where: the name of the file, for messages.

    Raises:
        DataError: the pickle is damaged, or has anything else in it.
    """
    try:
        return _plain(_Unpickler(io.BytesIO(data), encoding="bytes").load())
    except DataError as error:
        error.where = where
        raise
    except Exception as error:  # damaged pickles fail in many ways: UnpicklingError, EOFError, IndexError ...
        raise DataError(
            "a pickle is damaged", where=where, found=f"{type(error).__name__}: {error}"
        ) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _Array
        if module == "numpy" and name in ("ndarray", "dtype"):
            return {"ndarray": _Array, "dtype": _DType}[name]
        if (module, name) == ("_codecs", "encode"):  # bytes in pickles of Python 3 for Python 2
            return _encode
        raise DataError(
            "a pickle has more in it than arrays, and is not read",
            expected="arrays, numbers, text and containers of these",
            found=f"{module}.{name}",
        )


class _DType:
    def __init__(self, name: Any = b"", *_: Any) -> None:
        self.name = name.decode() if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        """Byte order and fields, which bytes have none of."""


class _Array:
    value: np.ndarray[Any, Any]

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if dtype.name not in ("u1", "|u1", "uint8"):
            raise DataError("an array in a pickle is not of bytes", expected="uint8", found=dtype.name)
        array = np.frombuffer(bytes(data), np.uint8)
        self.value = array.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: str, encoding: Any) -> bytes:
    return text.encode("latin1")


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
