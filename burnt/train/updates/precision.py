"""Precision settings of a training.

================== ============== ================================ ==============================
precision          parameters     matmuls and convolutions         also
================== ============== ================================ ==============================
``float32``        as they are    in the parameters' dtype
``tf32``           as they are    float32 on tf32 tensor cores     for the run, in the process
``float16``        as they are    float16, by autocast             scaled losses (`LossScale`)
``bfloat16``       as they are    bfloat16, by autocast
``bfloat16 whole`` bfloat16       bfloat16, by autocast            optimizer state in bfloat16
                   but for norms
================== ============== ================================ ==============================
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor

from burnt._torch import BatchNormBase, InstanceNormBase, update_loss_scale
from burnt.errors import UnsupportedError, did_you_mean
from burnt.kernels import multiplying
from burnt.record.stored import beside_statistics

WHOLE = "bfloat16 whole"
_NAMES = {
    **dict.fromkeys(("float32", "fp32", "32", "32-true", "no"), "float32"),
    "tf32": "tf32",
    **dict.fromkeys(("float16", "fp16", "16", "16-mixed"), "float16"),
    **dict.fromkeys(("bfloat16", "bf16", "bf16-mixed"), "bfloat16"),
    **dict.fromkeys((WHOLE, "bf16 whole", "bf16-true"), WHOLE),
}
"""The names of a precision, with Lightning's and accelerate's among them."""
_DOUBLE = "for float64, convert model and data: model.double()"
_HALF = 'small gradients and updates are 0 in float16: "float16" or "bfloat16 whole"'
_EIGHT = 'training in 8 bits is not supported: "bfloat16"'
_HINTS = {
    **dict.fromkeys(("float64", "fp64", "double", "64", "64-true"), _DOUBLE),
    **dict.fromkeys(("16-true", "float16 whole"), _HALF),
    **dict.fromkeys(("fp8", "transformer-engine"), _EIGHT),
}
_NORMS = (torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.GroupNorm, BatchNormBase, InstanceNormBase)
_AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16, WHOLE: torch.bfloat16}


def check_precision(name: str) -> str:
    """Return the name of a precision setting; Lightning's and accelerate's names are understood too.

    >>> check_precision("bf16-true"), check_precision("16-mixed")
    ('bfloat16 whole', 'float16')
    """
    key = str(name)
    if key not in _NAMES:
        raise UnsupportedError(
            f"precision={name!r} does not exist",
            expected=", ".join(dict.fromkeys(_NAMES.values())),
            hint=_HINTS.get(key) or (did_you_mean(key, _NAMES)),
        )
    return _NAMES[key]


def autocast(precision: str, *device_types: str) -> AbstractContextManager[object]:
    """Return the autocast context of a step on devices of these types; for float32 and tf32 none."""
    dtype = _AUTOCAST.get(precision)
    if dtype is None:
        return nullcontext()
    if len(device_types) == 1:
        return torch.autocast(*device_types, dtype=dtype)
    contexts = ExitStack()
    for kind in device_types:
        contexts.enter_context(torch.autocast(kind, dtype=dtype))
    return contexts


def float32_matmuls(precision: str) -> AbstractContextManager[object]:
    """Return the context of a whole run: with ``"tf32"``, how the process multiplies float32 meanwhile."""
    return multiplying("tf32") if precision == "tf32" else nullcontext()


def cast_parameters(precision: str, model: torch.nn.Module) -> None:
    """Convert a model in place to what the precision trains; only ``"bfloat16 whole"`` converts.

    Modules with running statistics, such as BatchNorm, and torch's and burnt's other normalizations stay as
    they are, with all their tensors.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    >>> cast_parameters("bfloat16 whole", model)
    >>> model[0].weight.dtype, model[1].weight.dtype
    (torch.bfloat16, torch.float32)
    """
    if precision != WHOLE:
        return
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # A CPU normalizes float32, such as the batch itself, only with a weight in float32.
    norms = {path for path, module in model.named_modules() if isinstance(module, _NORMS)}
    kept = beside_statistics(tensors) | {path for path in tensors if path.rpartition(".")[0] in norms}
    with torch.no_grad():
        for path, tensor in tensors.items():
            if tensor.is_floating_point() and path not in kept:
                tensor.data = tensor.data.to(torch.bfloat16)


_LEAST = 2.0**-24
"""The scale falls no further, so that gradients can always be divided by it."""


class LossScale:
    """A dynamic loss scale, with the rules and defaults of :class:`torch.amp.GradScaler`.

    A step that overflows is skipped and multiplies the scale by `backoff`; `interval` steps in a row that do
    not, multiply it by `growth`. The state stays on the device: neither a step nor `update` waits for it.

    >>> scale = LossScale(torch.device("cpu"), scale=8.0, interval=2)
    >>> for skipped in (True, False, False):
    ...     scale.update(torch.tensor(skipped))
    ...     print(float(scale.value), int(scale.skipped))
    4.0 1
    4.0 1
    8.0 1
    """

    def __init__(
        self,
        device: torch.device,
        *,
        scale: float = 2.0**16,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        self.value = torch.tensor(scale, dtype=torch.float32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int32, device=device)
        self._growth, self._backoff, self._interval = growth, backoff, interval

    def update(self, skipped: Tensor) -> None:
        """Adapt the scale after a step; `skipped`, ``[]``, says whether its gradients overflowed.

        `skipped` may be on the host: optimizers that decide there return it so.
        """
        skipped = skipped.to(self.value.device)
        update_loss_scale(
            self.value, self._good_steps, skipped.float(), self._growth, self._backoff, self._interval
        )
        self.value.clamp_(min=_LEAST)
        self.skipped += skipped

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint. Waits for the device."""
        return {"scale": float(self.value), "good_steps": int(self._good_steps), "skipped": int(self.skipped)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.value.fill_(state["scale"])
        self._good_steps.fill_(state["good_steps"])
        self.skipped.fill_(state["skipped"])
