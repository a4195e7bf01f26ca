"""`load_weights`: named tensors from any source into any torch.nn.Module."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from burnt._patterns import matches, near, warn_unmatched
from burnt.errors import RecordError, did_you_mean
from burnt.record.arranging.layout import WRAPPERS, Layout, without_wrappers
from burnt.record.arranging.quantized import (
    module_paths,
    quantized_hint,
    quantized_layers,
    quantized_note,
    renamed_layers,
    scale_paths,
    set_weight_dtypes,
    tied_layers,
    with_quantized_layers,
)
from burnt.record.layouts import burn
from burnt.record.record import Record, constants_of, static_fields_of, unwrapped
from burnt.record.report import Fit, LoadReport
from burnt.record.sources import Source, open_source
from burnt.record.stored import (
    MemoryTensor,
    StoredTensor,
    beside_statistics,
    check_plain,
    check_range,
    describe_indirect,
    memory_of,
)

_PARALLEL = "module."
"""The prefix of what DataParallel and DistributedDataParallel save."""


@dataclass(frozen=True)
class Renumber:
    """A step of `load_weights`' ``rename=``: makes indices in names contiguous, in ascending order.

    Args:
        pattern: a regular expression whose first group is the index. Names that are equal up to the group
            are numbered together.
        start: the first index.

    >>> Renumber(r"^fc\\.(\\d+)")(["fc.0.weight", "fc.2.weight", "fc.2.bias", "fc.10.weight"])
    ['fc.0.weight', 'fc.1.weight', 'fc.1.bias', 'fc.2.weight']
    """

    pattern: str
    start: int = 0

    def __call__(self, names: Sequence[str]) -> list[str]:
        """Return the new names, in the order of the old ones."""
        found = [re.search(self.pattern, name) for name in names]
        indices: dict[str, set[int]] = {}
        for name, match in zip(names, found, strict=True):
            if match:
                indices.setdefault(name[: match.start(1)], set()).add(int(match[1]))
        new = {
            head: {old: number for number, old in enumerate(sorted(numbers), self.start)}
            for head, numbers in indices.items()
        }
        return [
            name
            if match is None
            else f"{name[: match.start(1)]}{new[name[: match.start(1)]][int(match[1])]}{name[match.end(1) :]}"
            for name, match in zip(names, found, strict=True)
        ]


RenameStep: TypeAlias = tuple[str, str | Callable[[re.Match[str]], str]] | Renumber


def load_weights(
    model: torch.nn.Module,
    source: str | os.PathLike[str] | Mapping[str, Any] | Record,
    *,
    only: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    layout: Layout | str | None = None,
    rename: Sequence[RenameStep] = (),
    partial: bool = False,
    dtype: torch.dtype | Literal["stored"] | None = None,
) -> LoadReport:
    """Load weights from a file of PyTorch, Hugging Face, NumPy, Burn, llama.cpp or burnt into any module.

    Every tensor of the model must be in the source and fit, and the other way round, unless `only`, `skip`
    or `partial` say otherwise. A nested key (``state_dict``, ``model``, ...) and the prefixes of DDP and
    torch.compile are found, taken away before `rename` and named in the report.

    Args:
        model: any module. What is on the meta device gets memory on torch's default device.
        source: a safetensors file; a folder with one, or with shards and their index (a Hugging Face
            snapshot); a ``.pt``, ``.pth`` or ``.bin`` file of a state dict; a ``.npz`` file; a ``.bpk`` file
            of Burn's; a ``.gguf`` file; a state dict; a Record. Nothing but tensors is unpickled. Layers that
            are quantized in the source are replaced by quantized ones.
        only: patterns on paths in the model (``"encoder"``, ``"*.bias|head"``); nothing else is loaded,
            required or unexpected.
        skip: patterns on paths in the model that are left out in the same way.
        layout: how the program that wrote the source arranges the tensors: a `Layout`, ``"burn"``, or the
            name of one in the model's ``layouts``, such as ``"hugging_face"`` of those in `burnt.models`.
        rename: applied in order to each name of the source, before `layout`: pairs of a regular expression
            and what replaces it, as in `re.sub`, or `Renumber` for indices.
        partial: load what fits by name, and report what is missing or unexpected instead of raising.
        dtype: what loaded floating-point tensors have in the model afterwards; ``"stored"`` is what each has
            in the source, None what it has in the model. With float16 and bfloat16, modules with running
            statistics (BatchNorm) keep the model's dtype.

    Raises:
        RecordError: the source is damaged or unsafe, or does not fit, or a value is too large for the dtype;
            the model is unchanged.
        OSError: the source does not exist or cannot be read.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    >>> print(load_weights(model, {"net.0.weight": torch.ones(1, 2), "net.0.bias": torch.zeros(1)},
    ...                    rename=[(r"^net\\.", "")]))
    2 tensors loaded from a state dict
    """
    if not (dtype in (None, "stored") or (isinstance(dtype, torch.dtype) and dtype.is_floating_point)):
        raise RecordError(
            f"weights are not loaded in {dtype!r}",
            expected="a floating-point dtype such as torch.bfloat16, 'stored' or None",
            found=repr(dtype),
        )
    with ExitStack() as stack:
        opened = open_source(source, stack)
        tensors, notes = strip_prefixes(opened, unwrapped(model).state_dict())
        chosen = None if layout is None else find_layout(model, layout)
        incoming = _Incoming.of(opened, tensors, notes, chosen, rename)
        selection = Selection(only, skip)
        inner = unwrapped(model)
        layers = renamed_layers(opened.record.quantized, incoming.origins)
        tied = tied_layers(inner, layers, incoming.tensors)
        layers |= {path: layers[source] for path, source in tied.items()}
        aliases = {
            **opened.record.aliases,
            **{f"{path}.values": f"{source}.values" for path, source in tied.items()},
        }
        known = module_paths(inner) if partial else ()
        layers = {
            path: entry
            for path, entry in layers.items()
            if selection.takes(f"{path}.values")
            and not (
                partial and (path not in known or f"{tied.get(path, path)}.values" not in incoming.tensors)
            )
        }
        shapes = {name: stored.shape for name, stored in incoming.tensors.items()}
        with with_quantized_layers(inner, layers, opened.path, aliases, shapes):
            report = _load(model, incoming, selection, partial, dtype)
        if dtype is not None:
            set_weight_dtypes(inner, layers, None if dtype == "stored" else dtype)
        return dataclasses.replace(report, notes=(*report.notes, *quantized_note(layers.values())))


def find_layout(model: torch.nn.Module, layout: Layout | str) -> Layout:
    """Return a layout by its name: one of the model's own, or ``"burn"``."""
    if isinstance(layout, Layout):
        return layout
    inner = unwrapped(model)
    known = _layout_names(inner)
    if not isinstance(layout, str):
        raise RecordError(
            "layout= is not a layout",
            expected="a Layout, or one of " + ", ".join(map(repr, known)),
            found=repr(layout),
            hint="burnt.record.Layout([...]) takes a list of steps",
        )
    if layout not in known:
        raise RecordError(
            f"{type(model).__name__} has no layout {layout!r}",
            expected=", ".join(map(repr, known)),
            found=repr(layout),
            hint=did_you_mean(layout, known),
        )
    return burn(inner) if layout == "burn" else inner.layouts[layout]  # type: ignore[index,return-value]


