# ruff: noqa: E501
"""Write small ONNX files of other makers: scikit-learn, LightGBM, XGBoost, Keras, and models of old operator sets.

    pip install skl2onnx onnxmltools onnxconverter-common lightgbm xgboost-cpu keras
    python tests/onnx/files/make_others.py [NAME ...]

Each file is next to this script: ``<name>.<maker>.onnx.xz``. They were made with skl2onnx 1.20, onnxmltools 1.16,
LightGBM 4.7, XGBoost 3.2, Keras 3.15, onnx 1.23 and scikit-learn 1.9. Files of old operator sets are built with onnx.helper in the
way that exporters of their time wrote them.
"""

from __future__ import annotations

import lzma
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent


def _data(classes: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 4)).astype(np.float32)
    score = x @ rng.standard_normal((4, classes))
    return x, score.argmax(1).astype(np.int64)


def _sklearn(
    make: Callable[[], Any], *, classes: int = 3, regression: bool = False, zipmap: bool = False
) -> Any:
    from skl2onnx import to_onnx

    x, y = _data(classes)
    model = make().fit(x, x[:, 0] * 2 + np.abs(x[:, 1]) if regression else y)
    options = None if regression else {id(model): {"zipmap": zipmap}}
    return to_onnx(model, x[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})


def _pipeline(*steps: Any) -> Any:
    from sklearn.pipeline import make_pipeline

    return make_pipeline(*steps)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    return _pipeline(StandardScaler(), LogisticRegression())


def _mlp() -> Any:
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import MinMaxScaler

    return _pipeline(MinMaxScaler(), MLPClassifier((6,), max_iter=20, random_state=0))


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(4, max_depth=3, random_state=0)


