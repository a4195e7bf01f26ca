"""ai.onnx.ml: exported scikit-learn pipelines and gradient-boosted trees; strings."""

from __future__ import annotations

import itertools
import re
from typing import Any, cast

import numpy as np
import torch

from burnt.errors import UnsupportedError
from burnt.onnx.functions.ml import compile_pattern, tokenize
from burnt.onnx.importer.build import Build
from burnt.onnx.importer.dtypes import to_tensor
from burnt.onnx.importer.node import Node, handler, to_text
from burnt.onnx.importer.source import MAPS

ML = "ai.onnx.ml"


def _list(node: Node, *names: str) -> list[Any]:
    """Return the first attribute that is given, as a list; text is decoded."""
    for found in [node.attr(name) for name in names]:
        if found is not None and len(found):
            values = found.reshape(-1).tolist() if isinstance(found, np.ndarray) else list(found)
            return [v.decode() if isinstance(v, bytes) else v for v in values]
    return []


def _labels(node: Node) -> list[Any]:
    names = "classlabels_strings", "classlabels_int64s", "classlabels_ints", "classlabels_strings"
    return _list(node, *names)


@handler("Binarizer", domain=ML)
def _binarizer(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    above = build.call("torch.gt", x, node.attr("threshold", 0.0), hint="above")
    return build.call("torch.Tensor.type_as", above, x, hint="binary")


@handler("Scaler", domain=ML)
def _scaler(build: Build, node: Node) -> Any:
    x = build.tensor(node, 0)
    offset, scale = (
        np.array(_list(node, name) or [d], np.float32) for name, d in (("offset", 0), ("scale", 1))
    )
    if build.dtype(node, 0) == torch.float64:
        x = build.call("ops.cast", x, torch.float32, hint="x")  # the op returns float32
    centred = build.call("torch.sub", x, build.parameter(offset, "offset", is_trained=False), hint="centred")
    return build.call("torch.mul", centred, build.parameter(scale, "scale", is_trained=False), hint="scaled")


@handler("Imputer", domain=ML)
def _imputer(build: Build, node: Node) -> Any:
    values = _list(node, "imputed_value_floats", "imputed_value_int64s")
    is_int = not node.attr("imputed_value_floats")
    node.ignore("replaced_value_int64", "replaced_value_float")  # of the other type
    missing = node.attr("replaced_value_int64", 0) if is_int else node.attr("replaced_value_float", 0.0)
    return build.call("ops.impute", build.tensor(node, 0), missing, values, hint="imputed")


@handler("OneHotEncoder", domain=ML)
def _one_hot(build: Build, node: Node) -> Any:
    categories = _list(node, "cats_strings", "cats_int64s")
    arguments = build.tensor(node, 0), categories, bool(node.attr("zeros", 1))
    return build.call("ops.one_hot_of", *arguments, device=build.device(), hint="one_hot")


@handler("FeatureVectorizer", domain=ML)
def _feature_vectorizer(build: Build, node: Node) -> Any:
    return build.call("ops.feature_vector", build.tensors_of(node), _list(node, "inputdimensions"), hint="x")


@handler("DictVectorizer", domain=ML)
def _dict_vectorizer(build: Build, node: Node) -> Any:
    vocabulary = _list(node, "string_vocabulary", "int64_vocabulary")
    return build.call("ops.vectorize", build.tensor(node, 0), vocabulary, device=build.device(), hint="x")


@handler("ZipMap", domain=ML)
@handler("ZipMap", domain=MAPS)
def _zip_map(build: Build, node: Node) -> Any:
    return build.call("ops.zip_map", build.tensor(node, 0), _labels(node), hint="scores")


def _look_up(build: Build, node: Node, keys: list[Any], values: list[Any], default: Any, dtype: Any) -> Any:
    table = keys, values, default, dtype
    return build.call("ops.lookup", build.tensor(node, 0), *table, device=build.device(), hint="encoded")


def _names_and_numbers(build: Build, node: Node, texts: list[Any], numbers: list[Any]) -> Any:
    """Replace texts by their numbers, or numbers by their texts, whichever the input has."""
    node.ignore("default_string", "default_int64", "default_float")  # of the other type
    if build.dtype(node, 0) is None:
        return _look_up(build, node, texts, numbers, node.attr("default_int64", -1), torch.int64)
    return _look_up(build, node, numbers, texts, node.text("default_string", "_Unused"), None)


@handler("CategoryMapper", domain=ML)
def _category_mapper(build: Build, node: Node) -> Any:
    return _names_and_numbers(build, node, _list(node, "cats_strings"), _list(node, "cats_int64s"))


@handler("LabelEncoder", domain=ML)
def _label_encoder(build: Build, node: Node) -> Any:
    if node.version < 2:
        texts = _list(node, "classes_strings")
        return _names_and_numbers(build, node, texts, list(range(len(texts))))
    node.ignore("default_string", "default_int64", "default_float")  # of other types
    keys = _list(node, "keys_strings", "keys_int64s", "keys_floats", "keys_tensor")
    values = _list(node, "values_strings", "values_int64s", "values_floats", "values_tensor")
    if node.version < 4:  # whose keys a NaN never equals
        pairs = [(k, v) for k, v in zip(keys, values, strict=True) if k == k]
        keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    kinds = {"values_strings": None, "values_int64s": torch.int64, "values_floats": torch.float32}
    given = [kind for name, kind in kinds.items() if node.attr(name) is not None]
    array, tensor = node.attr("values_tensor"), node.attr("default_tensor")
    if not given:
        given = [None if array.dtype.kind in "OSU" else to_tensor(array).dtype]
    dtype, name, fallback = given[0], "default_int64", cast(Any, -1)
    if dtype is None or dtype.is_floating_point:
        name, fallback = ("default_string", "_Unused") if dtype is None else ("default_float", -0.0)
    default = node.attr(name, fallback) if tensor is None else tensor.reshape(-1).tolist()[0]
    default = to_text(default) if dtype is None else default
    return _look_up(build, node, keys, values, default, dtype)


@handler("LinearRegressor", domain=ML)
def _linear_regressor(build: Build, node: Node) -> Any:
    scores = _linear(build, node, node.attr("targets", 1))
    return _post(build, node, scores)


def _linear(build: Build, node: Node, count: int) -> Any:
    coefficients, intercepts = _list(node, "coefficients"), _list(node, "intercepts")
    if count < 1 or not coefficients or len(coefficients) % count:
        raise node.refusal("coefficients", f"a multiple of {count} numbers, one row for each score")
    if intercepts and len(intercepts) != count:
        raise node.refusal("intercepts", f"{count} numbers, one for each score")
    weight = build.parameter(np.array(coefficients, np.float32).reshape(count, -1), "weight")
    bias = build.parameter(np.array(intercepts, np.float32), "bias") if intercepts else None
    return build.call("ops.linear_scores", build.tensor(node, 0), weight, bias, hint="scores")


def _post(build: Build, node: Node, scores: Any) -> Any:
    kind = node.text("post_transform", "NONE")
    return scores if kind == "NONE" else build.call("ops.post_transform", scores, kind, hint="scores")


@handler("LinearClassifier", domain=ML)
def _linear_classifier(build: Build, node: Node) -> Any:
    labels, intercepts = _labels(node), _list(node, "intercepts")
    kind = node.text("post_transform", "NONE")
    count = len(intercepts) or len(labels)
    scores = _linear(build, node, count)
    if count == 1 and len(labels) == 2:
        label = build.call("ops.classify", scores, labels, 0.0, hint="label")
        return label, build.call("ops.binary_scores", scores, kind, hint="scores")
    label = build.call("ops.classify", scores, labels, hint="label")
    return label, _post(build, node, scores)


def _numbers(node: Node, name: str) -> np.ndarray[Any, Any]:
    """Return an attribute of numbers: a list of float32, or a tensor."""
    tensor: np.ndarray[Any, Any] | None = node.attr(f"{name}_as_tensor")
    return np.array(_list(node, name), np.float32) if tensor is None else tensor


def _tables(build: Build, **arrays: Any) -> list[Any]:
    """Add the buffers of trees that `ops.tree_ensemble` takes, in its order."""
    kinds: dict[str, Any] = dict.fromkeys(("features", "modes", "yes", "no", "roots"), np.int64)
    kinds["missing"] = np.bool_
    return [build.parameter(np.asarray(array, kinds.get(name)), name) for name, array in arrays.items()]


_MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]


