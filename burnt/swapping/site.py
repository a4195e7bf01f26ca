"""A site: one swapped module, the subclasses that it goes through, and its first call."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.codegen.verification import Verification
from burnt.errors import InputError
from burnt.kernels.interface.checks import all_strided
from burnt.swapping.kind import KINDS, Kind, is_swapped, original_class
from burnt.swapping.measure import Finding, ModelTiming, Source, context_of, device_of, measure, signature_of

State = Literal["waiting", "swapped", "part", "left"]
SECONDS_BETWEEN_LINES = 5.0
"""The least seconds of measuring between two lines of progress."""

_SITE = "_burnt_site"


@dataclass(eq=False)
class SwapPlan:
    """State that all sites of one `swap` share.

    `findings` are the measurements by signature. `earlier` are sites of an earlier swap by path, whose
    decisions are used for the same signature; they are ``"kept"`` or ``"given"``, and were measured at
    `earlier_at`. With `checks_errors`, their errors are checked again. `has_hooks` says that a site was
    called with saved-tensor hooks, such as checkpointing's, which may call it again in the backward. `whole`
    is the time of the whole model. `model`, `inputs` and `context` say what was measured, and `at` when:
    hashes of the model and of its first call's inputs, the machine and the versions.
    """

    mode: Literal["train", "infer"]
    findings: dict[str, Finding] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    earlier: dict[str, Site] = field(default_factory=dict)
    earlier_source: Literal["kept", "given"] = "kept"
    earlier_at: float = 0.0
    checks_errors: bool = False
    has_hooks: bool = False
    whole: ModelTiming | None = None
    model: str = ""
    inputs: str = ""
    context: dict[str, str] = field(default_factory=dict)
    at: float = 0.0
    interval: int | None = None  # of the verifications of each swapped site
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Spent on measuring sites."""
    seconds_shown: float = 0.0
    """What `seconds` was when progress was last shown."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be loaded on another machine, where the measurements do not hold.
        return vars(SwapPlan(self.mode))


@dataclass(eq=False)
class Site:
    """One module of the model, and what is known about it.

    `state` is ``"waiting"`` (for its first call), ``"swapped"``, ``"part"`` (of a swapped site), or
    ``"left"`` (not swapped); `why` says why it waits or was not swapped, or which site it is part of. `error`
    is the largest error against `reference`, relative to the largest number; `finding` is the measurement,
    of this site or of the site `like`, which has the same `signature`; `source` says when it was measured.
    `requested` sites are swapped whatever their speed.
    """

    path: str
    layer: str
    kind: Kind
    plan: SwapPlan
    state: State = "waiting"
    why: str | None = None
    error: float | None = None
    reference: str | None = None
    shape: str = ""
    finding: Finding | None = None
    like: str | None = None
    signature: str = ""
    source: Source | None = None
    requested: bool = False
    verification: Verification | None = None


def start(module: nn.Module, site: Site, *, skip_measuring: bool = False) -> None:
    """Set the subclass that measures at the first call or, with `skip_measuring`, calls burnt's kernels."""
    module.__dict__[_SITE] = site
    original: Any = type(module)
    set_class(module, _subclass_of(original, site.kind, skip_measuring))


def site_of(module: nn.Module) -> Site | None:
    """Return the site of a module; None if it is not one."""
    site: Site | None = module.__dict__.get(_SITE)
    return site


def class_with_kernels(module: nn.Module, kind: Kind) -> type[nn.Module]:
    """Return the class that only calls burnt's kernels, without measuring or verifying."""
    return _subclass_of(original_class(module), kind, True)


def restore_class(module: nn.Module) -> None:
    """Set a module's original class again, and remove its site."""
    set_class(module, original_class(module))
    module.__dict__.pop(_SITE, None)


