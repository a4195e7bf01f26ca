"""serve: the server as a process: its socket, uvicorn, and what a signal does.

On SIGTERM and Ctrl-C the socket is closed at once, so that new connections are refused; requests that were
accepted are answered, then the process ends. A model that does not return in time is not waited for.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from burnt.errors import BurntError
from burnt.serve.packages import require_packages
from burnt.serve.servable import Servable
from burnt.serve.service import Service, Settings

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette


_log = logging.getLogger("burnt.serve")
# New connections that the kernel keeps while the server is busy. The event loop accepts all of them at once;
# without a free handle it drops them, health checks included: a quarter of the handles are for these.
_BACKLOG = 2048
_SEND_BUFFER = 2**17  # bytes


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a wrong address is reported before models are loaded."""
    where = f"{host}:{port}"
    if not 0 <= port < 2**16:  # getaddrinfo takes it modulo that
        raise BurntError("there is no such port", where=where, expected="0 to 65535")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)  # uvicorn sets the backlog
        # Of its connections: more in the kernel would be unlimited memory, and hide how fast clients read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BurntError(
                "the port is in use", where=where, hint="choose another one; 0 takes any that is free"
            ) from None
        raise BurntError(
            "the server cannot listen at this address", where=where, found=error.strerror or str(error)
        ) from None


def serve(
    models: Mapping[str, Servable], settings: Settings, listener: socket.socket, access_log: bool = False
) -> None:
    """Serve models until SIGTERM or Ctrl-C.

    If a model still runs when the time for accepted requests is over, the process ends with 1.

    Args:
        models: the models by name, at least one.
        settings: limits on requests and batches.
        listener: the socket from `listen`; it is closed at the end.
        access_log: whether to log every request to the logger ``uvicorn.access``.

    Raises:
        UnsupportedError: a package is missing.
        BurntError: a model does not run.
    """
    require_packages()
    import uvicorn

    from burnt.serve.app import create_app

    app = create_app(models, settings)
    service: Service = app.state.service
    server = uvicorn.Server(configuration(app, settings, access_log))

    def stop() -> None:
        server.should_exit = True

    service.on_failure = stop
    with listener, _handled_signals():
        server.run(sockets=[listener])
    _log.info("stopped: %d requests accepted, %d answered", service.accepted, service.answered)
    if service.device.is_alive():
        # The interpreter cannot end a thread, and torch aborts if it is still computing at the end.
        _log.error("a model still runs: ending without it")
        os._exit(1)
    if service.failure is not None:
        raise service.failure


def configuration(app: Starlette, settings: Settings, access_log: bool = False) -> uvicorn.Config:
    """Return uvicorn's options: mainly, to let `Connections` limit what clients can do."""
    import uvicorn

    from burnt.serve.connections import Connections

    return uvicorn.Config(
        app,
        http=cast(Any, Connections(settings, min(settings.max_connections, _max_handles() // 2))),
        backlog=min(_BACKLOG, _max_handles() // 4),
        log_config=None,
        access_log=access_log,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=max(round(settings.drain), 1),
    )


def _max_handles() -> int:
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@contextlib.contextmanager
def _handled_signals() -> Iterator[None]:
    """Context in which SIGTERM and Ctrl-C are uvicorn's: it raises them again after it has stopped."""
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