def _old_trees(
    build: Build, node: Node, prefix: str, count: int, targets: list[int]
) -> tuple[list[Any], bool]:
    """Return the buffers of TreeEnsembleRegressor and -Classifier, and whether all weights are positive.

    `prefix` begins the names of the leaves' attributes; `targets` has the target of each leaf.
    """
    trees, ids = _list(node, "nodes_treeids"), _list(node, "nodes_nodeids")
    number = {key: i for i, key in enumerate(zip(trees, ids, strict=True))}
    modes = _list(node, "nodes_modes")
    size = len(trees)
    is_leaf = [mode == "LEAF" for mode in modes]
    children = []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        following = _list(node, name)
        children.append([i if is_leaf[i] else number[trees[i], following[i]] for i in range(size)])
    splits, leaf_weights = _numbers(node, "nodes_values"), _numbers(node, f"{prefix}_weights")
    weights = np.full((size, count), np.nan, leaf_weights.dtype)
    places = zip(_list(node, f"{prefix}_treeids"), _list(node, f"{prefix}_nodeids"), targets, strict=True)
    for (tree, leaf, target), weight in zip(places, leaf_weights, strict=True):
        old = weights[number[tree, leaf], target]
        weights[number[tree, leaf], target] = weight if np.isnan(old) else old + weight
    missing = _list(node, "nodes_missing_value_tracks_true") or [0] * size
    first: dict[Any, int] = {}
    for i, tree in enumerate(trees):
        first.setdefault(tree, i)
    tables = _tables(
        build,
        features=_list(node, "nodes_featureids"),
        splits=splits,
        modes=[0 if leaf else _MODES.index(mode) for mode, leaf in zip(modes, is_leaf, strict=True)],
        yes=children[0],
        no=children[1],
        missing=missing,
        leaves=weights,
        roots=list(first.values()),
    )
    return tables, bool((leaf_weights >= 0).all())


