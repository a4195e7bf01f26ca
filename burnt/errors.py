"""The errors that burnt raises: what failed, where, what was expected and found, what to do.

::

    BurntError
    ├── DefinitionError    a Module or Config class is written wrongly      (also TypeError)
    ├── ConfigError        a configuration cannot be read or built          (also ValueError)
    ├── ShapeError         a shape does not fit                             (also ValueError)
    ├── DataError          a dataset, batcher or loader cannot serve        (also ValueError)
    ├── OptimError         an optimizer or schedule is asked the impossible (also ValueError)
    ├── RecordError        a saved file is damaged or does not fit          (also ValueError)
    │   └── CheckpointError    the same of a run's checkpoint
    ├── SwapError          a model cannot be swapped, or put back           (also ValueError)
    ├── RunError           a run folder cannot be used                      (also OSError)
    ├── MetricError        a metric does not exist or cannot be computed    (also ValueError)
    ├── CompileError       generated code does not compile                  (also RuntimeError)
    ├── CacheError         a cache folder cannot be trusted or used         (also OSError)
    ├── NonFiniteError     the loss became NaN or infinite                  (also ArithmeticError)
    ├── InputError         tensors or numbers that cannot be computed with; always one of
    │   ├── InputRuntimeError      shapes, dtypes, devices do not fit       (also RuntimeError)
    │   ├── InputIndexError        an axis, label or index out of range     (also IndexError, RuntimeError,
    │   │                                                                    DataError)
    │   ├── InputDivisionError     an integer is divided by zero            (also ZeroDivisionError,
    │   │                                                                    RuntimeError)
    │   ├── InputValueError        a number or word that means nothing here (also ValueError)
    │   ├── InputTypeError         an argument of another type              (also TypeError)
    │   └── InputUnsupportedError  a dtype that is not computed with        (also NotImplementedError)
    ├── FusionError        a function does not fuse as it was asked to      (also RuntimeError)
    └── UnsupportedError   a thing that does not exist here, or not yet     (also NotImplementedError)

What layers, ops and fused functions are given and cannot take is an `InputError`, whoever noticed: a check
before the call, a generated kernel, or torch. It is also of the class that torch raises for the input, so
that ``except IndexError`` around a torch model still serves; where that depends on the op, it is of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "BurntError",
    "CacheError",
    "CheckpointError",
    "CompileError",
    "ConfigError",
    "DataError",
    "DefinitionError",
    "FusionError",
    "InputDivisionError",
    "InputError",
    "InputIndexError",
    "InputRuntimeError",
    "InputTypeError",
    "InputUnsupportedError",
    "InputValueError",
    "MetricError",
    "NonFiniteError",
    "OptimError",
    "RecordError",
    "RunError",
    "ShapeError",
    "SwapError",
    "UnsupportedError",
    "nearest",
    "range_hint",
]


class BurntError(Exception):
    """Base of all errors of burnt.

    Args:
        what: what failed, in one sentence.
        where: the place: a layer's path, a file and key, a path inside a configuration.
        expected: what would have been right.
        found: what was there instead.
        origin: lines that tell what led there, nearest first.
        hint: what to do.

    >>> print(BurntError("the file ends early", where="model.safetensors", expected="1024 bytes",
    ...                  found="1000 bytes", hint="copy it again"))
    the file ends early
      in        model.safetensors
      expected  1024 bytes
      found     1000 bytes
      hint      copy it again
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        found: object = None,
        origin: Iterable[str] = (),
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.origin = tuple(origin)
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        rows = [("in", self.where), ("expected", self.expected), ("found", self.found)]
        rows += [("from" if i == 0 else "", line) for i, line in enumerate(self.origin)]
        rows += [("hint", self.hint)]
        for name, value in rows:
            if value is not None:
                first, *rest = str(value).splitlines() or [""]
                lines.append(f"  {name:<8}  {first}")
                lines += [f"            {line}" for line in rest]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive the default pickling that process pools and xdist use.
        return (_rebuild, (type(self), self.what, self.__dict__))


def _rebuild(cls: type[BurntError], what: str, state: dict[str, object]) -> BurntError:
    error = cls(what)
    error.__dict__.update(state)
    return error


class DefinitionError(BurntError, TypeError):
    """A Module or Config class is written wrongly."""


class ConfigError(BurntError, ValueError):
    """A configuration cannot be read or built."""


class ShapeError(BurntError, ValueError):
    """A shape does not fit."""


class DataError(BurntError, ValueError):
    """A dataset, batcher or loader cannot serve what was asked."""


class OptimError(BurntError, ValueError):
    """An optimizer or schedule is asked the impossible."""


class RecordError(BurntError, ValueError):
    """A saved file is damaged, or does not fit what it is loaded into."""


class CheckpointError(RecordError):
    """A checkpoint of a run is damaged, or does not fit the run."""


class SwapError(BurntError, ValueError):
    """burnt's kernels cannot be put into a model, or taken out again."""


class RunError(BurntError, OSError):
    """A run folder cannot be used."""


class MetricError(BurntError, ValueError):
    """A metric does not exist or cannot be computed."""


class InputError(BurntError):
    """Tensors or numbers cannot be computed with. What is raised is also of the class that torch raises."""


class InputRuntimeError(InputError, RuntimeError):
    """Shapes, dtypes or devices do not fit each other."""


class InputIndexError(InputError, DataError, IndexError, RuntimeError):
    """An axis, label or index is out of range.

    torch raises IndexError or RuntimeError, depending on the op. Mostly the data is at fault.
    """


class InputDivisionError(InputError, ZeroDivisionError, RuntimeError):
    """An integer is divided by zero, for which torch raises RuntimeError."""


class InputValueError(InputError, ValueError):
    """A number or word means nothing to the op."""


class InputTypeError(InputError, TypeError):
    """An argument is of another type."""


class InputUnsupportedError(InputError, NotImplementedError):
    """A dtype is not computed with."""


class FusionError(BurntError, RuntimeError):
    """A function does not fuse as it was asked to."""


class CompileError(BurntError, RuntimeError):
    """Generated code does not compile, or cannot be loaded."""


class CacheError(BurntError, OSError):
    """A cache folder cannot be trusted or used."""


class NonFiniteError(BurntError, ArithmeticError):
    """The loss became NaN or infinite.

    `steps` are the first and the last step between which it did, where a training knows them.
    """

    steps: tuple[int, int] | None = None


class UnsupportedError(BurntError, NotImplementedError):
    """A thing that does not exist here, or not yet."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None when nothing is close.

    >>> nearest("hiden", ["hidden", "dropout"])
    'hidden'
    """
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def range_hint(smallest: int, largest: int, size: int) -> str:
    """Why indices from `smallest` to `largest` may not fit something of a size.

    >>> range_hint(1, 10, 10)
    'do they start at 1? Then subtract 1'
    """
    if smallest < 0:
        return "negative ones often mark padding or what is to be left out"
    if smallest > 0 and largest == size:
        return "do they start at 1? Then subtract 1"
    return f"what is indexed needs {largest + 1} entries, or the indices are wrong"
