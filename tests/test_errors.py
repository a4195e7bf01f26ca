"""The error family: one form of message, and the built-in class that fits each."""

import pickle

import pytest

from burnt import errors
from burnt.errors import BurntError, ShapeError, nearest

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__
]
FAMILY = [kind for kind in KINDS if not issubclass(kind, Warning)]


def test_every_error_belongs_to_the_family_and_has_a_docstring() -> None:
    assert [kind for kind in KINDS if kind not in FAMILY] == [errors.FusionWarning]
    assert issubclass(errors.FusionWarning, RuntimeWarning)
    for kind in FAMILY:
        assert issubclass(kind, BurntError)
        assert kind.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.DefinitionError, TypeError),
        (errors.ArgumentError, TypeError),
        (errors.ConfigError, ValueError),
        (errors.DeviceError, RuntimeError),
        (errors.ShapeError, ValueError),
        (errors.DataError, ValueError),
        (errors.OptimError, ValueError),
        (errors.RecordError, ValueError),
        (errors.CheckpointError, errors.RecordError),
        (errors.RunError, OSError),
        (errors.MetricError, ValueError),
        (errors.QueryError, ValueError),
        (errors.CompileError, RuntimeError),
        (errors.CacheError, OSError),
        (errors.NonFiniteError, ArithmeticError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.InputRuntimeError, RuntimeError),
        (errors.InputIndexError, IndexError),
        (errors.InputIndexError, RuntimeError),
        (errors.InputIndexError, errors.DataError),
        (errors.InputDivisionError, ZeroDivisionError),
        (errors.InputDivisionError, RuntimeError),
        (errors.InputValueError, ValueError),
        (errors.InputTypeError, TypeError),
        (errors.InputUnsupportedError, NotImplementedError),
    ],
)
def test_old_except_clauses_catch_them(kind: type[BurntError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin, match="what"):
        raise kind("what")


def test_what_cannot_be_computed_with_is_one_family() -> None:
    assert [kind for kind in FAMILY if kind.__name__.startswith("Input")] == [
        kind for kind in FAMILY if issubclass(kind, errors.InputError)
    ]


def test_the_tree_in_the_docstring_is_complete() -> None:
    assert errors.__doc__ is not None
    for kind in FAMILY:
        assert kind.__name__ in errors.__doc__


def test_the_message_has_its_parts_in_order() -> None:
    error = ShapeError(
        "it broke", where="here", expected=(1, 2), found="two\nlines", origin=["a", "b"], hint="mend"
    )
    assert str(error).splitlines() == [
        "it broke",
        "  in        here",
        "  expected  (1, 2)",
        "  found     two",
        "            lines",
        "  from      a",
        "            b",
        "  hint      mend",
    ]  # fmt: skip


def test_parts_that_are_not_given_leave_no_line() -> None:
    assert str(BurntError("only this")) == "only this"
    assert str(BurntError("falsy values count", found=0)).endswith("found     0")


@pytest.mark.parametrize("kind", FAMILY)
def test_errors_survive_a_process_border(kind: type[BurntError]) -> None:
    error = kind("what", where="there", expected=3, hint="do")
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is kind
    assert str(twin) == str(error)


def test_nearest() -> None:
    assert nearest("acuracy", ["loss", "accuracy"]) == "accuracy"
    assert nearest("zzz", ["loss", "accuracy"]) is None
    assert nearest("x", []) is None
