"""serve: models over HTTP, in batches: runs in burnt, ONNX files in ONNX Runtime.

A request passes the files in this order: `app` reads it, `wire` makes arrays of it, `schema` checks them,
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
    from burnt.serve.app import create_app as create_app
    from burnt.serve.container import write_container as write_container
    from burnt.serve.onnx_model import OnnxModel as OnnxModel
    from burnt.serve.process import serve as serve
    from burnt.serve.run_model import RunModel as RunModel
    from burnt.serve.servable import Servable as Servable
    from burnt.serve.service import Settings as Settings

_NAMES = {
    "burnt.serve.app": "create_app",
    "burnt.serve.container": "write_container",
    "burnt.serve.onnx_model": "OnnxModel",
    "burnt.serve.process": "serve",
    "burnt.serve.run_model": "RunModel",
    "burnt.serve.servable": "Servable",
    "burnt.serve.service": "Settings",
}
if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = attach(globals(), _NAMES)
