"""The errors that burnt raises: what failed, where, what was expected and found, what to do.

::

    BurntError
    ├── DefinitionError    a Module or Config class is written wrongly      (also TypeError)
    ├── ArgumentError      a call has unknown or missing arguments          (also TypeError)
    ├── ConfigError        a configuration cannot be read or built          (also ValueError)
    ├── ShapeError         a shape does not fit                             (also ValueError)
    ├── DataError          a dataset, batcher or loader is unusable         (also ValueError)
    ├── DeviceError        there is no such device on this machine          (also RuntimeError)
    ├── OptimError         an optimizer or schedule cannot be used so       (also ValueError)
    ├── RecordError        a saved file is damaged or does not fit          (also ValueError)
    │   └── CheckpointError    the same of a run's checkpoint
    ├── QuantError         a model cannot be quantized as asked             (also ValueError)
    ├── SwapError          a model cannot be swapped or unswapped           (also ValueError)
    ├── RunError           a run folder cannot be used                      (also OSError)
    ├── TakenOverError     another process has resumed the run              (also SystemExit)
    ├── RankError          several processes cannot train together          (also RuntimeError)
    ├── QueryError         a search of runs cannot be read                  (also ValueError)
    ├── MetricError        a metric does not exist or cannot be computed    (also ValueError)
    ├── CompileError       generated code does not compile                  (also RuntimeError)
    ├── CacheError         a cache folder is unsafe or cannot be used       (also OSError)
    ├── NonFiniteError     the loss became NaN or infinite                  (also ArithmeticError)
    ├── InputError         invalid inputs of an op; always one of
    │   ├── InputRuntimeError      shapes, dtypes, devices do not fit       (also RuntimeError)
    │   ├── InputIndexError        an axis, label or index out of range     (also IndexError, RuntimeError,
    │   │                                                                    DataError)
    │   ├── InputDivisionError     an integer is divided by zero            (also ZeroDivisionError,
    │   │                                                                    RuntimeError)
    │   ├── InputValueError        an invalid number or option              (also ValueError)
    │   ├── InputTypeError         an argument of the wrong type            (also TypeError)
    │   └── InputUnsupportedError  an unsupported dtype                     (also NotImplementedError)
    ├── FusionError        a function does not fuse as required             (also RuntimeError)
    └── UnsupportedError   a feature that is not supported (yet)            (also NotImplementedError)

and one warning, `FusionWarning` (also RuntimeWarning): a fused function runs as the eager function.

Invalid inputs of layers, ops and fused functions raise an `InputError`, no matter what detects them: a check
before the call, a generated kernel, or torch. It also inherits from the class that torch raises for the
input, so that ``except IndexError`` around a torch model still works; from both if that depends on the op.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def clean(text: str) -> str:
    r"""Escape control sequences and unprintable characters, so that text of any file is safe to print.

    >>> print(clean("red \x1b[31m\n"))
    red \x1b[31m\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class BurntError(Exception):
    """Base of all errors of burnt.

    Args:
        what: what failed, in one sentence.
        where: the location: a layer's path, a file and key, a path inside a configuration.
        expected: what would have been right.
        found: what was found instead.
        origin: lines about the calls before the failure, nearest first.
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
        # A traceback prints it too, and names in it may come from another user's file.
        return "\n".join(clean(line) for text in lines for line in text.splitlines())

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments do not survive the default pickling that process pools and xdist use.
        return (_rebuild, (type(self), self.what, self.__dict__))


def _rebuild(cls: type[BurntError], what: str, state: dict[str, object]) -> BurntError:
    error = cls(what)
    error.__dict__.update(state)
    return error


class DefinitionError(BurntError, TypeError):
    """A Module or Config class is written wrongly."""


class ArgumentError(BurntError, TypeError):
    """A call has unknown or missing arguments."""


class ConfigError(BurntError, ValueError):
    """A configuration cannot be read or built."""


class ShapeError(BurntError, ValueError):
    """A shape does not fit."""


class DataError(BurntError, ValueError):
    """A dataset, batcher or loader is unusable, or cannot provide what was requested."""


class DeviceError(BurntError, RuntimeError):
    """There is no such device, or torch cannot use it on this machine."""


class OptimError(BurntError, ValueError):
    """An optimizer or schedule has invalid options, or does not fit the model or its gradients."""


class RecordError(BurntError, ValueError):
    """A saved file is damaged, or does not fit what it is loaded into."""


class CheckpointError(RecordError):
    """A checkpoint of a run is damaged, or does not fit the run."""


class QuantError(BurntError, ValueError):
    """A model cannot be quantized as asked."""


class SwapError(BurntError, ValueError):
    """A model cannot be swapped or unswapped."""


class RunError(BurntError, OSError):
    """A run folder cannot be used."""


class TakenOverError(BurntError, SystemExit):
    """Another process has resumed the run that this process was training.

    It is a `SystemExit`: a program that does not catch it ends with the exit code 4.
    """

    code: int = 4


class RankError(BurntError, RuntimeError):
    """Several processes cannot train one model together, or one of them has failed."""


class QueryError(BurntError, ValueError):
    """A search of runs cannot be read.

    `position` is the index of the character that the message points at.
    """

    position: int = 0


class MetricError(BurntError, ValueError):
    """A metric does not exist or cannot be computed."""


class InputError(BurntError):
    """An op has invalid inputs. The subclasses also inherit from the class that torch raises."""


class InputRuntimeError(InputError, RuntimeError):
    """Shapes, dtypes or devices do not fit each other."""


class InputIndexError(InputError, DataError, IndexError, RuntimeError):
    """An axis, label or index is out of range.

    torch raises IndexError or RuntimeError, depending on the op. The cause is mostly in the data.
    """


class InputDivisionError(InputError, ZeroDivisionError, RuntimeError):
    """An integer is divided by zero, for which torch raises RuntimeError."""


class InputValueError(InputError, ValueError):
    """A number or option is invalid for the op."""


class InputTypeError(InputError, TypeError):
    """An argument has the wrong type."""


class InputUnsupportedError(InputError, NotImplementedError):
    """A dtype is not supported."""


class FusionError(BurntError, RuntimeError):
    """A function does not fuse as required."""


class FusionWarning(RuntimeWarning):
    """A fused function runs as the eager function, without generated kernels; warned once for each reason."""


class CompileError(BurntError, RuntimeError):
    """Generated code does not compile, or cannot be loaded."""


class CacheError(BurntError, OSError):
    """A cache folder is unsafe or cannot be used."""


class NonFiniteError(BurntError, ArithmeticError):
    """The loss became NaN or infinite.

    `steps` are the first and the last step between which it happened, if the training knows them, `samples`
    the indices of the samples of its batch in the dataset, if the loader knows them.
    """

    steps: tuple[int, int] | None = None
    samples: list[int] | None = None


class UnsupportedError(BurntError, NotImplementedError):
    """A feature that is not supported, or not yet."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to a mistyped one, or None if none is close.

    >>> nearest("hiden", ["hidden", "dropout"])
    'hidden'
    """
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: object, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint that suggests the known name closest to a mistyped one; `otherwise` if none is close.

    >>> did_you_mean("hiden", ["hidden", "dropout"])
    "did you mean 'hidden'?"
    """
    close = nearest(str(name), known)
    return otherwise if close is None else f"did you mean {close!r}?"


def quantity(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1.

    >>> quantity(1, "epoch"), quantity(1200, "step"), quantity(0, "row")
    ('1 epoch', '1,200 steps', '0 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def range_hint(smallest: int, largest: int, size: int) -> str:
    """Suggest why indices from `smallest` to `largest` do not fit a table of `size` entries.

    >>> range_hint(1, 10, 10)
    'do they start at 1? Then subtract 1'
    """
    if smallest < 0:
        return "negative ones often mark padding or what is to be left out"
    if smallest > 0 and largest == size:
        return "do they start at 1? Then subtract 1"
    return f"what is indexed needs {largest + 1} entries, or the indices are wrong"
