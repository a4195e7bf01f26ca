"""Expect an error and the texts that its message has."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...], *texts: str, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Context like `pytest.raises`, for an error whose message has all of the texts, which are not regex."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    for text in texts:
        assert text in str(caught.value), f"{text!r} is not in the message:\n{caught.value}"
