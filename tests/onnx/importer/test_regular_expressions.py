"""Regular expressions of RegexFullMatch beside ONNX Runtime, which uses RE2; their limits; other text ops."""

from __future__ import annotations

import time

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from burnt.errors import UnsupportedError
from burnt.onnx import functions
from burnt.onnx.functions.regular_expressions import full_matcher

PATTERNS = [
    *("", "a", "abc", ".", "a|", "(a|ab)(c|bcd)", "(?:a|b)*c", "((a*)*)*", "(a*)+b?", "(|a)+", "^*a$"),
    *("a{2}", "a{0}b", "a{1,2}b{0,}", "(ab){2,3}?", "a{,2}", "x{a}", "[^a-c]+", "[]a]+", "[^]a]+", "[[a]+"),
    *(r"[\w.-]+@(yahoo|gmail)\.com", r"\d{3}-\d{2}", r"\bab\b.*", r"a\B.", r"\Aab\z", "^a|b$", r"\x61\x{e9}"),
    *("(?i)aBc", "(?i:a)b", "a(?i)b|c", "(?s).+", "(?P<n>a)(?<m>b)", "[[:alpha:][:digit:]]+", r"[\x{61}-c]+"),
    *(r"\S+\s\S+", r"[\d\s]*", r"\.\*\[", "é+", "[é-ü]", "a.c", "(a+)+b", "(a|aa)*"),
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


def test_matches_are_those_of_re2() -> None:
    texts = np.array(TEXTS, dtype=object)
    for pattern in PATTERNS:
        model = parser.parse_model(
            '<ir_version: 10, opset_import: ["": 20]> '
            "g (string[n] x) => (bool[n] y) { y = RegexFullMatch(x) }"
        )
        attribute = model.graph.node[0].attribute.add(name="pattern", s=pattern.encode())
        attribute.type = attribute.STRING
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (expected,) = session.run(None, {"x": texts})
        found = functions.regex_full_match(texts, pattern).numpy()
        assert dict(zip(TEXTS, found.tolist(), strict=True)) == dict(
            zip(TEXTS, expected.tolist(), strict=True)
        ), pattern


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)*b", "a*a*a*a*a*a*a*a*b", "((a?){20}){20}b", ".*.*.*.*.*.*=.*b"]
)
def test_time_is_linear(pattern: str) -> None:
    """Python's ``re`` takes years for each of these."""
    start = time.process_time()
    assert not full_matcher(pattern)("a" * 20_000)
    assert time.process_time() - start < 5


REFUSED = {
    r"(.)\1": r"(?s)expected  a literal.*without references to groups.*found     \\1",
    "(?=a)b": r"(?s)syntax of RE2.*found     \?",
    "(?m)a": r"(?s)no flags but i and s.*found     \(\?m\)",
    "*a": r"(?s)syntax of RE2.*found     \*",
    "(a": r"(?s)a group that ends.*found     \(",
    "a)": r"(?s)a group that begins.*found     \)",
    "[a": r"(?s)syntax of RE2.*found     \[",
    "a**": r"(?s)one repetition of a part.*found     \*\*",
    r"\pL": r"(?s)expected  a literal, an escape.*found     \\p",
    r"a\Z": r"(?s)found     \\Z",
    "[[:^alpha:]]": r"(?s)expected  a literal",
    "[b-a]": r"(?s)expected  a literal",
    "a{1001}": "numbers of repetitions up to 1000, in order",
    "a{3,2}": "numbers of repetitions up to 1000, in order",
    "a{" + "9" * 5000 + "}": "numbers of repetitions up to 1000",
    "(a{1000}){1000}": "at most 5,000 states",
    "((){1000}){1000}": "at most 5,000 states",
    "(" * 1000 + ")" * 1000: "groups nested at most 50 deep",
    "a" * 10_000: "at most 5,000 states",
}


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda pattern: pattern[:20])
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[pattern]) as caught:
        functions.regex_full_match(np.array(["a"], dtype=object), pattern)
    assert "a regular expression is not supported" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_large_numbers_of_a_tfidf_take_no_time() -> None:
    """Words further apart than the text is long, and n-grams longer than it, do not occur."""
    found = functions.tfidf(np.array([1, 2, 3]), "TF", (1, 10**12), 10**12, [0, 1], [0, 1], [3, 1, 3])
    assert found.tolist() == [1, 1]
