"""`burnt serve`: serve runs and ONNX files over HTTP. Imports torch for runs only."""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from burnt.cli.output import Page, UsageError
from burnt.cli.run_model import load_run_model
from burnt.errors import clean
from burnt.monitor.format import size_text
from burnt.serve.packages import require_packages

if TYPE_CHECKING:
    from burnt.serve.servable import Servable
    from burnt.serve.service import Settings


_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RELOAD = 2.0  # seconds between looks for new versions
_KEY_VARIABLE = "BURNT_API_KEY"


def run(args: argparse.Namespace) -> int:
    """Serve models until SIGTERM or Ctrl-C, or write a folder for a container image."""
    require_packages()  # before what imports them
    from burnt.serve.process import listen, serve

    settings = _settings(args)
    sources = _named_sources(args.models)
    if (args.model or args.example) and len(sources) > 1:
        raise UsageError("--model and --example describe one run", found=f"{len(sources)} models")
    if args.container is not None:
        return _write_container(args, sources)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    for name in ("burnt.serve", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.INFO)
    with listen(args.host, args.port) as listener:
        models = {name: _load(source, args) for name, source in sources.items()}
        host, port = listener.getsockname()[:2]
        if settings.api_key is None and not host.startswith("127.") and host != "::1":
            print(f"warning: everybody who reaches {host} is served: set {_KEY_VARIABLE}", file=sys.stderr)
        for name, model in models.items():
            print(clean(f"{name}: {model.schema}" + (f", {model.version}" if model.version else "")))
        print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        serve(models, settings, listener, args.access_log)
    return 0


def _settings(args: argparse.Namespace) -> Settings:
    from burnt.serve.service import Settings

    key = os.environ.get(_KEY_VARIABLE)
    if key is not None and not key.strip():
        raise UsageError(f"{_KEY_VARIABLE} is empty", hint="unset it to serve everybody")
    return Settings(
        max_batch=args.max_batch,
        max_queue=args.queue,
        timeout=args.timeout,
        max_body=round(args.max_body * 1024**2),
        drain=args.drain,
        reload=_RELOAD if args.reload else None,
        api_key=None if key is None else key.strip(),
        allowed_hosts=tuple(args.allowed_host),
    )


def _named_sources(texts: Sequence[str]) -> Mapping[str, str]:
    """Return runs and files by the names under which they are served.

    >>> _named_sources(["runs/digits", "b=models/old.onnx"])
    {'digits': 'runs/digits', 'b': 'models/old.onnx'}
    """
    sources: dict[str, str] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if not equals or Path(text).exists():
            source = text
            path = Path(text).resolve()
            name = path.stem if _is_file(text) else path.name
        if not source or not _NAME.fullmatch(name):
            raise UsageError(
                "a model needs a name for its address",
                expected="NAME=RUN, with letters, digits and ._- in the name",
                found=repr(text),
            )
        if name in sources:
            raise UsageError(f"two models are named {name!r}", hint="name them: a=runs/one b=runs/two")
        sources[name] = source
    return sources


def _is_file(source: str) -> bool:
    return source.endswith(".onnx")


def _load(source: str, args: argparse.Namespace) -> Servable:
    if _is_file(source):
        from burnt.serve.onnx_model import OnnxModel

        return OnnxModel(source)
    from burnt.serve.run_model import RunModel  # imports torch

    loaded = load_run_model(args, source)
    return RunModel(
        loaded.model, loaded.signature, loaded.classes, loaded.folder, loaded.checkpoint, args.checkpoint,
        loaded.table, loaded.is_multi_label,
    )  # fmt: skip


def _write_container(args: argparse.Namespace, sources: Mapping[str, str]) -> int:
    from burnt.serve.container import write_container
    from burnt.serve.onnx_model import OnnxModel

    folder = Path(args.container)
    files = {}
    with tempfile.TemporaryDirectory() as exported:
        for name, source in sources.items():
            if _is_file(source):
                files[name] = OnnxModel(source).path  # raises what the image would
            else:
                from burnt import onnx

                loaded = load_run_model(args, source)
                files[name] = Path(exported) / f"{name}.onnx"
                onnx.export(loaded.model, loaded.signature, files[name], metadata=loaded.metadata)
        settings = ("max_batch", "queue", "timeout", "max_body", "drain")
        options = []
        for name in settings:
            options += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        for host in args.allowed_host:
            options += ["--allowed-host", host]
        command = write_container(folder, files, options, args.port or 8000)
    page = Page()
    for path in sorted(folder.iterdir()):
        size = sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
        page.line(f"{path}  {size_text(size)}")
    page.line(f"build it:   podman build -t {next(iter(files)).lower()} {folder}")
    page.line(f"or try it:  cd {folder} && {shlex.join(command)}")
    return 0
