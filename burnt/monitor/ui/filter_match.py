"""Parse filter texts: words that must all occur, a regular expression, or a search of runs."""

from __future__ import annotations

import re
from collections.abc import Callable

from burnt.store.search import Query, RunFacts, parse_query

_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL


def matcher(text: str) -> Callable[[str], bool]:
    """Return a case-insensitive test of whether a text matches a filter.

    Args:
        text: words that must all occur, or ``/expression`` with an optional closing ``/``, in which ``^`` and
            ``$`` match at line ends.

    Raises:
        re.error: the regular expression is invalid.

    >>> matcher("cnn 3")("runs/cnn-03"), matcher("/cnn-[12]/")("runs/cnn-03"), matcher("")("all")
    (True, False, True)
    """
    if text.startswith("/"):
        pattern = re.compile(text.removeprefix("/").removesuffix("/"), _FLAGS)
        return lambda name: pattern.search(name) is not None
    words = text.lower().split()
    return lambda name: all(word in name.lower() for word in words)


def run_matcher(text: str) -> tuple[Callable[[RunFacts], bool], Query | None]:
    """Return a test of whether a run matches a filter, and the query if the filter is one.

    Args:
        text: a query of `burnt.store.search`, or ``/expression`` as in `matcher`, which is searched for
            in the run's names and state.

    Raises:
        re.error: the regular expression is invalid.
        QueryError: the query is invalid.
    """
    if text.startswith("/"):
        matches = matcher(text)
        return lambda facts: matches("\n".join((*facts.names[:2], facts.state))), None
    query = parse_query(text)
    return query.matches, query