def _layout_names(model: torch.nn.Module) -> list[str]:
    own = getattr(model, "layouts", {})
    return [*(own if isinstance(own, Mapping) else {}), "burn"]


def load_into(module: torch.nn.Module, record: Record, *, partial: bool = False) -> LoadReport:
    """Copy a record's tensors into any torch module, converted to the module's dtypes and devices.

    Args:
        module: the module to load into.
        record: the record to load.
        partial: report tensors that are missing on either side instead of raising an error.

    Raises:
        RecordError: tensors are missing, unexpected or of another shape; the module is unchanged.
    """
    return load_weights(module, record, partial=partial)


@dataclass(frozen=True)
class _Incoming:
    """The tensors of a source, under the names of the model.

    `tensors` go by the names that ``rename=`` and `layout` give them, `named` by those before the layout;
    `origins` are the names in the source, where they are others. `prefixed` says that the source has the
    layout's prefix.
    """

    source: Source
    tensors: dict[str, StoredTensor]
    named: dict[str, StoredTensor]
    origins: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    layout: Layout | None
    prefixed: bool

    @classmethod
    def of(
        cls,
        source: Source,
        tensors: dict[str, StoredTensor],
        notes: tuple[str, ...],
        layout: Layout | None,
        rename: Sequence[RenameStep],
    ) -> _Incoming:
        named, old, unused = rename_tensors(tensors, rename)
        try:
            arranged = (layout or Layout([])).arrange(named)
        except RecordError as error:
            if source.path is not None:
                error.where = f"{source.path}: {error.where}"
            raise
        origins = {name: tuple(old[part] for part in parts) for name, parts in arranged.origins.items()}
        changed = {name: origin for name, origin in origins.items() if origin != (name,)}
        return cls(source, arranged.tensors, named, changed, (*notes, *unused), layout, arranged.prefixed)

    def keeps(self, path: str) -> bool:
        """Whether the source need not have a tensor of the model."""
        return self.layout is not None and self.layout.keeps(path)

    def parts_of(self, path: str) -> tuple[list[str], list[str]]:
        """Return what a missing tensor would come from: the names that the source has, and those it lacks."""
        if self.layout is None:
            return [], []
        names = self.layout.names_of(path)
        present = [name for name in names if name in self.tensors]
        absent = [name for name in names if name not in self.tensors]
        if self.prefixed:
            absent = [self.layout.with_prefix(name) for name in absent]
        return present, [] if absent == [path] else absent


