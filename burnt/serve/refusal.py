"""Refusal: a request that is answered with an error instead of a prediction."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from burnt.errors import BurntError
from burnt.serve.wire import JSON, encode_error


class Refusal(Exception):
    """A request that is answered with an HTTP status and an error, or its message and parts."""

    def __init__(
        self,
        status: int,
        error: BurntError | str,
        headers: Mapping[str, str] | None = None,
        **parts: str | None,
    ) -> None:
        error = error if isinstance(error, BurntError) else BurntError(error, **parts)  # type: ignore[arg-type]  # origin= is not given
        super().__init__(error.what)
        self.status = status
        self.error = error
        self.headers = headers

    def response(self) -> Response:
        """Return the answer."""
        return Response(encode_error(self.error), self.status, self.headers, JSON)


def busy(what: str, hint: str = "send the request again later") -> Refusal:
    """Return the refusal of a request that may succeed a second later."""
    return Refusal(503, what, {"Retry-After": "1"}, hint=hint)
