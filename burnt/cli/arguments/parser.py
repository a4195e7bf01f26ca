"""What the parsers of all commands share."""

from __future__ import annotations

import argparse

RUN_HELP = "the run's folder, or its name in runs/"


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser] | None,
    name: str,
    text: str,
    examples: str,
    home: str | None = None,
) -> argparse.ArgumentParser:
    """Add the parser of a command; with None for `commands` create that of `burnt` itself.

    `home` is the module of `burnt.cli` whose `run` is the command, or ``"module:function"``. It is imported
    when the command runs.
    """
    if commands is None:
        new = argparse.ArgumentParser(name, description=text, epilog=examples)
    else:
        description = f"{text[0].upper()}{text[1:]}."
        new = commands.add_parser(name, help=text, description=description, epilog=examples)
    new.formatter_class = argparse.RawDescriptionHelpFormatter
    new.allow_abbrev = False
    if home is not None:
        new.set_defaults(home=home)
    return new


def add_repeated(parser: argparse.ArgumentParser, option: str, metavar: str, text: str) -> None:
    """Add an option that may be given several times; its value is a list."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=f"{text}; may be repeated")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option that prints JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a run."""
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option that lets another user's run execute its code."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="execute the code that the run names, whoever trained it; this is remembered",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a run's model."""
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="NAME",
        help="best, last, a step or a checkpoint's name; default: best",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="the model, its class, or a function that builds it, for runs that do not say it",
    )
    add_trust(parser)