@handler("TreeEnsembleRegressor", domain=ML)
def _tree_regressor(build: Build, node: Node) -> Any:
    tables, _ = _old_trees(build, node, "target", node.attr("n_targets", 1), _list(node, "target_ids"))
    aggregate = node.text("aggregate_function", "SUM")
    base = _list(node, "base_values", "base_values_as_tensor")
    scores = build.call("ops.tree_ensemble", build.tensor(node, 0), *tables, aggregate, base, hint="scores")
    return _post(build, node, scores)


@handler("TreeEnsembleClassifier", domain=ML)
def _tree_classifier(build: Build, node: Node) -> Any:
    labels, kind = _labels(node), node.text("post_transform", "NONE")
    targets = _list(node, "class_ids")
    is_single = len(labels) == 2 and len(set(targets)) == 1
    is_binary = is_single and set(targets) == {0}  # only the score of the second class
    count, targets = (1, [0] * len(targets)) if is_binary else (len(labels), targets)
    tables, positive = _old_trees(build, node, "class", count, targets)
    base = _list(node, "base_values", "base_values_as_tensor")
    if is_binary and len(base) > 1:
        raise UnsupportedError(
            "a TreeEnsembleClassifier of one score has more base values",
            where=node.name,
            expected="one base value",
            found=f"{len(base)}",
        )
    scores = build.call("ops.tree_ensemble", build.tensor(node, 0), *tables, "SUM", base, hint="scores")
    threshold = ((0.5 if positive else 0.0),) if is_single else ()
    label = build.call("ops.classify", scores, labels, *threshold, hint="label")
    if not is_binary:
        return label, _post(build, node, scores)
    both = "PROBABILITY" if positive and kind != "LOGISTIC" else kind
    return label, build.call("ops.binary_scores", scores, both, hint="scores")


