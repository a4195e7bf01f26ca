"""The rotary encoding in ``config.json``, in both of its spellings, as `burnt.nn.rope_scaling`.

Older files have ``rope_theta`` and ``rope_scaling``, those of transformers 5 both in ``rope_parameters``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from burnt.config import field_values
from burnt.errors import ConfigError
from burnt.nn import rope_scaling

_KINDS: dict[str, type[rope_scaling.Scaling]] = {
    "linear": rope_scaling.Linear,
    "dynamic": rope_scaling.DynamicNtk,
    "yarn": rope_scaling.Yarn,
    "llama3": rope_scaling.Llama3,
}
_ORIGINAL = "original_max_position_embeddings"


def read_rope(
    document: Mapping[str, Any], max_len: int, where: str
) -> tuple[float, rope_scaling.Scaling | None]:
    """Return base and scaling of the rotary encoding in a ``config.json``; `where` is its name in messages.

    Another encoding, and keys that are missing or of the wrong type, are a ConfigError.
    """
    key = "rope_scaling" if document.get("rope_scaling") else "rope_parameters"
    parameters = document.get(key) or {}
    if not isinstance(parameters, dict):
        raise ConfigError(
            "a rotary encoding cannot be read",
            where=f"{where}: {key}",
            expected="an object",
            found=repr(parameters),
        )
    where = f"{where}: {key}"
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    base = parameters.get("rope_theta", document.get("rope_theta", 10000.0))
    share = parameters.get("partial_rotary_factor", document.get("partial_rotary_factor", 1.0))
    by_layer = [name for name, value in parameters.items() if isinstance(value, dict)]
    if share != 1.0 or by_layer:
        raise ConfigError(
            "the model has no such rotary encoding",
            where=where,
            expected="one for all features of all layers",
            found=f"parameters of {', '.join(by_layer)}" if by_layer else f"partial_rotary_factor {share}",
        )
    if kind == "default":
        return base, None
    if kind not in _KINDS:
        raise ConfigError(
            "the model has no such scaling of its rotary encoding",
            where=f"{where}: rope_type",
            expected=" or ".join(map(repr, ("default", *_KINDS))),
            found=repr(kind),
        )
    values = {name: parameters[name] for name in ("factor",) if name in parameters}
    if kind == "dynamic":
        values["original_max_len"] = max_len
    elif kind in ("yarn", "llama3"):
        values["original_max_len"] = document.get(_ORIGINAL, parameters.get(_ORIGINAL, max_len))
    if kind == "llama3":
        values |= {name: parameters.get(name) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    elif kind == "yarn":
        values |= _read_yarn(parameters, max_len / values["original_max_len"])
    try:
        return base, _KINDS[kind].from_dict({"type": _KINDS[kind].__name__, **values})
    except ConfigError as error:
        error.where = f"{where}: {error.where}"
        raise


def _read_yarn(parameters: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """Return the fields of `rope_scaling.Yarn` but for the length; zero and null are the defaults."""
    values = {name: parameters[name] for name in ("beta_fast", "beta_slow") if parameters.get(name)}
    factor = values["factor"] = parameters.get("factor") or ratio
    values["truncate"] = parameters.get("truncate", True)
    values["attention_factor"] = parameters.get("attention_factor")
    above, below = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if values["attention_factor"] is None and above and below:  # as in DeepSeek's models
        growth = 0.1 * math.log(max(factor, 1.0))
        values["attention_factor"] = (growth * above + 1) / (growth * below + 1)
    return values


def write_rope(base: float, scaling: rope_scaling.Scaling | None, where: str) -> dict[str, Any]:
    """Return the keys of ``config.json``, as all versions of transformers read them."""
    if scaling is None:
        return {"rope_theta": base, "rope_scaling": None}
    kind = next((name for name, known in _KINDS.items() if type(scaling) is known), None)
    if kind is None:
        raise ConfigError(
            "config.json has no such scaling of a rotary encoding",
            where=where,
            expected=" or ".join(known.__name__ for known in _KINDS.values()),
            found=repr(scaling),
        )
    values = {name: value for name, value in field_values(scaling).items() if value is not None}
    original = values.pop("original_max_len", None)
    if original is not None and kind != "dynamic":  # that has max_position_embeddings
        values[_ORIGINAL] = original
    return {"rope_theta": base, "rope_scaling": {"rope_type": kind, **values}}
