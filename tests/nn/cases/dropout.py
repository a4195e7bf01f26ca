from torch import nn as tnn

from tests.nn.case import Case, vectors

CASES = [
    Case("Dropout", {"p": 0.3}, lambda: tnn.Dropout(0.3), vectors),
]
