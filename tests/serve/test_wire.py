"""JSON of requests and answers, for random bodies: next to Python's own parser, and never another error."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from burnt.errors import InputError
from burnt.serve import wire
from burnt.serve.wire import decode_json, encode_json
from tests.fixtures import Patch
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
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(text, parse_constant=refuse)["outputs"]["y"]
    numbers = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    read = [[numbers[value] if isinstance(value, str) else value for value in row] for row in found]
    np.testing.assert_array_equal(np.array(read, np.float32).reshape(array.shape), array)


# --- what is decoded and encoded in pieces, so that other threads get a turn


@pytest.fixture(params=[1, 20, 2**16])
def piece(request: pytest.FixtureRequest, monkeypatch: Patch) -> None:
    monkeypatch.setattr(wire, "_PIECE_BYTES", request.param)
    monkeypatch.setattr(wire, "_PIECE_NUMBERS", request.param)


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40,), (9, 1), (1, 9), (2, 3, 5), (1, 1, 1), (3, 1, 2, 1)])
def test_pieces_give_the_whole(dtype: str, shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 120, shape)
    array = (numbers / 7 if dtype.startswith("float") else numbers).astype(dtype)
    schema = schema_of((None, *shape[1:]), dtype)
    for indent in (None, 2):
        body = json.dumps({"inputs": {"x": array.tolist()}}, indent=indent).encode()
        found = decode_json(body, schema)["x"]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, shape, array.tobytes())
    assert json.loads(encode_json({"y": array}, {}, None))["outputs"]["y"] == array.tolist()


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[1,2],[3,4],[5,null]]", "got `null` - at `$[2][1]`"),
        ("[[1,2],[3,4.5],[5,6]]", "got `float` - at `$[1][1]`"),
        ("[[1,2],[3,128],[5,6]]", "<= 127 - at `$[1][1]`"),
        ('[[1,2],[3,4],["5",6]]', "got `str` - at `$[2][0]`"),
        ('[[1,2],[3,4],[{"a": 1},6]]', "got `object` - at `$[2][0]`"),
        ("[[1,2],[3,4],[5]]", "different lengths"),
        ("[[1,2],[3,4],[5,[6]]]", "depths|got `array`"),
        ("[[1,2],[3,4],5]", "depths|got `int`"),
        ("[[[1,2]],[3,4],[5,6]]", "nested 3 deep"),
        ("[[1,2],[],[5,6]]", "different lengths"),
        ("[[1],[],[5]]", "different lengths"),
        ('[[1,2],["],[",4],[5,6]]', "depths|got `str`|malformed"),
    ],
)
def test_a_wrong_value_in_pieces_is_found_where_it_is(text: str, said: str) -> None:
    with pytest.raises(InputError, match="|".join(map(re.escape, said.split("|")))):
        decode_json(b'{"inputs": {"x": %b}}' % text.encode(), schema_of((None, 2), "int8"))


def test_lists_without_elements_have_their_shape() -> None:
    body = b'{"inputs": {"x": [[],[],[]]}}'
    expected = decode_json(body, schema_of((None, 2)))["x"].shape
    assert expected == wire._decode_in_pieces(b"[[],[],[]]", 2, schema_of().inputs[0]).shape == (3, 0)


def test_many_names_are_refused_before_they_are_read() -> None:
    body = json.dumps({"inputs": {str(i): 1 for i in range(2000)}}).encode()
    with pytest.raises(InputError, match="more names or strings"):
        decode_json(body, schema_of((None, 2)))
