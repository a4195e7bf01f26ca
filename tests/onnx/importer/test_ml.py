"""ai.onnx.ml: exported scikit-learn models, next to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("skl2onnx")
pytest.importorskip("onnxruntime")

import skl2onnx
from sklearn import ensemble, linear_model, pipeline, preprocessing, svm, tree

from burnt.onnx import backend

MODELS: dict[str, Callable[[], Any]] = {
    "linear_regression": linear_model.LinearRegression,
    "logistic": lambda: linear_model.LogisticRegression(max_iter=50),
    "logistic_binary": lambda: linear_model.LogisticRegression(max_iter=50),
    "scaler_pipeline": lambda: pipeline.make_pipeline(
        preprocessing.StandardScaler(), preprocessing.Normalizer(), linear_model.Ridge()
    ),
    "tree": lambda: tree.DecisionTreeRegressor(max_depth=4, random_state=0),
    "tree_classifier": lambda: tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "tree_binary": lambda: tree.DecisionTreeClassifier(max_depth=4, random_state=0),
    "forest": lambda: ensemble.RandomForestClassifier(5, max_depth=3, random_state=0),
    "forest_regressor": lambda: ensemble.RandomForestRegressor(5, max_depth=3, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=5, random_state=0),
    "boosting_binary": lambda: ensemble.GradientBoostingClassifier(n_estimators=5, random_state=0),
    "svr_rbf": lambda: svm.SVR(kernel="rbf"),
    "svr_poly": lambda: svm.SVR(kernel="poly"),
    "svc": lambda: svm.SVC(kernel="rbf"),
    "svc_binary": lambda: svm.SVC(kernel="linear"),
    "svc_probability": lambda: svm.SVC(kernel="poly", probability=True, random_state=0),
    "svc_probability_binary": lambda: svm.SVC(kernel="sigmoid", probability=True, random_state=0),
    "one_class_svr": lambda: svm.OneClassSVM(nu=0.3),
    "minmax": lambda: pipeline.make_pipeline(preprocessing.MinMaxScaler(), linear_model.LinearRegression()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_sklearn_model_equals_onnxruntime(name: str) -> None:
    """Labels are equal; scores to 1e-5 of their scale."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    score = x @ rng.standard_normal(4) + 0.3 * rng.standard_normal(60)
    is_regression = any(word in name for word in ("regress", "svr", "minmax", "scaler")) or name in (
        "tree",
        "boosting",
    )
    edges = [0.0] if "binary" in name else [-0.7, 0.7]
    model = MODELS[name]().fit(x, score if is_regression else np.digitize(score, edges))
    proto = skl2onnx.to_onnx(model, x[:1], options=None if is_regression else {"zipmap": False})
    want = ort.InferenceSession(proto.SerializeToString()).run(None, {"X": x})
    found = backend.prepare(proto).run([x])
    for a, b in zip(want, found, strict=True):
        assert a.shape == b.shape
        if a.dtype.kind in "iu":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(b, a, atol=1e-5 * max(1.0, float(np.abs(a).max())))
