"""Tokens of texts, next to ONNX Runtime."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnx import helper

import burnt
from burnt.errors import UnsupportedError
from burnt.onnx import functions

TEXTS = np.array(["a good film, é good!", "", "bb X", "aXbb", "Xa", "a-b\nab_1 ba"], dtype=object)
CASES: dict[str, dict[str, Any]] = {
    "words": {"tokenexp": "[a-z]+"},
    "long_words": {"tokenexp": "[a-z]+", "mincharnum": 2},
    "characters_by_expression": {"tokenexp": "."},
    "maybe_nothing": {"tokenexp": r"\w*o?"},
    "boundaries": {"tokenexp": r"\b\w\w+\b"},
    "at_the_start": {"tokenexp": "^[ab]"},
    "any_but_a_newline": {"tokenexp": "a.b|b.a"},
    "lines": {"tokenexp": "(?m)^[a-z]"},
    "the_longest": {"tokenexp": "b|ba|go+?d?"},
    "repeated_groups": {"tokenexp": "([ab]+-?)+"},
    "marks": {"tokenexp": "[a-z]+", "mark": 1},
    "no_tokens": {"tokenexp": "[0-9][0-9]", "mark": 1},
    "characters": {"separators": [""]},
    "separators": {"separators": [", ", " ", "X"], "mincharnum": 2},
    "separators_one_after_the_other": {"separators": [" ", ", "]},
    "separators_by_expression": {"separators": ["[ ,]", "o+|a$"]},
    "the_longest_separators": {"separators": ["g|go|-.", "é"]},
}


def model_of(attributes: dict[str, Any], axes: int = 1) -> bytes:
    """Return a model of a Tokenizer."""
    attributes = {"mark": 0, "mincharnum": 1, "pad_value": "#"} | attributes
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attributes)
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [None] * rank)
        for name, rank in (("x", axes), ("y", axes + 1))
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


def compare(model: bytes, texts: np.ndarray[Any, Any]) -> None:
    expected = onnxruntime.InferenceSession(model).run(None, {"x": texts})[0]
    found = burnt.onnx.load(model)(texts)
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_onnxruntime(name: str) -> None:
    compare(model_of(CASES[name]), TEXTS)


def test_rows_of_texts() -> None:
    compare(model_of({"tokenexp": "[a-z]+", "pad_value": ""}, axes=2), TEXTS.reshape(2, 3))


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.full)])
def test_random_expressions_equal_onnxruntime(count: int) -> None:
    """Classes, groups, alternatives, repetitions and anchors in any order."""
    draw = random.Random(count)

    def part(depth: int) -> str:
        atoms = ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\W", r"\b", r"\B", "^", "$"]
        one = f"({whole(depth + 1)})" if depth < 2 and draw.random() < 0.2 else draw.choice(atoms)
        repeats = one[-1] in "ab].)wW" and one not in (r"\b",)
        return one + (draw.choice(["", "", "*", "+", "?", "+?", "{1,2}"]) if repeats else "")

    def whole(depth: int = 0) -> str:
        return draw.choice(["", "|"]).join(part(depth) for _ in range(draw.randint(1, 3)))

    texts = np.array(["ab ba", "aab", "b-a_b", "", "bbéab\na"], dtype=object)
    for _ in range(count):
        compare(model_of({"tokenexp": whole()}), texts)


@pytest.mark.parametrize("pattern", [r"(a)\1", "[a", "a**"])
def test_other_expressions_are_refused_before_anything_is_split(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="a regular expression is not supported"):
        burnt.onnx.load(model_of({"tokenexp": pattern}))


def test_a_separator_of_nothing_is_refused() -> None:
    """Each place between two characters would separate."""
    with pytest.raises(UnsupportedError, match="a separator of tokens matches an empty text"):
        functions.tokenize(TEXTS, separators=["x*"])


@pytest.mark.parametrize("how", [{"pattern": r"\C"}, {"separators": [r"b\C"]}])
def test_characters_are_not_cut(how: dict[str, Any]) -> None:
    r"""``\C`` matches one byte of several."""
    with pytest.raises(UnsupportedError, match="cuts characters into bytes") as caught:
        functions.tokenize(np.array(["bé"], dtype=object), **how)
    assert r"\\C" in str(caught.value.found)


def test_hostile_expressions_take_bounded_time() -> None:
    """Python's engine would take exponential time."""
    texts = np.array(["a" * 300 + "c"], dtype=object)
    assert functions.tokenize(texts, "(a+)+b").shape == (1, 0)
