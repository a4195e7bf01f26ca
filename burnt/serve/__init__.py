"""serve: models over HTTP, in batches: runs in burnt, ONNX files in ONNX Runtime.

A request passes the files in this order: `bodies` reads it, `wire` makes arrays of it, `schema` checks them,
`device` puts requests of equal shapes together and runs the model, `wire` makes the answer. An ONNX file is
served without torch. The packages that all this needs come with ``pip install burnt[serve]``.

>>> import torch
>>> from burnt.serve import RunModel, Settings, create_app
>>> model = RunModel(torch.nn.Linear(2, 1), torch.zeros(1, 2))
>>> app = create_app({"linear": model}, Settings(max_batch=8))
>>> [route.path for route in app.routes][:2]
['/v1/predict', '/v1/schema']
"""

from typing import TYPE_CHECKING

from burnt._lazy import attach

if TYPE_CHECKING:
    from burnt.serve.app import create_app
    from burnt.serve.container import write_container
    from burnt.serve.onnx_model import OnnxModel
    from burnt.serve.process import serve
    from burnt.serve.run_model import RunModel
    from burnt.serve.servable import Servable
    from burnt.serve.service import Settings

_HOMES = {
    "OnnxModel": "burnt.serve.onnx_model",
    "RunModel": "burnt.serve.run_model",
    "Servable": "burnt.serve.servable",
    "Settings": "burnt.serve.service",
    "create_app": "burnt.serve.app",
    "serve": "burnt.serve.process",
    "write_container": "burnt.serve.container",
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(globals(), _HOMES)

__all__ = ["OnnxModel", "RunModel", "Servable", "Settings", "create_app", "serve", "write_container"]
