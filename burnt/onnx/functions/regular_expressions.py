"""Regular expressions of RE2, to whose syntax ONNX refers: a match takes time linear in the text.

Python's ``re`` backtracks, which takes exponential time for some patterns, and a pattern comes from a file.
"""

from __future__ import annotations

from typing import Any

from burnt.errors import UnsupportedError


def compile_pattern(pattern: str, longest: bool = False) -> Any:
    """Return a pattern of RE2, which has the methods of Python's, but no groups.

    With `longest` matches are the longest ones, as in POSIX, else those that Perl would find. A pattern that
    is invalid or too large, or a missing google-re2, is an UnsupportedError.

    >>> compiled = compile_pattern(r"(a+)+|\\d{2,3}")
    >>> [bool(compiled.fullmatch(text)) for text in ("a" * 1000, "a" * 1000 + "b", "12", "1")]
    [True, False, True, False]
    """
    try:
        import re2
    except ImportError as error:
        raise UnsupportedError(
            "regular expressions need google-re2, which is not installed",
            where=repr(pattern[:80]),
            hint="pip install 'burnt[onnx]'",
        ) from error
    options = re2.Options()
    options.log_errors = False  # to stderr
    options.never_capture = True
    options.longest_match = longest
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        found = error.args[0]
        raise UnsupportedError(
            "a regular expression is not supported",
            where=repr(pattern[:80]),
            expected="the syntax of RE2, in which there are no references to groups and no look-around",
            found=(found.decode(errors="replace") if isinstance(found, bytes) else str(found))[:80],
        ) from None
