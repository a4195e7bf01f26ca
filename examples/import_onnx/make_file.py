"""Make digits.onnx: a network that scikit-learn trains on 200 pictures, written by skl2onnx.

pip install skl2onnx && python examples/import_onnx/make_file.py
"""

from pathlib import Path

from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

images, labels = load_digits(return_X_y=True)
images = images.astype("float32")
pipeline = make_pipeline(StandardScaler(), MLPClassifier((64, 32), max_iter=150, random_state=0))
pipeline.fit(images[:200], labels[:200])
model = to_onnx(pipeline, images[:1], options={"zipmap": False}, target_opset=18)
Path(__file__).with_name("digits.onnx").write_bytes(model.SerializeToString())
