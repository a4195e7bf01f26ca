from torch import nn as tnn

from tests.nn.case import Case, images

CASES = [
    Case("Flatten", {}, lambda: tnn.Flatten(), images),
    Case("Flatten", {"start_dim": 0, "end_dim": -2}, lambda: tnn.Flatten(0, -2), images, "-front"),
]
