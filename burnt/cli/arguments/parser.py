"""How commands and their options are declared, and how the text of an option becomes its value."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from burnt.cli.output import UsageError

RUN_HELP = "the run's folder, or its name in runs/"


class Reader(NamedTuple):
    """How the text of an option is read: by a function that returns None for an invalid one."""

    read: Callable[[str], Any]
    expected: str


def whole(least: int, most: int | None = None) -> Reader:
    """Return the reader of whole numbers in a range."""

    def read(text: str) -> int | None:
        number = int(text)
        return number if least <= number <= (number if most is None else most) else None

    return Reader(read, f"at least {least}" if most is None else f"{least} to {most}")


def real(least: float = 0.0, most: float = math.inf, *, open: bool = True) -> Reader:
    """Return the reader of finite numbers in a range, to which its lower end belongs if it is not open."""

    def read(text: str) -> float | None:
        number = float(text)
        is_valid = least < number <= most or (number == least and not open)
        return number if is_valid and math.isfinite(number) else None

    if most < math.inf:
        return Reader(read, f"{least:g} to {most:g}")
    return Reader(read, f"a number above {least:g}" if open else f"{least:g} or more")


def pair(expected: str) -> Reader:
    """Return the reader of ``NAME=VALUE`` as a tuple; the name may contain a ``=``, and the value be empty.

    >>> pair("").read("a=b=c"), pair("").read("a=")
    (('a=b', 'c'), ('a', ''))
    """

    def read(text: str) -> tuple[str, str] | None:
        name, separator, value = text.rpartition("=")
        return (name, value) if separator and name else None

    return Reader(read, expected)


def _read_size(text: str) -> int | None:
    from burnt.memory import parse_bytes

    return parse_bytes(text)


def _read_steps(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
    first, last = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    return (first, last) if 1 <= first <= last else None


def _read_screen(text: str) -> tuple[int, int] | None:
    width, height = map(int, text.split("x"))
    return (width, height) if 10 <= width <= 1000 and 5 <= height <= 500 else None


SIZE = Reader(_read_size, "a size such as 64k, 500MB or 1GiB")
STEPS = Reader(_read_steps, "1234, or 1221-1240")
SCREEN = Reader(_read_screen, "120x40, from 10x5 to 1000x500")


class Parser(argparse.ArgumentParser):
    """A parser of `burnt` or of one of its commands."""

    def __init__(self, **settings: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **settings)

    def start_commands(self, dest: str) -> None:
        """Let `command` add commands, whose name the parsed arguments have as `dest`."""
        self._commands = self.add_subparsers(dest=dest, required=True, metavar="COMMAND")

    def command(self, name: str, text: str, examples: str, home: str | None = None) -> Parser:
        """Add the parser of a command.

        `home` is the module of `burnt.cli` whose `run` is the command, or ``"module:function"``. It is
        imported when the command runs.
        """
        description = f"{text[0].upper()}{text[1:]}."
        new = self._commands.add_parser(name, help=text, description=description, epilog=examples)
        if home is not None:
            new.set_defaults(home=home)
        return new

    def words(self, name: str, metavar: str, text: str | None = None, **settings: Any) -> None:
        """Add a positional argument."""
        self.add_argument(name, metavar=metavar, help=text, **settings)

    def flag(self, names: str, text: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names.split(), action="store_true", help=text)

    def option(
        self,
        names: str,
        metavar: str | None,
        text: str,
        reader: Reader | None = None,
        default: Any = None,
        **settings: Any,
    ) -> None:
        """Add an option with a value, and its default to its help.

        A text that `reader` cannot read is a `UsageError`.
        """
        if default is not None and settings.get("action") != "append":
            text += f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
        if reader is not None:
            settings["type"] = _reading(names.split()[-1], reader)
        self.add_argument(*names.split(), metavar=metavar, help=text, default=default, **settings)

    def repeated(
        self, name: str, metavar: str, text: str, reader: Reader | None = None, **settings: Any
    ) -> None:
        """Add an option that may be given several times; its value is a list."""
        self.option(name, metavar, f"{text}; may be repeated", reader, [], action="append", **settings)

    def choice(self, name: str, choices: Sequence[str], text: str, default: str | None = None) -> None:
        """Add an option with one of several values."""
        self.option(name, None, text, default=default, choices=choices)

    def run(self) -> None:
        """Add the argument that names a run."""
        self.words("run", "RUN", RUN_HELP)

    def json(self) -> None:
        """Add the option that prints JSON."""
        self.flag("--json", "print JSON")

    def trust(self) -> None:
        """Add the option that lets another user's run execute its code."""
        self.flag("--trust", "execute the code that the run names, whoever trained it; this is remembered")

    def model(self) -> None:
        """Add the options that choose a run's model."""
        self.option("--checkpoint", "NAME", "best, last, a step or a checkpoint's name", default="best")
        self.option(
            "--model",
            "MODULE:NAME",
            "the model, its class, or a function that builds it, for runs that do not say it",
        )
        self.trust()

    def example(self) -> None:
        """Add the option that describes a model's inputs."""
        text = "an input of the model, batch axis first, for runs that do not know it"
        self.repeated("--example", "SHAPE[:DTYPE[:VALUES]]", text)


def _reading(name: str, reader: Reader) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = reader.read(text)
        except ValueError:
            value = None
        if value is None:
            raise UsageError(f"{name} is invalid", expected=reader.expected, found=repr(text))
        return value

    return read