def _forest_regressor() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(4, max_depth=3, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(n_estimators=4, max_depth=2, random_state=0)


def _linear() -> Any:
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import Normalizer

    return _pipeline(Normalizer(), Ridge())


def _pca() -> Any:
    from sklearn.decomposition import PCA
    from sklearn.neighbors import KNeighborsClassifier

    return _pipeline(PCA(2, random_state=0), KNeighborsClassifier(3))


def _gaps() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return data with missing values."""
    x, y = _data()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    return x, y


def _convert(model: Any, types: list[tuple[str, Any]], options: dict[int, Any] | None = None) -> Any:
    """Convert a fitted model of scikit-learn with inputs of the given names and types."""
    from skl2onnx import convert_sklearn

    opsets = {"": 18, "ai.onnx.ml": 3}
    options = {id(model): {"zipmap": False}} if options is None else options
    return convert_sklearn(model, initial_types=types, options=options, target_opset=opsets)


def _with_gaps() -> Any:
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(4, max_depth=4, random_state=0).fit(*_gaps())
    return _convert(model, [("gaps", FloatTensorType([None, 4]))])


TEXTS = (
    "a good film", "good actors in a good film", "what a film!", "a very good day", "I like it, a lot",
    "a bad film", "bad actors in a bad film", "what a day...", "a very bad day", "I do not like it",
)  # fmt: skip


def _text(kind: str) -> Any:
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB

    vectorizer, model = {
        "tfidf": (TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression()),
        "chars": (TfidfVectorizer(analyzer="char", ngram_range=(2, 3)), LogisticRegression()),
        "counts": (CountVectorizer(stop_words=["a", "in"], binary=True), MultinomialNB()),
    }[kind]
    pipeline = _pipeline(vectorizer, model).fit(TEXTS, ["good"] * 5 + ["bad"] * 5)
    # The default, en_US.UTF-8, is not installed on each machine that runs ONNX Runtime.
    options = {id(vectorizer): {"locale": "C"}, id(pipeline): {"zipmap": False}}
    return _convert(pipeline, [("text", StringTensorType([None]))], options)


def _columns() -> Any:
    import pandas
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    table = pandas.DataFrame({
        "color": rng.choice(["red", "green", "blue"], 60),
        "visits": rng.integers(0, 50, 60),
        "width": rng.standard_normal(60) * 3 + 1,
        "height": rng.standard_normal(60) - 2,
    })  # fmt: skip
    columns = ColumnTransformer([
        ("category", OneHotEncoder(handle_unknown="ignore"), ["color"]),
        ("number", StandardScaler(), ["visits", "width", "height"]),
    ])  # fmt: skip
    model = _pipeline(columns, LogisticRegression())
    model.fit(table, np.where(table.color == "red", table.visits > 20, table.width > 1).astype(np.int64))
    kinds = {"color": StringTensorType, "visits": Int64TensorType}
    types = [(name, kinds.get(name, FloatTensorType)([None, 1])) for name in table.columns]
    return _convert(model, types)


def _svc() -> Any:
    from sklearn.svm import SVC

    return SVC(gamma=0.3)


def _svr() -> Any:
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    return _pipeline(StandardScaler(), SVR(kernel="poly", degree=2, coef0=1.0, C=10.0))


def _bayes() -> Any:
    from sklearn.naive_bayes import GaussianNB

    return GaussianNB()


def _unlabeled(kind: str) -> Any:
    from skl2onnx import to_onnx
    from sklearn.cluster import KMeans
    from sklearn.ensemble import IsolationForest

    x, _ = _data()
    if kind == "kmeans":
        model: Any = KMeans(3, n_init=1, random_state=0)
    else:
        model = IsolationForest(n_estimators=4, max_samples=16, random_state=0)
    return to_onnx(model.fit(x), x[:1], target_opset={"": 18, "ai.onnx.ml": 3})


def _digits_mlp() -> Any:
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler

    x, y = load_digits(return_X_y=True)
    model = _pipeline(StandardScaler(), MLPClassifier((16, 12), max_iter=60, random_state=0)).fit(x, y)
    return _convert(model, [("X", FloatTensorType([None, 64]))])


def _digits_convnet(exporter: str) -> Any:
    """A small residual network of torch, trained to 99 % on scikit-learn's digits."""
    import torch
    from make_transformers import Example, export
    from sklearn.datasets import load_digits
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(channels)
            self.act = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = x + self.act(self.norm(self.conv(x)))
            return out

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.SiLU(), Residual(8), Residual(8), nn.MaxPool2d(2), Residual(8),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10),
    )  # fmt: skip
    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(4):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    model.eval()
    print(f"digits: {(model(x).argmax(1) == y).float().mean():.1%}")
    return export(Example(model, {"image": x[:2]}, ("batch",), "logits"), exporter)


def _xgboost(kind: str) -> Any:
    import xgboost
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = _gaps() if kind == "gaps" else _data(2 if kind == "binary" else 3)
    maker = xgboost.XGBRegressor if kind == "regressor" else xgboost.XGBClassifier
    target = x[:, 0] * 2 + np.abs(x[:, 1]) if kind == "regressor" else y
    model = maker(n_estimators=4, max_depth=3, random_state=0).fit(x, target)
    name = "gaps" if kind == "gaps" else "input"
    return convert_xgboost(model, initial_types=[(name, FloatTensorType([None, 4]))], target_opset=15)


def _lightgbm(regression: bool) -> Any:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = _data()
    settings = {"n_estimators": 4, "num_leaves": 4, "min_child_samples": 2, "verbose": -1}
    kind = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
    model = kind(**settings).fit(x, x[:, 0] * 2 if regression else y)
    return convert_lightgbm(
        model,
        initial_types=[("input", FloatTensorType([None, 4]))],
        target_opset=15,
        **({} if regression else {"zipmap": False}),
    )


