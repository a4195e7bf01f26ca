"""The LitServe server that `serve.py` measures: `python litserve_server.py PORT WINDOW`.

A file of its own, because LitServe's processes import the class of its API by name.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from serve import MAX_BATCH, mlp


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.model = mlp()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # FastAPI would take a type for a schema
        return torch.tensor(request["input"])

    def batch(self, inputs: list[Any]) -> Any:
        return torch.stack(inputs)

    def predict(self, x: Any) -> Any:
        with torch.inference_mode():
            return self.model(x)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output: Any) -> Any:
        return {"output": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(
        Api(max_batch_size=MAX_BATCH, batch_timeout=float(sys.argv[2])), accelerator="cpu"
    )
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
