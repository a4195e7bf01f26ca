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
    ├── RunError           a run folder cannot be used                      (also OSError)
    ├── MetricError        a metric does not exist or cannot be computed    (also ValueError)
    ├── CompileError       generated code does not compile                  (also RuntimeError)
    ├── CacheError         a cache folder cannot be trusted or used         (also OSError)
    ├── NonFiniteError     the loss became NaN or infinite                  (also ArithmeticError)
    ├── InputError         an op is given what it cannot take; always one of
    │   ├── InputRuntimeError  (also RuntimeError)      as torch raises for shapes, dtypes and devices
    │   ├── InputIndexError    (also IndexError)        an axis, label or index out of range
    │   ├── InputValueError    (also ValueError)        a number or word that means nothing here
    │   ├── InputTypeError     (also TypeError)         an argument of another type
    │   └── InputUnsupportedError  (also NotImplementedError)  a dtype that is not computed with
    ├── OutOfRangeError    an index or a target has no such place           (also IndexError, RuntimeError)
    ├── DivisionError      an integer is divided by zero                    (also RuntimeError)
    ├── FusionError        a function does not fuse as it was asked to      (also RuntimeError)
    └── UnsupportedError   a thing that does not exist here, or not yet     (also NotImplementedError)
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
    "DivisionError",
    "FusionError",
    "InputError",
    "InputIndexError",
    "InputRuntimeError",
    "InputTypeError",
    "InputUnsupportedError",
    "InputValueError",
    "MetricError",
    "NonFiniteError",
    "OptimError",
    "OutOfRangeError",
    "RecordError",
    "RunError",
    "ShapeError",
    "UnsupportedError",
    "nearest",
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


class RunError(BurntError, OSError):
    """A run folder cannot be used."""


class MetricError(BurntError, ValueError):
    """A metric does not exist or cannot be computed."""


class InputError(BurntError):
    """An op is given what it cannot take. What is raised is also of the class that torch raises there."""


class InputRuntimeError(InputError, RuntimeError):
    """Shapes, dtypes or devices do not fit each other."""


class InputIndexError(InputError, IndexError):
    """An axis, label or index is out of range."""


class InputValueError(InputError, ValueError):
    """A number or word means nothing to the op."""


class InputTypeError(InputError, TypeError):
    """An argument is of another type."""


class InputUnsupportedError(InputError, NotImplementedError):
    """A dtype is not computed with."""


class OutOfRangeError(BurntError, IndexError, RuntimeError):
    """An index or a target has no such place. torch raises either class, depending on the op."""


class DivisionError(BurntError, ZeroDivisionError, RuntimeError):
    """An integer is divided by zero. torch raises RuntimeError; this is also a ZeroDivisionError."""


class FusionError(BurntError, RuntimeError):
    """A function does not fuse as it was asked to."""


class CompileError(BurntError, RuntimeError):
    """Generated code does not compile, or cannot be loaded."""


class CacheError(BurntError, OSError):
    """A cache folder cannot be trusted or used."""


class NonFiniteError(BurntError, ArithmeticError):
    """The loss became NaN or infinite."""


class UnsupportedError(BurntError, NotImplementedError):
    """A thing that does not exist here, or not yet."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None when nothing is close.

    >>> nearest("hiden", ["hidden", "dropout"])
    'hidden'
    """
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