def set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Make `module` an instance of `cls`."""
    # nn.Module.__setattr__ would first search parameters, buffers and submodules, which a class never is.
    object.__setattr__(module, "__class__", cls)


@functools.cache
def _subclass_of(original: Any, kind: Kind, skip_measuring: bool) -> type[nn.Module]:
    """Create a subclass that calls burnt's kernels; unless `skip_measuring`, it measures first."""
    theirs = getattr(original, kind.method)
    is_property = isinstance(theirs, property)
    eager = _property_as_method(theirs) if is_property else theirs
    build = _burnt_method if skip_measuring else _measuring_method
    call = build(kind, original, eager)
    method = property(lambda self: functools.partial(call, self), theirs.fset) if is_property else call
    members = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduce,
        "_burnt_original": original,
        "_burnt_key": (kind.name, skip_measuring),
        kind.method: method,
    }
    subclass: type[nn.Module] = type(original)(original.__name__, (original,), members)
    return subclass


def _property_as_method(theirs: property) -> Callable[..., Any]:
    """Turn a property that returns a function into a method that calls that function."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        assert theirs.fget is not None
        return theirs.fget(self)(*args, **kwargs)

    return call


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Implement ``__reduce_ex__`` of the subclasses: store the original class and the kind."""
    cls: Any = next(c for c in type(self).__mro__ if "_burnt_original" in vars(c))
    reduced = super(cls, self).__reduce_ex__(protocol)
    if type(self) is not cls or not isinstance(reduced, tuple) or reduced[1][:1] != (cls,):
        return reduced  # a base class or a subclass pickles in its own way
    return (_new_swapped_module, (vars(cls)["_burnt_original"], *vars(cls)["_burnt_key"]), *reduced[2:])


def _new_swapped_module(original: Any, kind: str, skip_measuring: bool) -> nn.Module:
    """Create an empty module of a swapped class, for `copy` and `pickle`."""
    cls = _subclass_of(original, KINDS[kind], skip_measuring)
    module: nn.Module = cls.__new__(cls)
    return module


