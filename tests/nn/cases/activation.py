from torch import nn as tnn

from tests.nn.case import Case, vectors

CASES = [
    Case("Relu", {}, lambda: tnn.ReLU(), vectors),
    Case("Gelu", {}, lambda: tnn.GELU(), vectors),
    Case("Gelu", {"approximate": "tanh"}, lambda: tnn.GELU("tanh"), vectors, "-tanh"),
    Case("Silu", {}, lambda: tnn.SiLU(), vectors),
]
