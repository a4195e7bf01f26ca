"""Regular expressions of RegexFullMatch next to ONNX Runtime, which uses RE2; limits; other text ops."""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import burnt
from burnt.errors import UnsupportedError
from burnt.onnx import functions
from tests.onnx.importer.test_tokens import model_of

PATTERNS = [
    *("", "a", "abc", ".", "a|", "(a|ab)(c|bcd)", "(?:a|b)*c", "((a*)*)*", "(a*)+b?", "(|a)+", "^*a$"),
    *("a{2}", "a{0}b", "a{1,2}b{0,}", "(ab){2,3}?", "a{,2}", "x{a}", "[^a-c]+", "[]a]+", "[^]a]+", "[[a]+"),
    *(r"[\w.-]+@(yahoo|gmail)\.com", r"\d{3}-\d{2}", r"\bab\b.*", r"a\B.", r"\Aab\z", "^a|b$", r"\x61\x{e9}"),
    *("(?i)aBc", "(?i:a)b", "a(?i)b|c", "(?s).+", "(?P<n>a)(?<m>b)", "[[:alpha:][:digit:]]+", r"[\x{61}-c]+"),
    *(r"\S+\s\S+", r"[\d\s]*", r"\.\*\[", "é+", "[é-ü]", "a.c", "(a+)+b", "(a|aa)*", r"\pL+", "(?m)^a$\n"),
    *("(?i)É", r"\C\C", "[[:^alpha:]]+", "(" * 100 + "a" + ")" * 100),
]
TEXTS = [
    *("", "a", "b", "ab", "abc", "abcd", "aab", "aabb", "ABC", "aB", "a\n", "ab ab", "abab", "a{,2}", "x{a}"),
    *(
        "me@gmail.com",
        "me@gmail_com",
        "123-45",
        "]a",
        "[a",
        ".*[",
        "é",
        "aé",
        "ü",
        "a1",
        "xyz",
        "\n\n",
        "\u0661",
    ),
]


def regex_model(pattern: str) -> onnx.ModelProto:
    """Return a model of a RegexFullMatch."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (string[n] x) => (bool[n] y) { y = RegexFullMatch(x) }'
    )
    attribute = model.graph.node[0].attribute.add(name="pattern", s=pattern.encode())
    attribute.type = attribute.STRING
    return model


def assert_matches_equal(pattern: str, texts: list[str]) -> None:
    array = np.array(texts, dtype=object)
    session = onnxruntime.InferenceSession(regex_model(pattern).SerializeToString())
    (expected,) = session.run(None, {"x": array})
    found = functions.regex_full_match(array, pattern).tolist()
    assert dict(zip(texts, found, strict=True)) == dict(zip(texts, expected.tolist(), strict=True)), pattern


def test_matches_are_those_of_onnxruntime() -> None:
    for pattern in PATTERNS:
        assert_matches_equal(pattern, TEXTS)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.full)])
def test_matches_of_random_patterns_are_those_of_onnxruntime(count: int) -> None:
    draw = random.Random(count)
    atoms = ["a", "b", "é", "[ab]", "[^a]", ".", r"\w", r"\W", r"\b", r"\B", "^", "$", r"\d", "(?i:A)", r"\n"]

    def whole(depth: int = 0) -> str:
        parts = []
        for _ in range(draw.randint(1, 3)):
            one = f"({whole(depth + 1)})" if depth < 2 and draw.random() < 0.3 else draw.choice(atoms)
            repeats = one not in (r"\b", r"\B", "^", "$")
            parts.append(one + (draw.choice(["", "", "*", "+", "?", "*?", "{1,2}"]) if repeats else ""))
        return draw.choice(["", "|"]).join(parts)

    for _ in range(count):
        texts = ["".join(draw.choices("abé A\n1_", k=draw.randint(0, 5))) for _ in range(20)]
        assert_matches_equal(whole(), list(dict.fromkeys(texts)))


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)*b", "a*a*a*a*a*a*a*a*b", "((a?){20}){20}b", ".*.*.*.*.*.*=.*b"]
)
def test_time_is_linear(pattern: str) -> None:
    """Python's ``re`` takes years for each of these."""
    start = time.process_time()
    texts = np.array(["a" * 20_000, "a" * 300 + "b"], dtype=object)
    assert functions.regex_full_match(texts, pattern).tolist() == [False, "=" not in pattern]
    assert time.process_time() - start < 1


REFUSED = {
    r"(.)\1": r"(?s)expected  the syntax of RE2.*found     invalid escape sequence: \\1",
    "(?=a)b": r"found     invalid perl operator: \(\?=",
    "*a": r"found     no argument for repetition operator: \*",
    "(a": r"found     missing \): \(a",
    "a)": r"found     unexpected \): a\)",
    "[a": r"found     missing \]: \[a",
    "[é-a]é": "found     invalid character class range: é-a",
    "a{1001}": r"found     invalid repetition size: \{1001\}",
    "(a{1000}){1000}": r"found     invalid repetition size",
    r"\pL{1000}": r"found     pattern too large",
    "a" * 1_000_000: "found     pattern too large",
    "[" + "é" * 1_000: "found     missing ]: ",
}


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda pattern: pattern[:20])
def test_what_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[pattern]) as caught:
        burnt.onnx.load(regex_model(pattern))
    assert "a regular expression is not supported" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert capfd.readouterr().err == ""


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    for model in (regex_model("a+"), model_of({"tokenexp": "a+"})):
        with pytest.raises(UnsupportedError, match="need google-re2, which is not installed") as caught:
            burnt.onnx.load(model)
        assert caught.value.hint == "pip install 'burnt[onnx]'"
    characters = model_of({"separators": [""]})
    assert burnt.onnx.load(characters)(np.array(["ab"], dtype=object)).tolist() == [["a", "b"]]


def test_large_numbers_of_a_tfidf_take_no_time() -> None:
    """Words further apart than the text is long, and n-grams longer than it, do not occur."""
    found = functions.tfidf(np.array([1, 2, 3]), "TF", (1, 10**12), 10**12, [0, 1], [0, 1], [3, 1, 3])
    assert found.tolist() == [1, 1]