class Selection:
    """The patterns of ``only=`` and ``skip=`` on paths of tensors."""

    def __init__(self, only: str | Sequence[str] | None, skip: str | Sequence[str] | None) -> None:
        self.only = None if only is None else [only] if isinstance(only, str) else list(only)
        self.skip = [] if skip is None else [skip] if isinstance(skip, str) else list(skip)

    def takes(self, path: str) -> bool:
        """Whether the patterns select a path."""
        if any(matches(pattern, path) for pattern in self.skip):
            return False
        return self.only is None or any(matches(pattern, path) for pattern in self.only)

    def check(self, modules: list[str], paths: list[str]) -> None:
        """Refuse a pattern that matches no path of a tensor: it is misspelt."""
        for argument, patterns in (("only", self.only or []), ("skip", self.skip)):
            for pattern in patterns:
                if not any(matches(pattern, path) for path in paths):
                    raise RecordError(
                        f"the pattern {pattern!r} of {argument}= matches nothing",
                        expected="a pattern on paths of tensors, or the path of a module",
                        found=repr(pattern),
                        hint=near(pattern, [*modules, *paths]),
                    )
                warn_unmatched(pattern, paths, "tensor")


def strip_prefixes(source: Source, own: Iterable[str]) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Return tensors by name, aliases included, without prefixes of wrappers, and notes on these."""
    tensors = dict(source.tensors)
    tensors.update({alias: tensors[name] for alias, name in source.record.aliases.items()})
    notes = list(source.notes)
    wrappers = {name for path in tensors for name in path.split(".") if name in WRAPPERS}
    stripped = {without_wrappers(name): stored for name, stored in tensors.items()}
    if wrappers and len(stripped) == len(tensors):
        tensors = stripped
        notes += [f"without {name + '.'!r}, which {WRAPPERS[name]} adds" for name in sorted(wrappers)]
    if (
        tensors
        and all(name.startswith(_PARALLEL) for name in tensors)
        and not any(path.startswith(_PARALLEL) for path in own)
    ):
        tensors = {name.removeprefix(_PARALLEL): stored for name, stored in tensors.items()}
        notes.append(f"without {_PARALLEL!r}, which DistributedDataParallel adds")
    return tensors, tuple(notes)


def rename_tensors(
    tensors: dict[str, StoredTensor], rename: Sequence[RenameStep]
) -> tuple[dict[str, StoredTensor], dict[str, str], tuple[str, ...]]:
    """Return tensors by their names after the steps of ``rename=``, the old name of each, and notes.

    A step that matches nothing is a note, no error: one list may be for several files.
    """
    names = list(tensors)
    notes = []
    for step in rename:
        try:
            if isinstance(step, str):  # rename=("a", "b") for [("a", "b")]
                raise TypeError("text that is in no pair")
            pattern = re.compile(step.pattern if isinstance(step, Renumber) else step[0])
            if not any(map(pattern.search, names)):
                notes.append(f"{step!r} of rename= matches no name")
            if isinstance(step, Renumber):
                names = step(names)
            else:
                names = [pattern.sub(step[1], name) for name in names]
        except (re.error, IndexError, ValueError, TypeError) as error:
            raise RecordError(
                "a step of rename= cannot be applied",
                where=repr(step),
                expected='pairs (r"regular expression", "replacement"), or Renumber(r"layers\\.(\\d+)")',
                found=str(error),
            ) from None
    renamed: dict[str, StoredTensor] = {}
    first: dict[str, str] = {}
    for old, new in zip(tensors, names, strict=True):
        if new in renamed and renamed[new] is not tensors[old]:
            raise RecordError(
                "rename= gives two tensors one name", where=new, found=f"{first[new]!r} and {old!r}"
            )
        renamed[new] = tensors[old]
        first[new] = old
    return renamed, first, tuple(notes)


def _load(
    model: torch.nn.Module,
    incoming: _Incoming,
    selection: Selection,
    partial: bool,
    dtype: torch.dtype | Literal["stored"] | None,
) -> LoadReport:
    inner = unwrapped(model)
    source = incoming.source
    targets = _targets(inner)
    selection.check([path for path, _ in inner.named_modules() if path], [*targets, *incoming.tensors])
    chosen = {
        path: target
        for path, target in targets.items()
        if selection.takes(path) and (path in incoming.tensors or not incoming.keeps(path))
    }
    found = {name: stored for name, stored in incoming.tensors.items() if selection.takes(name)}
    loaded: dict[object, str] = {}  # the first path of each tensor
    for path, target in chosen.items():
        if path in found:
            loaded.setdefault(target.key, path)
    tied = {
        path: loaded[target.key]
        for path, target in chosen.items()
        if path not in found and target.key in loaded
    }
    parts = {path: incoming.parts_of(path) for path in chosen if path not in found}
    fit = Fit(
        {path: tuple(target.tensor.shape) for path, target in chosen.items()},
        {name: stored.shape for name, stored in found.items()},
        tied=tied,
        partial=partial,
        origins=incoming.origins,
        absent={path: absent for path, (_, absent) in parts.items() if absent},
        fragments={name for present, _ in parts.values() for name in present},
    )
    if not fit.is_good:
        raise _misfit(fit, model, incoming, partial)
    _check_values(fit.shared, chosen, found, source.path)
    read = {path: found[path] for path in loaded.values()}
    for path in read:
        hint = "load the weights before the model is quantized, sharded or distributed"
        check_plain(targets[path].tensor, f"the model: {path}", hint)
    wanted = _wanted_dtypes(
        {path: target.tensor.dtype for path, target in targets.items()},
        read,
        dtype,
        scale_paths(quantized_layers(inner)),
    )
    _check_ranges(read, wanted)

    cast = _read(inner, targets, read, wanted)
    return LoadReport(
        applied=tuple(fit.shared),
        missing=tuple(fit.missing),
        unexpected=tuple(fit.unexpected),
        cast=cast,
        static={
            path: values
            for path, values in static_differences(source.record, inner).items()
            if values[1] is not ABSENT
        },
        tied=tied,
        skipped=tuple(name for name in {**targets, **incoming.tensors} if not selection.takes(name)),
        meta=tuple(without_wrappers(path) for path, tensor in _all_tensors(inner) if tensor.is_meta),
        notes=incoming.notes,
        source=source.path or f"a {source.kind}",
        guesses=fit.guesses,
        absent={path: tuple(fit.absent[path]) for path in fit.missing if path in fit.absent},
    )


def _misfit(fit: Fit, model: torch.nn.Module, incoming: _Incoming, partial: bool) -> RecordError:
    source, name = incoming.source, type(model).__name__
    lines, count = fit.problems(source.kind)
    hints = ["nothing was changed"]
    lora_hint = _lora_hint(fit, source.kind)
    layout_hint = _layout_hint(fit, unwrapped(model), incoming)
    other_hints = [lora_hint, layout_hint, quantized_hint(fit.own, fit.found)]
    if any(other_hints):
        hints += [hint for hint in other_hints if hint]
    elif fit.rename_hint:
        hints.append(fit.rename_hint)
    elif 2 * len(fit.mismatched) > len(fit.shared) > 3:
        hints.append("build the model with the sizes of the file")
    elif fit.mismatched:
        hints.append(f"skip={'|'.join(fit.mismatched[:3])!r} leaves out tensors of another shape")
    if (fit.missing or fit.unexpected) and not (partial or any(other_hints)):
        hints.append("partial=True loads what fits by name")
    found = f"a {source.kind} of {len(source.tensors):,} tensors"
    total = len(fit.own.keys() | fit.found.keys())
    return RecordError(
        f"the {source.kind} does not fit {name}: {count:,} of {total:,} tensors",
        where=source.path,
        expected=f"the tensors of {name}",
        found=f"a record of {source.record.model}" if source.record.model else found,
        origin=[*lines, *incoming.notes],
        hint="; ".join(hints),
    )


def _layout_hint(fit: Fit, model: torch.nn.Module, incoming: _Incoming) -> str | None:
    """Return the ``layout=`` with which most tensors fit that do not fit as they are."""
    best, most = None, max(len(fit.shared) - len(fit.mismatched), len(fit.own) // 2)
    for name in _layout_names(model):
        layout = find_layout(model, name)
        try:
            arranged = layout.arrange(incoming.named).tensors
        except RecordError:  # sizes that do not fit
            continue
        fits = sum(
            arranged[path].shape == shape if path in arranged else layout.keeps(path)
            for path, shape in fit.own.items()
        )
        # A transposed Linear alone is no sign of Burn.
        if fits > most and (name != "burn" or fits == len(fit.own)):
            best, most = name, fits
    return None if best is None else f"layout={best!r} fits {most:,} of the model's {len(fit.own):,} tensors"


def _lora_hint(fit: Fit, kind: str) -> str | None:
    """Return what to do about LoRA adapters that only the source or only the model has."""
    if adapters := [path for path in fit.unexpected if ".lora_" in f".{path}"]:
        ranks = {fit.found[path][0] for path in adapters if path.removesuffix(".weight").endswith("_A")}
        rank = ranks.pop() if len(ranks) == 1 else "..."
        return (
            f"the {kind} has LoRA adapters: call burnt.nn.lora(model, rank={rank}, targets=...) as before "
            "its training, then load into that model, with burnt.load(run, model=model) for a run"
        )
    if any(".lora_" in f".{path}" for path in fit.missing):
        return f"the model has LoRA adapters: load a {kind} without them before burnt.nn.lora(model)"
    return None


def _read(
    module: torch.nn.Module,
    targets: Mapping[str, _Target],
    tensors: Mapping[str, StoredTensor],
    wanted_dtypes: Mapping[str, torch.dtype],
) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Read tensors into the module; return those that were converted, as (old, new) dtype."""
    by_key: dict[object, list[_Target]] = {}
    for target in targets.values():
        by_key.setdefault(target.key, []).append(target)
    cast: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    with torch.no_grad():
        for path, stored in tensors.items():
            own = targets[path].tensor
            wanted = wanted_dtypes[path]
            # An expanded tensor has one value for several elements, and cannot be written to.
            is_expanded = any(s == 0 and n > 1 for s, n in zip(own.stride(), own.shape, strict=True))
            if own.is_meta or own.dtype != wanted or is_expanded:
                # `empty_like` of a meta tensor would import sympy, which takes a second.
                stride = own.new_empty(own.shape, device="meta").stride() if is_expanded else own.stride()
                new = torch.empty_strided(own.shape, stride, dtype=wanted, device=_device(own))
                stored.read_into(new)
                _replace(module, by_key[targets[path].key], new)
            else:
                stored.read_into(own)
            if stored.dtype != wanted:
                cast[path] = (stored.dtype, wanted)
    return cast


