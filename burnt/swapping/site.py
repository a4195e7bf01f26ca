"""A place that is swapped: the classes it goes through, and its first call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from burnt import _torch
from burnt.errors import InputError
from burnt.kernels.interface.checks import all_strided
from burnt.swapping.kind import KINDS, Kind, is_swapped, original_class
from burnt.swapping.measure import Finding, checked, measured, signature_of

__all__ = ["Site", "SwapPlan", "restore_class", "site_in_holder", "site_of", "start"]

State = Literal["waiting", "swapped", "part", "left"]


_MOST_MADE = 8  # places that a method makes
_SITE, _MADE = "_burnt_site", "_burnt_made"


@dataclass(eq=False)
class SwapPlan:
    """What all places of one `swap` share: the mode, what was measured, by signature, and the places."""

    mode: Literal["train", "infer"]
    findings: dict[Any, Finding] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        # A copy may come to another machine.
        return {"mode": self.mode, "findings": {}, "sites": []}


@dataclass(eq=False)
class Site:
    """What is known of a place.

    `state` is ``"waiting"`` for its first call, ``"swapped"``, ``"part"`` of a place that is swapped, or
    ``"left"``; `why` says why it waits or was left, or of what it is part. `error` is the largest one against
    `reference`, relative to the largest number; `finding` is what was measured, here or at the place `like`,
    with the same shapes.
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


def start(module: nn.Module, site: Site, *, settled: bool = False) -> None:
    """Give a module the class that waits for its first call; `settled`: that calls burnt's, unmeasured."""
    module.__dict__[_SITE] = site
    original: Any = type(module)
    set_class(module, _class_of(original, site.kind, settled))


_holder: ContextVar[nn.Module | None] = ContextVar("holder", default=None)


def site_in_holder(made: nn.Module, key: Any) -> nn.Module:
    """What a method has made while it runs, as a place of the module that it belongs to.

    Args:
        made: what was made.
        key: what it has in common with what the method makes at other calls.

    Returns:
        The one that was made first, which knows what was measured.
    """
    holder = _holder.get()
    site = None if holder is None else site_of(holder)
    if holder is None or site is None or site.kind.makes is None:
        return made
    kept: dict[Any, nn.Module] = holder.__dict__.setdefault(_MADE, {})
    if key not in kept:
        if len(kept) >= _MOST_MADE:
            return made  # a setting that changes from call to call
        layer = type(made).__name__
        path = f"{site.path}.{layer}" if site.path else layer
        inner = Site(path, layer, KINDS[site.kind.makes], site.plan)
        site.plan.sites.append(inner)
        start(made, inner)
        kept[key] = made
    kept[key].training = holder.training
    return kept[key]


def site_of(module: nn.Module) -> Site | None:
    """What a module that is swapped, or waits to be, knows of itself."""
    found: Site | None = module.__dict__.get(_SITE)
    return found


def restore_class(module: nn.Module) -> None:
    """Give a module its own class back."""
    set_class(module, original_class(module))
    module.__dict__.pop(_SITE, None)
    module.__dict__.pop(_MADE, None)


def set_class(module: nn.Module, cls: type[nn.Module]) -> None:
    # What nn.Module's own setter would look up first is of no use for a class.
    object.__setattr__(module, "__class__", cls)


@functools.cache
def _class_of(original: Any, kind: Kind, settled: bool) -> type[nn.Module]:
    """A class like the original one, which waits for its first call or calls burnt's kernels."""
    theirs = getattr(original, kind.method)
    of_property = isinstance(theirs, property)
    plain = _through(theirs) if of_property else theirs
    if kind.makes is not None:
        call = _holding(kind, original, plain)
    else:
        call = _settled(kind, original, plain) if settled else _waiting(kind, original, plain)
    method = property(lambda self: functools.partial(call, self), theirs.fset) if of_property else call
    members = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduced,
        "_burnt_original": original,
        "_burnt_key": (kind.name, settled),
        kind.method: method,
    }
    made: type[nn.Module] = type(original)(original.__name__, (original,), members)
    return made


