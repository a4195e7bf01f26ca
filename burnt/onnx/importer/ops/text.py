"""Strings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from burnt.onnx.functions.text import compile_pattern, tokenize
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler


@handler("RegexFullMatch")
def _regex_full_match(build: Build, node: Node) -> Any:
    pattern = node.text("pattern", "")
    compile_pattern(pattern)  # refuses what is not supported during the import
    x = build.tensor(node, 0)
    return build.call("ops.regex_full_match", x, pattern, device=build.device(), hint="matches")


@handler("StringNormalizer")
def _string_normalizer(build: Build, node: Node) -> Any:
    if re.match("(az|lt|tr)", node.text("locale", "")):
        raise node.refusal("locale", "a language whose letters change case as in English")
    action, words = node.attr("case_change_action", "NONE"), node.attr("stopwords", [])
    options = action, bool(node.attr("is_case_sensitive", 0)), words
    return build.call("ops.normalize_strings", build.tensor(node, 0), *options, hint="text")


@handler("Tokenizer", domain="com.microsoft")
def _tokenizer(build: Build, node: Node) -> Any:
    pattern, separators = node.attr("tokenexp", ""), node.attr("separators", [])
    tokenize(np.empty(0, object), pattern, separators)  # refuses what is not supported during the import
    return build.call(
        "ops.tokenize",
        build.tensor(node, 0),
        pattern=pattern,
        separators=separators,
        min_chars=node.attr("mincharnum", 1),
        pad=node.attr("pad_value", ""),
        with_marks=bool(node.attr("mark", 0)),
        hint="tokens",
    )


@handler("TfIdfVectorizer")
def _tfidf(build: Build, node: Node) -> Any:
    return build.call(
        "ops.tfidf",
        build.tensor(node, 0),
        node.attr("mode"),
        (node.attr("min_gram_length"), node.attr("max_gram_length")),
        node.attr("max_skip_count"),
        node.attr("ngram_counts"),
        node.attr("ngram_indexes"),
        node.attr("pool_strings") or node.attr("pool_int64s"),
        node.attr("weights", []),
        device=build.device(),
        hint="counts",
    )
