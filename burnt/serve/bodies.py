"""BodyReader: the bodies of requests, within limits of size, memory and time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from burnt.serve.refusal import Refusal, busy
from burnt.serve.service import Settings

_CLOSE = {"Connection": "close"}  # the rest of the body is not read


class BodyReader:
    """Reads bodies, and knows how many bytes of them are in memory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = 0

    @contextlib.asynccontextmanager
    async def read(self, request: Request, deadline: float) -> AsyncIterator[bytes]:
        """Context with the body of a request, which counts as held until the context ends.

        Refusal: it is too large, or late, or too many bytes of other bodies are held.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal():
            self._check_size(int(length))
        chunks: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    async for chunk in request.stream():
                        chunks.append(chunk)
                        size += len(chunk)
                        self._held += len(chunk)
                        self._check_size(size)
                        # A single body passes, however the limits are chosen.
                        if self._held > max(self._settings.max_bodies, size):
                            raise busy("the server holds as many bytes of requests as it may")
            except TimeoutError:
                expected = f"{self._settings.timeout:g} s"
                raise Refusal(408, "the body did not arrive in time", _CLOSE, expected=expected) from None
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self._held -= size

    def _check_size(self, size: int) -> None:
        if size > self._settings.max_body:
            expected = f"at most {self._settings.max_body:,} bytes"
            raise Refusal(413, "the body is too large", _CLOSE, expected=expected)