@handler("TreeEnsemble", domain=ML)
def _tree_ensemble(build: Build, node: Node) -> Any:
    interior, targets = len(_list(node, "nodes_featureids")), node.attr("n_targets")
    leaf_targets, leaf_weights = _list(node, "leaf_targetids"), node.attr("leaf_weights")
    size = interior + len(leaf_targets)

    def joined(name: str, fill: Any, dtype: Any) -> Any:
        values = np.array(_list(node, name) or [0] * interior, dtype)
        return np.concatenate([values, np.full(len(leaf_targets), fill, dtype)])

    own = np.arange(size)
    children = []
    for kind in ("true", "false"):
        following = np.array(_list(node, f"nodes_{kind}nodeids"), np.int64)
        at_leaf = np.array(_list(node, f"nodes_{kind}leafs"), np.int64)
        children.append(np.concatenate([following + interior * at_leaf, own[interior:]]))
    weights = np.full((size, targets), np.nan, leaf_weights.dtype)
    weights[own[interior:], leaf_targets] = leaf_weights
    modes = joined("nodes_modes", 0, np.int64)
    tables = _tables(
        build,
        features=joined("nodes_featureids", 0, np.int64),
        splits=joined("nodes_splits", 0, leaf_weights.dtype),
        modes=modes,
        yes=children[0],
        no=children[1],
        missing=joined("nodes_missing_value_tracks_true", 0, np.bool_),
        leaves=weights,
        roots=_list(node, "tree_roots"),
    )
    extra = {}
    sets = node.attr("membership_values")
    if sets is not None and (modes == 6).any():
        groups = np.split(sets, np.flatnonzero(np.isnan(sets)))
        groups = [group[~np.isnan(group)] for group in groups]
        members = np.full((size, max(map(len, groups))), np.nan, leaf_weights.dtype)
        for place, group in zip(np.flatnonzero(modes == 6), groups, strict=False):
            members[place, : len(group)] = group
        extra["members"] = build.parameter(members, "members")
    aggregate = ["AVERAGE", "SUM", "MIN", "MAX"][node.attr("aggregate_function", 1)]
    scores = build.call(
        "ops.tree_ensemble", build.tensor(node, 0), *tables, aggregate, hint="scores", **extra
    )
    kind = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"][node.attr("post_transform", 0)]
    return scores if kind == "NONE" else build.call("ops.post_transform", scores, kind, hint="scores")


def _kernel(build: Build, node: Node, count: int) -> Any:
    gamma, coef0, degree = (_list(node, "kernel_params") + [0.0] * 3)[:3]
    vectors = np.array(_list(node, "support_vectors"), np.float32).reshape(count, -1)
    kind = node.text("kernel_type", "LINEAR")
    support = build.parameter(vectors, "support")
    return build.call(
        "ops.kernel_scores", build.tensor(node, 0), support, kind, gamma, coef0, degree, hint="kernel"
    )


@handler("SVMRegressor", domain=ML)
def _svm_regressor(build: Build, node: Node) -> Any:
    rho = _list(node, "rho")
    count = node.attr("n_supports", 0)
    node.ignore("kernel_params")  # of no support vectors
    weights = np.array(_list(node, "coefficients"), np.float32).reshape(1, -1)
    weight, bias = build.parameter(weights, "weight"), build.parameter(np.array(rho, np.float32), "bias")
    kernel = _kernel(build, node, count) if count else build.tensor(node, 0)
    scores = build.call("ops.linear_scores", kernel, weight, bias, hint="scores")
    if node.attr("one_class", 0):
        return build.call(
            "torch.where", build.call("torch.gt", scores, 0, hint="inside"), 1.0, -1.0, hint="side"
        )
    return _post(build, node, scores)


@handler("SVMClassifier", domain=ML)
def _svm_classifier(build: Build, node: Node) -> Any:
    counts = _list(node, "vectors_per_class")
    if not counts:
        raise UnsupportedError(
            "an SVMClassifier without support vectors is not supported",
            where=node.name,
            expected="vectors_per_class; LinearClassifier is the op for linear models",
            found="none",
        )
    classes, vectors = len(counts), sum(counts)
    labels = _labels(node) or list(range(classes))
    coefficients = np.array(_list(node, "coefficients"), np.float32).reshape(classes - 1, vectors)
    ends = np.cumsum(counts)
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    pairs = list(itertools.combinations(range(classes), 2))
    weights = np.zeros((len(pairs), vectors), np.float32)
    for row, (i, j) in zip(weights, pairs, strict=True):
        row[spans[i]], row[spans[j]] = coefficients[j - 1, spans[i]], coefficients[i, spans[j]]
    weight = build.parameter(weights, "weight")
    bias = build.parameter(np.array(_list(node, "rho"), np.float32), "bias")
    kernel = _kernel(build, node, vectors)
    scores = build.call("ops.linear_scores", kernel, weight, bias, hint="scores")
    label = build.call(
        "ops.classify", build.call("ops.pair_votes", scores, hint="votes"), labels, hint="label"
    )
    slopes, offsets = _list(node, "prob_a"), _list(node, "prob_b")
    if slopes:
        scores = build.call("ops.pair_probabilities", scores, slopes, offsets, hint="scores")
    elif len(pairs) == 1:
        return label, build.call(
            "ops.binary_scores", scores, node.text("post_transform", "NONE"), hint="scores"
        )
    return label, _post(build, node, scores)


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
