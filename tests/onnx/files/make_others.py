# ruff: noqa: E501
"""Write small ONNX files of other makers: scikit-learn, LightGBM, Keras, and models of old operator sets.

    pip install skl2onnx onnxmltools onnxconverter-common lightgbm keras
    python tests/onnx/files/make_others.py [NAME ...]

Each file is beside this script: ``<name>.<maker>.onnx.xz``. They were made with skl2onnx 1.20, onnxmltools 1.16,
LightGBM 4.7, Keras 3.15, onnx 1.23 and scikit-learn 1.9. Files of old operator sets are built with onnx.helper in the
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