def _keras(kind: str) -> Any:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    if kind == "mlp":
        model = keras.Sequential([
            keras.Input((6,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.1),
            layers.Dense(3, activation="softmax"),
        ])  # fmt: skip
    else:
        model = keras.Sequential([
            keras.Input((12, 12, 3)), layers.Conv2D(4, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.SeparableConv2D(6, 3, activation="swish"), layers.GlobalAveragePooling2D(), layers.Dense(3),
        ])  # fmt: skip
    model(np.zeros((2, *model.input_shape[1:]), np.float32))  # the export wants a model that has been called
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.export(str(path), format="onnx", verbose=False)
        return onnx.load(path)


def _old(opset: int) -> Any:
    """A small ConvNet with a recurrent head, as exporters wrote it at a version of the operator set."""
    rng = np.random.default_rng(opset)
    weights: dict[str, np.ndarray[Any, Any]] = {
        "conv1.weight": rng.standard_normal((4, 1, 3, 3)) / 3,
        "conv1.bias": rng.standard_normal(4),
        "bn1.weight": rng.random(4) + 0.5,
        "bn1.bias": rng.standard_normal(4),
        "bn1.running_mean": rng.standard_normal(4),
        "bn1.running_var": rng.random(4) + 0.5,
        "fc.weight": rng.standard_normal((5, 64)) / 8,
        "fc.bias": rng.standard_normal(5),
    }
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    ints: dict[str, np.ndarray[Any, Any]] = {"flat": np.array([0, -1], np.int64)}
    nodes = [
        helper.make_node(
            "Conv", ["input", "conv1.weight", "conv1.bias"], ["c"], pads=[1] * 4, kernel_shape=[3, 3]
        ),
        helper.make_node("BatchNormalization", ["c", *list(weights)[2:6]], ["b"], epsilon=1e-5, momentum=0.9),
        helper.make_node("Relu", ["b"], ["r"]),
    ]

    def with_ints(
        name: str, values: list[int], key: str, inputs: list[str]
    ) -> tuple[list[str], dict[str, Any]]:
        """Axes and the like are attributes in old versions and inputs in newer ones."""
        since = {"pads": 11, "scales": 9, "slice": 10, "axes": 13}[key]
        if opset < since:
            return inputs, {}
        ints[name] = np.array(values, np.int64)
        return [*inputs, name], {}

    inputs, attributes = with_ints("pads", [0, 0, 1, 1, 0, 0, 1, 1], "pads", ["r"])
    attributes = {"pads": [0, 0, 1, 1, 0, 0, 1, 1]} if len(inputs) == 1 else {}
    nodes.append(helper.make_node("Pad", inputs, ["p"], mode="constant", **attributes))
    nodes.append(helper.make_node("MaxPool", ["p"], ["m"], kernel_shape=[2, 2], strides=[2, 2]))
    scales = [1.0, 1.0, 2.0, 2.0]
    if opset < 9:
        nodes.append(helper.make_node("Upsample", ["m"], ["u"], mode="nearest", scales=scales))
    else:
        weights["scales"] = np.array(scales, np.float32)
        if opset < 10:
            nodes.append(helper.make_node("Upsample", ["m", "scales"], ["u"], mode="nearest"))
        elif opset < 11:
            nodes.append(helper.make_node("Resize", ["m", "scales"], ["u"], mode="nearest"))
        else:
            weights["roi"] = np.zeros(0, np.float32)
            extra = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            nodes.append(helper.make_node("Resize", ["m", "roi", "scales"], ["u"], mode="nearest", **extra))
    if opset < 10:
        nodes.append(helper.make_node("Slice", ["u"], ["s"], axes=[2, 3], starts=[1, 1], ends=[9, 9]))
    else:
        ints |= {"starts": np.array([1, 1]), "ends": np.array([9, 9]), "slice_axes": np.array([2, 3])}
        nodes.append(helper.make_node("Slice", ["u", "starts", "ends", "slice_axes"], ["s"]))
    low = {} if opset >= 11 else {"min": -1.0, "max": 1.5}
    bounds = ["low", "high"] if opset >= 11 else []
    if opset >= 11:
        weights |= {"low": np.array(-1.0, np.float32), "high": np.array(1.5, np.float32)}
    nodes += [
        helper.make_node("Clip", ["s", *bounds], ["k"], **low),
        helper.make_node("AveragePool", ["k"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Dropout", ["a"], ["d"], **({"ratio": 0.5} if opset < 12 else {})),
        helper.make_node("Reshape", ["d", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["probabilities"], axis=1),
    ]
    if opset < 13:
        nodes.append(helper.make_node("ReduceSum", ["g"], ["total"], axes=[1], keepdims=0))
        nodes.append(helper.make_node("Unsqueeze", ["total"], ["sum"], axes=[0]))
    else:
        ints |= {"one": np.array([1]), "zero": np.array([0])}
        nodes.append(helper.make_node("ReduceSum", ["g", "one"], ["total"], keepdims=0))
        nodes.append(helper.make_node("Unsqueeze", ["total", "zero"], ["sum"]))
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights | ints).items()]
    graph_inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])]
    if opset < 9:  # the IR version before 4 wants initializers among the inputs
        graph_inputs += [
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            for tensor in initializers
        ]
    outputs = [
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 5]),
        helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, "batch"]),
    ]
    graph = helper.make_graph(nodes, "old", graph_inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 3 if opset < 9 else 6
    onnx.checker.check_model(model)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "logistic.sklearn": lambda: _sklearn(_logistic),
    "logistic_zipmap.sklearn": lambda: _sklearn(_logistic, zipmap=True),
    "binary.sklearn": lambda: _sklearn(_logistic, classes=2),
    "mlp.sklearn": lambda: _sklearn(_mlp),
    "forest.sklearn": lambda: _sklearn(_forest),
    "forest_regressor.sklearn": lambda: _sklearn(_forest_regressor, regression=True),
    "boosting.sklearn": lambda: _sklearn(_boosting),
    "ridge.sklearn": lambda: _sklearn(_linear, regression=True),
    "pca_neighbors.sklearn": lambda: _sklearn(_pca),
    "gaps.sklearn": _with_gaps,
    "tfidf.sklearn": lambda: _text("tfidf"),
    "chars.sklearn": lambda: _text("chars"),
    "counts.sklearn": lambda: _text("counts"),
    "columns.sklearn": _columns,
    "svc.sklearn": lambda: _sklearn(_svc),
    "svr.sklearn": lambda: _sklearn(_svr, regression=True),
    "kmeans.sklearn": lambda: _unlabeled("kmeans"),
    "isolation_forest.sklearn": lambda: _unlabeled("isolation_forest"),
    "naive_bayes.sklearn": lambda: _sklearn(_bayes),
    "digits_mlp.sklearn": _digits_mlp,
    "digits_convnet.dynamo": lambda: _digits_convnet("dynamo"),
    "digits_convnet.legacy": lambda: _digits_convnet("legacy"),
    "classifier.xgboost": lambda: _xgboost("classifier"),
    "binary.xgboost": lambda: _xgboost("binary"),
    "regressor.xgboost": lambda: _xgboost("regressor"),
    "gaps.xgboost": lambda: _xgboost("gaps"),
    "classifier.lightgbm": lambda: _lightgbm(False),
    "regressor.lightgbm": lambda: _lightgbm(True),
    "mlp.keras": lambda: _keras("mlp"),
    "convnet.keras": lambda: _keras("convnet"),
    **{f"opset{opset}.helper": (lambda opset=opset: _old(opset)) for opset in range(7, 14)},
}  # fmt: skip


def main() -> None:
    """Write the files named on the command line, or all."""
    from make_transformers import strip

    for name in sys.argv[1:] or MODELS:
        try:
            model = MODELS[name]()
        except Exception as error:  # the others are written all the same
            print(f"{name:26} failed: {type(error).__name__}: {str(error)[:300]}")
            continue
        strip(model)
        packed = lzma.compress(model.SerializeToString())
        (HERE / f"{name}.onnx.xz").write_bytes(packed)
        print(f"{name:26} {len(packed):,} bytes", flush=True)


if __name__ == "__main__":
    main()
