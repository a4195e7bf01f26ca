"""`burnt check module:function key=value ...`: check training functions without training. Imports torch."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burnt.cli.output import Cell, Page, UsageError, print_json, report
from burnt.cli.train import configured
from burnt.errors import BurntError

if TYPE_CHECKING:
    from burnt.train.checks.first_batches import Findings


@dataclass
class _Result:
    target: str
    seconds: float
    findings: Findings | None
    error: Exception | None


def run(args: argparse.Namespace) -> int:
    """Check training functions and print what was checked."""
    functions = [(target, configured(target, overrides)) for target, overrides in _split(args.words)]
    page, results = Page(), []
    for target, function in functions:
        result = _check(target, function)
        results.append(result)
        if not args.json:
            _print(page, result)
    if args.json:
        print_json([_to_json(result) for result in results])
    return 1 if any(result.error is not None for result in results) else 0


def _split(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each target with the assignments that follow it."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
        else:
            raise UsageError(
                "the command line begins with a setting",
                expected="module:function key=value ...",
                found=word,
                hint="settings follow their function",
            )
    return found


def _check(target: str, function: Callable[[], object]) -> _Result:
    from burnt.train.checks.first_batches import dry_run

    start = time.perf_counter()
    findings = failure = None
    try:
        findings = dry_run(function)
    except Exception as error:
        if os.environ.get("BURNT_DEBUG") == "1":
            raise
        failure = error
    return _Result(target, time.perf_counter() - start, findings, failure)


def _print(page: Page, result: _Result) -> None:
    if result.findings is None:
        page.line(Cell(result.target, "bold"), "  ", Cell("failed", "red"), f", {result.seconds:.1f} s")
        sys.stdout.flush()
        if isinstance(result.error, BurntError):
            report(result.error)
        else:
            traceback.print_exception(result.error)
        return
    page.line(Cell(result.target, "bold"), "  ", Cell("ok", "green"), f", {result.seconds:.1f} s")
    rows: dict[str, str | Cell] = {f"  {name}": text for name, text in result.findings.checked.items()}
    page.pairs(rows)
    for warning in result.findings.warnings:
        page.line(Cell("  warning", "yellow"), f"  {warning}")


def _to_json(result: _Result) -> dict[str, Any]:
    found = result.findings
    return {
        "target": result.target,
        "ok": result.error is None,
        "seconds": result.seconds,
        "checked": {} if found is None else found.checked,
        "warnings": [] if found is None else found.warnings,
        "error": None if result.error is None else f"{type(result.error).__name__}: {result.error}",
    }
