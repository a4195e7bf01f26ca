"""`burnt import`: write an ONNX model as a Python package with its weights. Imports torch."""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import torch

from burnt.cli.output import Page, UsageError, check_target, print_json
from burnt.errors import quantity
from burnt.monitor.format import size_text


def run(args: argparse.Namespace) -> int:
    """Import a model, write it, and print what was written."""
    from burnt import onnx
    from burnt.onnx.importer.package import WEIGHTS, write_package

    folder, file = Path(args.out), Path(args.file)
    if not file.is_file():
        problem = "the file is a folder" if file.is_dir() else "there is no such file"
        raise UsageError(problem, expected="an .onnx file", found=args.file)
    check_target(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError("--out is a file", expected="a folder, which is created", found=args.out)
    taken = [name for name in ("__init__.py", WEIGHTS) if (folder / name).exists()]
    if taken and not args.force:
        raise UsageError(
            "the folder has such files already",
            where=args.out,
            found=", ".join(taken),
            hint="--force replaces them, with what you edited in them",
        )
    _check_package(folder)
    name = args.name or class_name(file.stem)
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError("--name is not a name of a class", found=name, hint=f"--name {class_name(name)}")
    module = onnx.load(file, max_constant_bytes=args.max_constant_bytes)
    python = write_package(module, folder, name=name, title=f"Imported from {file.name}.")
    weights = folder / WEIGHTS
    found = module.members.values()
    layers = Counter(type(one).__name__ for one in found if isinstance(one, torch.nn.Module))
    if args.json:
        print_json(
            {
                "files": [str(python), str(weights)],
                "bytes": os.path.getsize(weights),
                "class": name,
                "inputs": module.input_names,
                "outputs": module.output_names,
                "layers": dict(layers),
                "statements": len(module.program.statements),
            }
        )
        return 0
    page = Page()
    page.line(f"{python}: {name}, {quantity(len(module.program.statements), 'statement')}")
    page.line(f"{weights}: {size_text(os.path.getsize(weights))}")
    page.line(f"  inputs   {', '.join(module.input_names) or 'none'}")
    page.line(f"  outputs  {', '.join(module.output_names) or 'none'}")
    if layers:
        page.line(f"  layers   {', '.join(f'{count} {kind}' for kind, count in layers.most_common())}")
    return 0


def _check_package(folder: Path) -> None:
    """Raise a UsageError if `import NAME` cannot work for a folder, or hides a package that it imports."""
    name = folder.resolve().name
    if not name.isidentifier() or keyword.iskeyword(name):
        valid = re.sub(r"\W+", "_", name).strip("_").lower()
        valid = (
            valid if valid.isidentifier() and not keyword.iskeyword(valid) else f"model_{valid}".rstrip("_")
        )
        raise UsageError(
            "--out is not a name of a package",
            expected="letters, digits and _, as in `import bert`",
            found=name,
            hint=f"--out {shlex.quote(str(folder.parent / valid))}",
        )
    if name in ("burnt", "torch") or name in sys.stdlib_module_names:
        raise UsageError(
            "--out hides a package of this name",
            expected="a name of its own",
            found=name,
            hint=f"--out {shlex.quote(str(folder.parent / f'{name}_model'))}",
        )


def class_name(stem: str) -> str:
    """Return a name of a class for the name of a file.

    >>> class_name("bert-base_uncased"), class_name("7z")
    ('BertBaseUncased', 'Model7z')
    """
    words = re.findall(r"[A-Za-z0-9]+", stem)
    name = "".join(word[0].upper() + word[1:] for word in words) or "Model"
    return f"Model{name}" if name[0].isdigit() else name