@functools.cache
def _burnt_method(kind: Kind, original: type[Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Build the method that calls burnt's kernels, and the original for calls that they do not support."""
    ours, fallback_reason = kind.forward(original), kind.call_fallback_reason

    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _torch.is_recorded():
            return theirs(self, *args, **kwargs)
        if fallback_reason is not None and fallback_reason(self, *args, **kwargs) is not None:
            return theirs(self, *args, **kwargs)
        if not kind.is_measured:  # its errors are those of the model's own code
            return ours(self, *args, **kwargs)
        try:
            return ours(self, *args, **kwargs)
        except InputError:
            pass  # for inputs that burnt's ops refuse, such as mixed dtypes, the original computes or raises
        except RuntimeError as error:
            is_strided = all_strided(pytree.tree_leaves((args, kwargs)))
            if is_strided or _torch.is_raised_by_saved_tensor_hook(error):
                raise
        return theirs(self, *args, **kwargs)

    return forward


def _measuring_method(kind: Kind, original: Any, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Build the method that measures at its first call that computes."""

    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        site = None if _torch.is_recorded() else site_of(self)
        if site is not None and site.state == "waiting" and can_measure(self, args, kwargs):
            site.why = _modified_reason(self, kind)
            if site.why is None:
                measure_and_decide(self, args, kwargs)
            else:
                site.state = "left"
        # A caller may hold this function after the decision: it then runs what was decided. Looking the
        # method up by name instead could call this function again.
        if site is None or site.state != "swapped":
            return theirs(self, *args, **kwargs)
        if site.verification is not None and can_measure(self, args, kwargs) and site.verification.is_due():
            _verify(self, site, args, kwargs)
        return _burnt_method(kind, original, theirs)(self, *args, **kwargs)

    return forward


def _verify(module: nn.Module, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Compare the original and burnt's kernels for a call, with their gradients, on copies."""
    assert site.verification is not None
    classes = original_class(module), class_with_kernels(module, site.kind)
    found = measure(module, classes, site.kind, args, kwargs, site.plan.mode == "train", timed=False)
    if found.error is not None or found.why is not None:
        site.verification.report(found.error or 0.0, f"{site.layer} by {site.kind.name}", found.why)


def _modified_reason(module: nn.Module, kind: Kind) -> str | None:
    """Return why a waiting site can no longer be swapped, because user code has changed it; else None."""
    if not is_swapped(module):
        return "user code changed its class"
    return f"user code replaced its {kind.method}" if kind.method in vars(module) else None


def can_measure(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call runs eagerly on strided tensors, neither traced nor captured, so it can be measured."""
    if not _torch.is_plain_call() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    return (
        all_strided(tensors) and bool(tensors) and all(t.device.type != "meta" and t.numel() for t in tensors)
    )


def measure_and_decide(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Measure the original and burnt's kernels for a call, and give the module the better class."""
    site = site_of(module)
    assert site is not None
    kind, plan = site.kind, site.plan
    if kind.training_only and not module.training:
        return
    original = original_class(module)
    classes = original, original
    reason = None if kind.call_fallback_reason is None else kind.call_fallback_reason(module, *args, **kwargs)
    if reason is None:
        try:
            classes = original, _subclass_of(original, kind, True)
        except Exception as error:  # user code may raise any exception
            reason = f"cannot be swapped: {type(error).__name__}: {error}"
    if reason is None:
        site.signature, site.shape = signature_of(module, kind.name, args, kwargs)
        plan.has_hooks |= _torch.has_saved_tensor_hooks()
        site.finding = _finding_of(site, module, classes, args, kwargs)
        reason = site.finding.why
    site.why = reason
    if reason is not None:
        site.state = "left"
        restore_class(module)
        return
    site.state = "swapped"
    sites = {other.path: other for other in plan.sites}
    for path, layer in kind.absorbed(module):
        part = sites.get(f"{site.path}.{path}" if site.path else path)
        if part is not None and part.state != "swapped":
            part.state, part.why = "part", f"of {site.path or 'the model'}"
            if is_swapped(layer):
                restore_class(layer)
    if plan.interval is None:
        set_class(module, classes[1])
    else:
        site.verification = Verification(site.path or site.layer, plan.interval)


def _finding_of(
    site: Site, module: nn.Module, classes: tuple[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Finding:
    """Return a site's measurement: of an earlier swap, of a site with the same signature, or a new one."""
    plan, call = site.plan, (module, classes, site.kind, args, kwargs, site.plan.mode == "train")
    earlier = plan.earlier.get(site.path)
    if earlier is not None and earlier.signature == site.signature and _is_decided(earlier, plan):
        # Its reason may be another than the finding's: that the whole model was slower.
        assert earlier.finding is not None
        finding = replace(earlier.finding, why=earlier.why, path=site.path, source=plan.earlier_source)
        site.source, site.like = finding.source, earlier.like
        site.error, site.reference = earlier.error, earlier.reference
        plan.findings.setdefault(site.signature, finding)
        is_checked = plan.checks_errors
    elif site.signature in plan.findings:
        finding = plan.findings[site.signature]
        site.source, site.like = finding.source, finding.path
        is_checked = True
    else:
        if not plan.context:  # the model itself was not called
            plan.context = context_of(device_of(module, args, kwargs))
        began = time.perf_counter()
        plan.findings[site.signature] = finding = measure(*call)
        finding.path = site.path
        site.error, site.reference = finding.error, finding.reference
        site.source = "measured" if finding.timing is not None else None
        plan.seconds += time.perf_counter() - began
        if plan.seconds - plan.seconds_shown > SECONDS_BETWEEN_LINES:
            plan.seconds_shown = plan.seconds
            decided = sum(other.state != "waiting" for other in plan.sites) + 1
            show_progress(f"has measured {decided} of {len(plan.sites)} sites, for {plan.seconds:.0f} s")
        return finding
    if is_checked and finding.why is None:
        checked = measure(*call, timed=False)
        site.error, site.reference = checked.error, checked.reference
        if checked.why is not None:
            return Finding(why=checked.why)
    return finding


def _is_decided(earlier: Site, plan: SwapPlan) -> bool:
    """Whether a site's time decided for or against it, or was given as the decision.

    Of a kept one that was undecided, a process on a calmer machine may learn more.
    """
    timing = None if earlier.finding is None else earlier.finding.timing
    return timing is not None and (plan.earlier_source == "given" or timing.is_decided)


def show_progress(text: str) -> None:
    """Print a message about a swap that takes long to stderr."""
    print(f"burnt.swap {text}", file=sys.stderr, flush=True)  # noqa: T201
