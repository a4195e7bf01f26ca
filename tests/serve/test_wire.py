"""JSON of requests and answers, for random bodies: beside Python's own parser, and never another error."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from burnt.errors import InputError
from burnt.serve.wire import decode_json, encode_json
from tests.serve.serving import schema_of

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=12,
)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_arrays_arrive_as_python_and_numpy_read_them(dtype: str, data: Any) -> None:
    shape = data.draw(st.tuples(st.integers(1, 3), st.just(2), st.just(3)))
    if dtype.startswith("float"):  # by their bits: a strategy of finite numbers discards most of float16
        array = data.draw(arrays.arrays(dtype.replace("float", "uint"), shape)).view(dtype)
        array = np.where(np.isfinite(array), array, 0).astype(dtype)
    else:
        array = data.draw(arrays.arrays(dtype, shape))
    schema = schema_of((None, 2, 3), dtype)
    indent = data.draw(st.sampled_from([None, 1]))
    body = json.dumps({"inputs": {"x": array.tolist()}}, indent=indent).encode()
    batch = schema.fit(decode_json(body, schema))
    np.testing.assert_array_equal(batch.arrays[0], np.array(json.loads(body)["inputs"]["x"], dtype))
    assert (batch.rows, batch.is_single) == (shape[0], False)
    single = json.dumps({"inputs": {"x": array[0].tolist()}}, indent=indent).encode()
    item = schema.fit(decode_json(single, schema))
    np.testing.assert_array_equal(item.arrays[0], array[:1])
    assert item.is_single


@settings(max_examples=100, deadline=None)
@given(
    body=st.binary(max_size=40)
    | values.map(lambda value: json.dumps(value).encode())
    | values.map(lambda value: json.dumps({"inputs": {"x": value}}).encode())
    | st.text(alphabet='{}[]",:01-.eEx \n', max_size=40).map(
        lambda text: b'{"inputs":{"x":%b}}' % text.encode()
    ),
    dtype=st.sampled_from(DTYPES),
)
def test_any_other_body_is_an_input_error(body: bytes, dtype: str) -> None:
    schema = schema_of((None, 2), dtype)
    try:
        batch = schema.fit(decode_json(body, schema))
    except InputError as error:
        json.dumps([str(error)])
        return
    found = json.loads(body)["inputs"]["x"]
    np.testing.assert_array_equal(batch.arrays[0].reshape(np.shape(found)), np.array(found, dtype))
    assert {type(value) for value in np.ravel(np.array(found, object))} <= {bool, int, float}


@settings(max_examples=25, deadline=None)
@given(arrays.arrays("float32", st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_answers_are_json_that_gives_every_number_back(array: np.ndarray) -> None:
    text = encode_json({"y": array}, {"model": "m"}, None)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(text, parse_constant=refuse)["outputs"]["y"]
    numbers = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    read = [[numbers[value] if isinstance(value, str) else value for value in row] for row in found]
    np.testing.assert_array_equal(np.array(read, np.float32).reshape(array.shape), array)
