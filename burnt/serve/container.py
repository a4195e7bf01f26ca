"""write_container: a folder from which a container image is built that serves ONNX files without torch.

The folder holds a Containerfile, the models, burnt's own files, and a requirements file that pins every
package to the version that is installed here. burnt is copied instead of being installed from an index, so
that the image runs the code that was tried, and without the packages that only training needs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import burnt
from burnt.errors import BurntError, UnsupportedError
from burnt.serve.onnx_model import OnnxModel

PACKAGES = (
    "httptools",
    "msgspec",
    "numpy",
    "onnxruntime",
    "packaging",
    "prometheus-client",
    "psutil",
    "rich",
    "safetensors",
    "starlette",
    "uvicorn",
    "uvloop",
)
"""What an image needs to serve ONNX files; what these need is found out."""


_MARK = "# Written by `burnt serve --container`."

_CONTAINERFILE = """\
{mark} Build and run it, here with podman, and docker takes the same words:
#
#     podman build -t {tag} .
#     podman run --rm -p {port}:{port} -e BURNT_API_KEY=... {tag}

FROM python:{python}-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /srv

COPY requirements.txt ./
RUN pip install --no-deps -r requirements.txt

COPY burnt ./burnt
COPY {models} ./
RUN python -m compileall -q burnt

# Not root: the server writes nothing.
USER 65534:65534

EXPOSE {port}
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/healthz')"]
CMD {command}
"""


def write_container(
    folder: str | os.PathLike[str], models: Mapping[str, Path], options: Sequence[str] = (), port: int = 8000
) -> list[str]:
    """Write the folder of an image that serves ONNX files.

    Args:
        folder: is made if it does not exist; what an earlier call wrote into it is replaced.
        models: the files by the names under which they are served; the first one is at ``/v1/predict`` too.
        options: further options of `burnt serve` for the image's command, such as ``["--max-batch", "64"]``.
        port: what the image listens on.

    Returns:
        The command that the image runs, which also works in the folder itself.

    Raises:
        UnsupportedError: a package that the image needs is not installed here, so its version is not known.
        RecordError: a file cannot be loaded, because its weights lie in files next to it, for example.
        BurntError: the folder cannot be written, or holds other files of the same names.
    """
    target = Path(folder)
    _check_folder(target)
    requirements = locked_requirements(PACKAGES)
    files = {name: f"{name}.onnx" for name in models}
    command = ["python", "-m", "burnt", "serve", *(f"{name}={file}" for name, file in files.items())]
    command += ["--host", "0.0.0.0", "--port", str(port), *options]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, source in models.items():
            if source.resolve() != (target / files[name]).resolve():
                shutil.copyfile(source, target / files[name])
                OnnxModel(target / files[name])  # raises if the file has its weights in others next to it
        _copy_burnt(target / "burnt")
        (target / "requirements.txt").write_text("\n".join(requirements) + "\n")
        (target / "Containerfile").write_text(
            _CONTAINERFILE.format(
                mark=_MARK,
                tag=next(iter(models)).lower(),
                port=port,
                python=f"{sys.version_info.major}.{sys.version_info.minor}",
                models=" ".join(files.values()),
                command=json.dumps(command),
            )
        )
        (target / ".dockerignore").write_text("**/__pycache__\n")
    except OSError as error:
        raise BurntError(
            "the folder of the image cannot be written", where=str(target), found=error.strerror or str(error)
        ) from error
    return command


def _check_folder(target: Path) -> None:
    """Raise if files would be replaced that are not of an image: ``--container .`` in a checkout of burnt."""
    names = ("Containerfile", "requirements.txt", "burnt", ".dockerignore")
    found = [name for name in names if (target / name).exists()]
    with contextlib.suppress(OSError):
        if (target / names[0]).read_text(errors="replace").startswith(_MARK):
            return
    if found:
        raise BurntError(
            "the folder holds files that are not of an image",
            where=str(target),
            found=", ".join(found),
            hint="choose an empty folder",
        )


def locked_requirements(names: Iterable[str]) -> list[str]:
    """Return ``name==version`` for packages and all that they need, as they are installed here, sorted.

    >>> [line.partition("==")[0] for line in locked_requirements(["uvicorn"])]
    ['click', 'h11', 'uvicorn']
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    wanted: list[tuple[str, Sequence[str]]] = [(name, ()) for name in names]
    while wanted:
        name, extras = wanted.pop()
        if canonicalize_name(name) in found and not extras:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise UnsupportedError(
                "a package that the image needs is not installed here",
                expected=name,
                hint="pip install burnt[onnx,serve]",
            ) from None
        found[canonicalize_name(name)] = package.version
        for line in package.requires or ():
            needed = Requirement(line)
            # A marker without an extra must hold for the empty one.
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                wanted.append((needed.name, sorted(needed.extras)))
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _copy_burnt(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(Path(burnt.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
