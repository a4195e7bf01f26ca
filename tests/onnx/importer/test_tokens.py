"""Tokens of texts, beside ONNX Runtime."""

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
    "the_longest": {"tokenexp": "b|ba|go+?d?"},
    "repeated_groups": {"tokenexp": "([ab]+-?)+"},
    "marks": {"tokenexp": "[a-z]+", "mark": 1},
    "no_tokens": {"tokenexp": "[0-9][0-9]", "mark": 1},
    "characters": {"separators": [""]},
    "separators": {"separators": [", ", " ", "X"], "mincharnum": 2},
    "separators_one_after_the_other": {"separators": [" ", ", "]},
    "separators_by_expression": {"separators": ["[ ,]", "o+|a$"]},
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


def test_random_expressions_equal_onnxruntime() -> None:
    """Classes, groups, alternatives, repetitions and anchors in any order."""
    draw = random.Random(0)

    def part(depth: int) -> str:
        atoms = ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\W", r"\b", r"\B", "^", "$"]
        one = f"({whole(depth + 1)})" if depth < 2 and draw.random() < 0.2 else draw.choice(atoms)
        repeats = one[-1] in "ab].)wW" and one not in (r"\b",)
        return one + (draw.choice(["", "", "*", "+", "?", "+?", "{1,2}"]) if repeats else "")

    def whole(depth: int = 0) -> str:
        return draw.choice(["", "|"]).join(part(depth) for _ in range(draw.randint(1, 3)))

    texts = np.array(["ab ba", "aab", "b-a_b", "", "bbab a"], dtype=object)
    for _ in range(40):
        compare(model_of({"tokenexp": whole()}), texts)


@pytest.mark.parametrize("pattern", [r"(a)\1", "[a", "a**"])
def test_other_expressions_are_refused_before_anything_is_split(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="a regular expression is not supported"):
        burnt.onnx.load(model_of({"tokenexp": pattern}))


def test_a_separator_of_nothing_is_refused() -> None:
    """Each place between two characters would separate."""
    with pytest.raises(UnsupportedError, match="a separator of tokens matches an empty text"):
        functions.tokenize(TEXTS, separators=["x*"])


def test_hostile_expressions_take_bounded_time() -> None:
    """Python's engine would take exponential time."""
    texts = np.array(["a" * 300 + "c"], dtype=object)
    assert functions.tokenize(texts, "(a+)+b").shape == (1, 0)