ABSENT = object()
"""The value of a static field that a model lacks, in `static_differences`."""


def static_differences(record: Record, module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the static fields and constants that differ, by path: the record's value, the module's value."""
    differences = {}
    for saved, own, is_static in (
        (record.static, static_fields_of(module), True),
        (record.constants, constants_of(module), False),
    ):
        for path, fields in saved.items():
            mine = own.get(path, {})
            for name, value in fields.items():
                # Another version of a layer may lack a constant; another layer is recognized by its class.
                if (is_static or name in mine) and not equal_as_json(value, mine.get(name, ABSENT)):
                    differences[f"{path}.{name}" if path else name] = value, mine.get(name, ABSENT)
    return differences


@dataclass(frozen=True)
class _Target:
    """A tensor of the model's state dict."""

    path: str
    tensor: Tensor
    key: object


def _targets(module: torch.nn.Module) -> dict[str, _Target]:
    identities = {path: id(tensor) for path, tensor in _all_tensors(module)}
    targets: dict[str, _Target] = {}
    for path, value in module.state_dict().items():
        if torch.nn.parameter.is_lazy(value):
            raise RecordError(
                f"{type(module).__name__} has a lazy layer, which has no shapes before its first call",
                where=without_wrappers(path),
                hint="call the model once with an example, then load",
            )
        if isinstance(value, Tensor):
            is_plain = not value.is_meta and describe_indirect(value) is None
            memory = memory_of(value) if is_plain else None
            targets[without_wrappers(path)] = _Target(
                path, value.detach(), memory or identities.get(path, path)
            )
    return targets


def _all_tensors(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


def _check_values(
    shared: list[str], targets: Mapping[str, _Target], found: Mapping[str, StoredTensor], where: str | None
) -> None:
    """Check values before any is loaded: their checksums, and that tied tensors have the same."""
    first: dict[object, str] = {}
    verified: set[int] = set()  # several tensors of the model may come from one of the file
    for path in shared:
        for stored in found[path].sources:
            if id(stored) not in verified:
                stored.verify(path if where is None else f"{where}: {path}")
                verified.add(id(stored))
        other = first.setdefault(targets[path].key, path)
        if found[other] is not found[path] and not _equal_values(found[other], found[path]):
            raise RecordError(
                "tied tensors of the model have different values",
                where=where,
                expected=f"one tensor for {other} and {path}",
                found="two that differ",
                hint=f"skip={path!r} takes the value of the first",
            )


def _equal_values(one: StoredTensor, other: StoredTensor) -> bool:
    if isinstance(one, MemoryTensor) and isinstance(other, MemoryTensor) and one.shares_memory(other):
        return True
    values = []
    for stored in (one, other):
        values.append(torch.empty(stored.shape, dtype=stored.dtype, device="cpu"))
        stored.read_into(values[-1])
    # Bits, since NaN is not equal to itself.
    return one.dtype == other.dtype and torch.equal(
        values[0].view(-1).view(torch.uint8), values[1].view(-1).view(torch.uint8)
    )


def _wanted_dtypes(
    own: Mapping[str, torch.dtype],
    tensors: Mapping[str, StoredTensor],
    dtype: torch.dtype | Literal["stored"] | None,
    unchanged: Collection[str],
) -> dict[str, torch.dtype]:
    """Return the dtype that each loaded tensor will have in the model, whose tensors have the `own` ones."""
    kept = beside_statistics(own) if isinstance(dtype, torch.dtype) and dtype.itemsize < 4 else set()
    wanted = {}
    for path, stored in tensors.items():
        is_converted = own[path].is_floating_point and stored.dtype.is_floating_point and path not in kept
        if dtype is None or not is_converted or path in unchanged:
            wanted[path] = own[path]
        else:
            wanted[path] = stored.dtype if dtype == "stored" else dtype
    return wanted


def _check_ranges(tensors: Mapping[str, StoredTensor], wanted: Mapping[str, torch.dtype]) -> None:
    """Refuse values that would become infinite in the model's dtype, before any is loaded."""
    for dtype in {dtype for dtype in wanted.values() if dtype.is_floating_point}:
        converted = {path: stored for path, stored in tensors.items() if wanted[path] == dtype}
        check_range(
            converted, dtype, "dtype=torch.bfloat16 has the range of float32; skip='{}' leaves a tensor out"
        )
    for path, stored in tensors.items():
        if _loses_values(stored, wanted[path]):
            raise RecordError(
                f"values of a tensor do not exist in {wanted[path]}",
                where=path,
                expected=f"a tensor of {wanted[path]}, or its values in another dtype",
                found=str(stored.dtype),
                hint=f"skip={path!r} leaves it out",
            )


def _loses_values(stored: StoredTensor, dtype: torch.dtype) -> bool:
    """Whether integers would be cut or wrapped, or complex numbers lose a part: what torch does silently."""
    old = stored.dtype
    if old == dtype or dtype == torch.bool or dtype.is_complex:
        return False
    if dtype.is_floating_point and not old.is_complex:
        return False
    if old.is_complex:
        return True
    values = stored.read()
    return not torch.equal(values.to(dtype).to(old), values)


def _device(tensor: Tensor) -> torch.device:
    if not tensor.is_meta:
        return tensor.device
    default = torch.get_default_device()
    return torch.device("cpu") if default.type == "meta" else default


def _replace(module: torch.nn.Module, targets: Iterable[_Target], new: Tensor) -> None:
    """Make a tensor the value of a parameter or buffer, under all of its paths."""
    created: torch.nn.Parameter | None = None
    for target in targets:
        owner, _, name = target.path.rpartition(".")
        holder = module.get_submodule(owner)
        old = getattr(holder, name)
        if not isinstance(old, torch.nn.Parameter):
            setattr(holder, name, new)
        elif old.is_meta:
            if created is None:
                created = torch.nn.Parameter(new, requires_grad=old.requires_grad)
            setattr(holder, name, created)
        else:
            old.data = new


def equal_as_json(saved: Any, value: Any) -> bool:
    """Whether JSON makes of a value what was saved of another one."""
    # Compared as JSON, which turns tuples into lists and keys into strings.
    try:
        loaded = json.loads(json.dumps(value))
    except TypeError:
        return False
    # 0 equals 0.0, and as text, NaN equals itself.
    return bool(loaded == saved) or json.dumps(loaded, sort_keys=True) == json.dumps(saved, sort_keys=True)
