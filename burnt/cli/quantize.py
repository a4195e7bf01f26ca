"""`burnt quantize RUN|FILE --scheme int8`: quantize a model and write it to a file. Imports torch."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnt.cli.evaluate import load_data
from burnt.cli.output import (
    Cell,
    Page,
    UsageError,
    check_target,
    closest_path,
    print_json,
    step_bar,
    usage_errors,
)
from burnt.cli.run_model import load_model, named_model, read_run
from burnt.cli.runs_select import run_folder
from burnt.errors import ConfigError, QuantError, RecordError, clean
from burnt.store.schema import DATABASE

if TYPE_CHECKING:
    import torch

    from burnt.quant import QuantReport
    from burnt.scheme import QuantScheme


_WEIGHTS = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".bpk", ".gguf"}


@dataclass(frozen=True)
class _Loaded:
    """A model to quantize: where it is from, and how calibration calls it."""

    model: torch.nn.Module
    name: str
    forward: Callable[[Any, Any], Any] | None = None


def run(args: argparse.Namespace) -> int:
    """Quantize a model, write it, and print the report, importing the code that a run or an option names."""
    import burnt
    from burnt.device import as_device
    from burnt.nn.quantized import Quantized
    from burnt.record import record_of

    overrides = {pattern: _scheme(scheme, "--override") for pattern, scheme in args.override}
    scheme = args.scheme if args.scheme == "auto" else _scheme(args.scheme, "--scheme")
    _check_data(args, [scheme, *overrides.values()])
    source = Path(args.source)
    if source.suffix in _WEIGHTS and not source.exists():
        raise _no_file(source)
    is_run = _is_run(args)
    folder = run_folder(args.source) if is_run else None
    out = Path(args.out or _default_name(folder or args.source, args.scheme))
    _check_out(out, args)
    device = as_device(args.device)
    loaded = _load_file(args) if folder is None else _load_run(folder, args)
    loaded.model.to(device)
    calibrate = None if args.data is None else _calibration(args, folder)
    given = {name: getattr(args, name) for name in ("weights", "activations", "smooth", "bound")}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if calibrate is not None and loaded.forward is not None:
        settings["forward"] = loaded.forward
    with step_bar() as progress:
        report = burnt.quantize(
            loaded.model,
            scheme,
            calibrate=calibrate,
            only=args.only or None,
            skip=args.skip or None,
            overrides=overrides or None,
            progress=progress,
            **settings,
        )
    if not report.quantized and scheme != "auto":  # which may find that no layer stays within the bound
        raise QuantError(
            "no layer was quantized, and no file written",
            where=loaded.name,
            expected="Linear, Conv or Embedding layers with floating-point weights",
            found="\n".join(line.strip() for line in report.text().splitlines()[1:]) or "no such layer",
            hint=f"start from the weights before they were quantized, to write {out}"
            if any(isinstance(layer, Quantized) for layer in loaded.model.modules())
            else None,
        )
    model = loaded.model
    record = model.into_record() if isinstance(model, burnt.Module) else record_of(model)
    record.save(out)
    if args.plot is not None:
        report.plot(args.plot)
    if args.json:
        print_json(
            {
                "source": loaded.name,
                "file": str(out),
                "bytes": out.stat().st_size,
                "scheme": args.scheme,
                "batches": None if calibrate is None else len(calibrate),
                **report.to_dict(),
            }
        )
    else:
        _print(Page(), loaded, out, report, calibrate)
    return 0


def _print(
    page: Page, loaded: _Loaded, out: Path, report: QuantReport, calibrate: Sequence[Any] | None
) -> None:
    from burnt.quant.report import decimal_size

    size = decimal_size(out.stat().st_size)
    page.line(Cell(loaded.name, "bold"), " -> ", Cell(str(out), "bold"), f", {size}")
    if calibrate is not None:
        count = len(calibrate)
        page.line(f"calibrated on {count} batch{'es' * (count != 1)}")
    # In a pipe, a line for each layer, for grep and awk.
    for line in report.text(page.width, every_layer=not page.is_styled).splitlines():
        page.line(line)


def _scheme(text: str, option: str) -> QuantScheme:
    from burnt.scheme import QuantScheme

    with usage_errors(ConfigError, where=option):
        return QuantScheme.parse(text)


def _check_data(args: argparse.Namespace, schemes: Sequence[str | QuantScheme]) -> None:
    """Check that there is a calibration set for what needs one."""
    needing = [
        scheme if isinstance(scheme, str) else scheme.name
        for scheme in schemes
        if isinstance(scheme, str) or scheme.activations == "static"
    ]
    if args.smooth is not None:
        needing.append("--smooth")
    if needing and args.data is None:
        raise UsageError(
            f"{needing[0]} needs calibration data",
            expected="--data MODULE:NAME, a loader or a dataset of typical inputs",
            found="no --data",
        )


def _no_file(path: Path) -> UsageError:
    there = [str(file) for file in path.parent.glob("*.*") if file.suffix in _WEIGHTS]
    guess = closest_path(str(path), there, "/")
    return UsageError(
        f"there is no file {str(path)!r}",
        expected="a file of weights, or a run's folder",
        hint=f"did you mean {guess}?" if guess else None,
    )


def _is_run(args: argparse.Namespace) -> bool:
    source = Path(args.source)
    return not source.is_file() and (
        args.model is None or not source.exists() or (source / DATABASE).is_file()
    )


def _default_name(source: str, scheme: str) -> str:
    """Return the file to write: in the current folder, named by the run or the file, and the scheme."""
    path = Path(source)
    stem = path.stem if path.is_file() else path.resolve().name
    return f"{stem}-{scheme}.safetensors"


def _check_out(out: Path, args: argparse.Namespace) -> None:
    """Check that the files can be written, before minutes are spent on what goes into them."""
    if out.suffix != ".safetensors":
        raise UsageError("--out is invalid", expected="a name that ends with .safetensors", found=str(out))
    if out.exists() and os.path.exists(args.source) and out.samefile(args.source):
        raise UsageError(
            "the file would replace its source", found=str(out), hint="--out another.safetensors"
        )
    if args.plot is not None and Path(args.plot).suffix.lower() != ".svg":
        raise UsageError("--plot is invalid", expected="a name that ends with .svg", found=args.plot)
    for path in (out, *([Path(args.plot)] if args.plot else [])):
        check_target(path, replace=args.force)


def _load_run(folder: str, args: argparse.Namespace) -> _Loaded:
    from burnt.train.after.prediction import call_with_batch
    from burnt.train.after.trained import TrainedAs

    files = read_run(folder)
    saved, model = load_model(files, args.checkpoint, args.model)
    trained = TrainedAs.of(model)
    forward = call_with_batch(model) if trained is not None and trained.sources else None
    return _Loaded(model, f"{folder}, {saved.path.name}", forward)


def _load_file(args: argparse.Namespace) -> _Loaded:
    """Load a file or folder of weights into the model that ``--model`` names."""
    import burnt
    from burnt.module import restore_fields
    from burnt.record import Record

    if args.model is None:
        config = Record.load(args.source).config_type if args.source.endswith(".safetensors") else None
        raise UsageError(
            "a file of weights does not say which code defines its model",
            where=args.source,
            expected="--model MODULE:NAME, its class or a function that builds it",
            found=f"a model that the Config {config} built" if config else "no Config",
        )
    value = named_model(args.model)
    is_class = isinstance(value, type)
    try:
        model = value.load(args.source) if is_class else value
    except RecordError as error:
        if error.hint is not None and "load_record(" in error.hint:  # what to do in Python
            error.hint = "--model MODULE:NAME of a function that builds the model"
        raise
    if not is_class:
        burnt.load_weights(model, args.source)
        if args.source.endswith((".safetensors", ".bpk")):
            for text in itertools.chain(*restore_fields(model, Record.load(args.source))):
                print(f"warning: a field of the model differs: {text}", file=sys.stderr)
    return _Loaded(model.eval(), args.source)


def _calibration(args: argparse.Namespace, folder: str | None) -> list[Any]:
    """Return the first batches of the calibration data: of the split ``train`` where there are several."""
    assert args.data is not None
    loaders = load_data(args.data, args.batch_size, folder)
    split = "train" if "train" in loaders else next(iter(loaders), None)
    if split is None:
        raise UsageError(f"{args.data} gives no batches", found="an empty dict")
    if len(loaders) > 1:
        others = ", ".join(name for name in loaders if name != split)
        print(clean(f"calibrating on {split}, not on {others}"), file=sys.stderr)
    batches: Iterator[Any] = loaders[split].epoch(0)
    return list(itertools.islice(batches, args.batches))