def _through(theirs: property) -> Callable[..., Any]:
    """A property that gives a function, as a method that calls it."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        assert theirs.fget is not None
        return theirs.fget(self)(*args, **kwargs)

    return call


def _reduced(self: nn.Module, protocol: Any) -> Any:
    cls: Any = next(c for c in type(self).__mro__ if "_burnt_original" in vars(c))
    made = super(cls, self).__reduce_ex__(protocol)
    if type(self) is not cls or not isinstance(made, tuple) or made[1][:1] != (cls,):
        return made  # a class above or below has a way of its own
    return (_remade, (vars(cls)["_burnt_original"], *vars(cls)["_burnt_key"]), *made[2:])


def _remade(original: Any, kind: str, settled: bool) -> nn.Module:
    """An empty module of a class made here, for `copy` and `pickle`."""
    cls = _class_of(original, KINDS[kind], settled)
    made: nn.Module = cls.__new__(cls)
    return made


@functools.cache
def _settled(kind: Kind, original: type[Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours, why_not = kind.forward(original), kind.why_not_call

    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return theirs(self, *args, **kwargs)
        if why_not is not None and why_not(self, *args, **kwargs) is not None:
            return theirs(self, *args, **kwargs)
        try:
            return ours(self, *args, **kwargs)
        except InputError:
            # What burnt's ops refuse, mixed dtypes say, is the original's to compute or to refuse.
            return theirs(self, *args, **kwargs)
        except RuntimeError:
            if all_strided(pytree.tree_leaves((args, kwargs))):
                raise
            return theirs(self, *args, **kwargs)

    return forward


def _holding(kind: Kind, original: type[Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours = kind.forward(original)

    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return theirs(self, *args, **kwargs)
        token = _holder.set(self)
        try:
            return ours(self, *args, **kwargs)
        finally:
            _holder.reset(token)

    return forward


def _waiting(kind: Kind, original: Any, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        site = None if torch.compiler.is_compiling() else site_of(self)
        if site is not None and site.state == "waiting" and _computes(self, args, kwargs):
            site.why = _why_not_settled(self, kind)
            if site.why is None:
                measure_and_decide(self, args, kwargs)
            else:
                site.state = "left"
        # Whoever kept this function calls what the place has become, and never itself by the method's name.
        if site is None or site.state != "swapped":
            return theirs(self, *args, **kwargs)
        return _settled(kind, original, theirs)(self, *args, **kwargs)

    return forward


def _why_not_settled(module: nn.Module, kind: Kind) -> str | None:
    """Why a place cannot get its class any more, which somebody has made something else of, or None."""
    if not is_swapped(module):
        return "was given another class by somebody"
    return f"its {kind.method} was replaced by somebody" if kind.method in vars(module) else None


def _computes(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call computes now, with strides, and may take its time: it is not recorded, nor captured."""
    if not _torch.is_plain_call() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    return (
        all_strided(tensors) and bool(tensors) and all(t.device.type != "meta" and t.numel() for t in tensors)
    )


def measure_and_decide(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Measure original and swapped for a call, and give the module the class of the better one."""
    site = site_of(module)
    assert site is not None
    kind, plan = site.kind, site.plan
    if kind.training and not module.training:
        return
    original = original_class(module)
    refused = None if kind.why_not_call is None else kind.why_not_call(module, *args, **kwargs)
    if refused is not None:
        site.state, site.why = "left", refused
        restore_class(module)
        return
    try:
        classes = original, _class_of(original, kind, True)
    except Exception as error:  # of any kind: its method is somebody's own
        site.state, site.why = "left", f"cannot be swapped: {type(error).__name__}: {error}"
        restore_class(module)
        return
    key, site.shape = signature_of(module, kind.name, args, kwargs)
    train = plan.mode == "train"
    known = plan.findings.get(key)
    if known is None:
        finding = measured(module, classes, kind, args, kwargs, train)
        plan.findings[key] = finding
        finding.path = site.path
        site.error, site.reference = finding.error, finding.reference
    else:
        finding, site.like = known, known.path
        if finding.why is None:
            site.error, site.reference, why = checked(module, classes, kind, args, kwargs, train)
            if why is not None:
                finding = Finding(why=why)
    site.finding = finding
    site.why = finding.why
    if finding.why is None:
        site.state = "swapped"
        places = {other.path: other for other in plan.sites}
        for path, layer in kind.inside(module):
            part = places.get(f"{site.path}.{path}" if site.path else path)
            if part is not None and part.state != "swapped":
                part.state, part.why = "part", f"of {site.path or 'the model'}"
                if is_swapped(layer):
                    restore_class(layer)
        set_class(module, classes[1])
    else:
        site.state = "left"
        restore_class(module)
