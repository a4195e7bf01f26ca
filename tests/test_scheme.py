"""QuantScheme: names, dictionaries, sizes and the messages of its errors."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnt.errors import ConfigError
from burnt.scheme import NAMES, VALUES, QuantScheme


def all_schemes() -> Iterator[QuantScheme]:
    levels = [("tensor", None), ("channel", None), ("block", 4), ("block", 32), ("block", 128)]
    for value, (level, block), symmetric, narrow, scale, activations, uneven in itertools.product(
        VALUES,
        levels,
        (True, False),
        (False, True),
        ("float32", "float16", "bfloat16"),
        (None, "dynamic", "dynamic_tensor", "static"),
        ("pad", "refuse"),
    ):
        if VALUES[value].is_float and (narrow or not symmetric or activations == "dynamic_tensor"):
            continue
        settings: Any = (value, level, block, symmetric, narrow, scale, activations, uneven)
        yield QuantScheme(*settings)


def test_names_and_dictionaries_give_the_same_scheme_back() -> None:
    schemes = list(all_schemes())
    assert len(schemes) == (3 * 4 * 4 + 3 * 3) * 5 * 3 * 2
    for scheme in schemes:
        assert QuantScheme.parse(scheme.name) == scheme
        assert QuantScheme.from_dict(json.loads(json.dumps(scheme.to_dict()))) == scheme
    assert len({scheme.name for scheme in schemes}) == len(schemes)


@given(st.sampled_from(list(all_schemes())), st.randoms(use_true_random=False))
def test_properties_may_come_in_any_order_and_case(scheme: QuantScheme, random: Any) -> None:
    value, *rest = scheme.name.split("-")
    if not rest and scheme.level == "channel" and scheme.type.bits < 8:
        rest = ["channel"]
    random.shuffle(rest)
    assert QuantScheme.parse(f" {'-'.join([value, *rest]).upper()} ") == scheme


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int8", QuantScheme()),
        ("Q8S", QuantScheme("int8", narrow=True)),
        ("Q4F", QuantScheme("int4")),
        ("q2s-block16", QuantScheme("int2", "block", 16, narrow=True, scale="float16")),
        ("int8_weight_only", QuantScheme()),
        ("int8-weight-only", QuantScheme()),
        ("int8dq", QuantScheme(activations="dynamic")),
        ("int4", QuantScheme("int4", "block", 32, scale="float16")),
        ("int4wo", QuantScheme("int4", "block", 32, scale="float16")),
        ("int4-channel", QuantScheme("int4")),
        ("float8_e4m3fn", QuantScheme("float8_e4m3")),
        ("fp8dq", QuantScheme("float8_e4m3", activations="dynamic")),
        ("fp4", QuantScheme("float4_e2m1", "block", 32, scale="float16")),
        ("e5m2-tensor", QuantScheme("float8_e5m2", "tensor")),
        ("int4-block32-float32", QuantScheme("int4", "block", 32)),
        ("int8-symmetric-pad", QuantScheme()),
    ],
)
def test_known_names(name: str, expected: QuantScheme) -> None:
    assert QuantScheme.parse(name) == expected
    assert repr(QuantScheme.parse(QuantScheme.parse(name))) == f"QuantScheme({expected.name!r})"


def test_common_names_are_their_own() -> None:
    assert [QuantScheme.parse(name).name for name in NAMES] == list(NAMES)


@pytest.mark.parametrize(
    ("name", "found", "hint"),
    [
        ("int9", "'int9'", "did you mean 'int8'?"),
        ("int8-dynamc", "'dynamc'", "did you mean 'dynamic'?"),
        ("", "''", None),
        ("int8-block", "'block'", "did you mean 'block32'?"),
        ("int4-blok32", "'blok32'", "did you mean 'block32'?"),
        ("int4-block32-channel", "'block' and 'channel'", None),
        ("int4-block32-block64", "'block' and 'block'", None),
        ("int8-static-dynamic", "'static' and 'dynamic'", None),
        ("int4-block3", "3", None),
        ("int4-block0", "0", None),
        ("int2-block6", "6", None),  # a byte has 4 values
        ("fp8-asymmetric", "False", None),
        ("fp8-dynamic_tensor", "'dynamic_tensor'", None),
        ("fp8-narrow", "True", None),
    ],
)
def test_names_that_are_none(name: str, found: str, hint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        QuantScheme.parse(name)
    assert caught.value.found == found
    if hint is not None:
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"value": "int3"}, "value"),
        ({"level": "row"}, "level"),
        ({"level": "block"}, "block"),
        ({"block": 32}, "block"),
        ({"level": "block", "block": 7}, "block"),
        ({"level": "block", "block": 32.0}, "block"),
        ({"level": "block", "block": True}, "block"),
        ({"scale": "float64"}, "scale"),
        ({"activations": "int8"}, "activations"),
        ({"uneven": "drop"}, "uneven"),
        ({"value": "fp4", "symmetric": False}, "symmetric"),
        ({"value": "fp4", "narrow": True}, "narrow"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        QuantScheme(**settings)
    assert caught.value.where == f"QuantScheme.{where}"
    with pytest.raises(ConfigError):
        QuantScheme.from_dict(settings)


def test_other_objects_and_unknown_fields() -> None:
    with pytest.raises(ConfigError, match="not a quantization scheme"):
        QuantScheme.parse(8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        QuantScheme.from_dict({"values": "int8"})
    assert caught.value.hint == "did you mean 'value'?"


@given(st.sampled_from(list(all_schemes())), st.integers(0, 40), st.integers(0, 300))
def test_sizes(scheme: QuantScheme, rows: int, columns: int) -> None:
    padded = scheme.padded_columns(columns)
    multiple = scheme.block or 1
    assert padded * scheme.type.bits % 8 == 0
    assert padded % multiple == 0
    assert columns <= padded < columns + max(multiple, scheme.type.per_byte)
    assert scheme.blocks(columns) * multiple in (padded, 1)
    blocks = scheme.blocks(columns)
    assert scheme.block is None or (blocks - 1) * scheme.block < columns or columns == blocks == 0
    assert scheme.smallest == (
        -scheme.largest if scheme.narrow or scheme.type.is_float else -scheme.largest - 1
    )


def test_schemes_are_values() -> None:
    scheme = QuantScheme.parse("int4-block64")
    assert hash(scheme) == hash(QuantScheme.parse("int4-block64"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.block = 32  # type: ignore[misc]
