"""Generated kernels under triton-viz's sanitizer, which looks for places outside of the tensors symbolically.

``TRITON_INTERPRET=1 python -m tests.codegen.triton.sanitize`` runs the families;
with ``--broken`` a kernel whose masks are taken away, which it has to find.
"""

from __future__ import annotations

import re
import sys
import warnings

import torch
import torch.nn.functional as F
import triton_viz
from triton.runtime.errors import InterpreterError
from triton_viz.clients import Sanitizer

from burnt.codegen import triton_launch, triton_math
from burnt.codegen.function import Function
from burnt.codegen.target import TRITON

CASES = {
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)), (37, 13)),
    "softmax": (lambda x: torch.softmax(x, -1), (5, 70)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), (7, 50), (50,)),
    "transposed": (lambda x, y: x.t() + y, (33, 20), (20, 33)),
    "padded": (lambda x: F.pad(x, (1, 2)).relu(), (5, 7)),
    "columns": (lambda x: x.sum(0), (70, 20)),
    "few rows": (lambda x: x.var(-1), (2, 40_000)),
    "rope": (lambda x, c: torch.cat([x[..., :4] * c, x[..., 4:] * c], -1), (3, 5, 8), (5, 4)),
}


def main() -> None:
    plain = triton_launch.load
    broken = "--broken" in sys.argv
    traced: dict[str, dict[str, object]] = {}

    def load(text: str) -> dict[str, object]:
        """The functions of a text; what is launched is sanitized, and exits with what is found."""
        if broken:
            text = re.sub(r", mask=in_\w+( & in_\w+)*(, other=0)?", "", text)
        text = re.sub(r"tl\.reduce\((.*), ([01]), \w+(, keep_dims=True)?\)", r"tl.max(\1, \2\3)", text)
        if text not in traced:
            space = plain(text)
            # The sanitizer cannot see through functions that ask for a dtype, nor folds by functions of one's
            # own. Places do not depend on what they compute.
            imported = {name for name in vars(triton_math) if name in space and name[0] != "_"}
            space |= dict.fromkeys(imported - {"tl", "triton"}, lambda a, *_: a)
            for name in re.findall(r"^def (\w+)", text, re.M):
                space[name] = triton_viz.trace(client=Sanitizer(abort_on_error=True))(space[name])
            traced[text] = space
        return traced[text]

    triton_viz.config.enable_sanitizer = True
    triton_launch.load = load  # type: ignore[assignment]
    for name, (fn, *shapes) in CASES.items():
        args = [torch.randn(shape) for shape in shapes]
        try:
            Function(fn, target=TRITON)(*args)
        except (NotImplementedError, InterpreterError) as error:
            print(f"{name}: the sanitizer gives up: {error}")
        else:
            print(f"{name}: nothing outside")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with torch.no_grad():
        main()
