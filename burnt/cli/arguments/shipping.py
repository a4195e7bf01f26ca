"""The arguments of `burnt export`, `import`, `page`, `c`, `serve`, `quantize`, `show` and `convert`."""

from __future__ import annotations

from burnt.cli.arguments.parser import RUN_HELP, SIZE, Parser, pair, real, whole

_EXPORT_EXAMPLES = """\
examples:
  burnt export digits -o digits.onnx
  burnt export digits -o digits.onnx --weights float16 --checkpoint last
  burnt export gpt -o gpt.onnx --opset 23 --open-axis tokens:1=length
  burnt export runs/old -o old.onnx --model nets.py:Net --example 1x3x32x32

The file is run in ONNX Runtime next to the model before the command returns.
The code that the run names is imported. Needs: pip install burnt[onnx]
"""

_IMPORT_EXAMPLES = """\
examples:
  burnt import bert.onnx --out bert
  burnt import model.onnx --out nets/segmenter --name Segmenter

Writes OUT/__init__.py, a burnt Module in Python, and OUT/weights.safetensors:
`import bert; model = bert.load()`. Nothing in the file is executed.
Needs: pip install burnt[onnx]
"""

_PAGE_EXAMPLES = """\
examples:
  burnt page digits -o digits.html
  burnt page digits -o digits.html --weights float16
  burnt page iris -o iris.html --fields "sepal length,petal length" --classes setosa,virginica

One file, without a server or a network. The code that the run names is imported.
Needs: pip install burnt[c], and clang for wasm32:
  apt install clang lld wasi-libc libclang-rt-14-dev-wasm32
For ops that the C generator lacks, onnxruntime-web runs the model: 4.9 MB more.
"""

_C_EXAMPLES = """\
examples:
  burnt c digits -o firmware
  burnt c digits -o firmware --ram 64k --flash 512k

C99 without allocation, threads or files, with a test program and a Makefile.
The code that the run names is imported. Needs: pip install burnt[c]
"""

_SERVE_EXAMPLES = """\
examples:
  burnt serve digits                         a run in runs/, at http://127.0.0.1:8000
  burnt serve digits.onnx --port 9000        a file, in ONNX Runtime
  burnt serve a=runs/a b=b.onnx --reload     two models; new checkpoints are loaded
  burnt serve digits --container image/      what a container image is built from

  curl -s 127.0.0.1:8000/v1/schema
  curl -s 127.0.0.1:8000/v1/predict -H 'Content-Type: application/json' \\
       -d '{"inputs": {"images": [...]}}'

With BURNT_API_KEY set, requests need `Authorization: Bearer KEY`. The code that
the runs name is imported. Needs: pip install burnt[serve]
"""

_QUANTIZE_EXAMPLES = """\
examples:
  burnt quantize digits --scheme int8
  burnt quantize digits --scheme int8-static --data digits.py:load_splits
  burnt quantize digits --scheme auto --bound 0.01 --data digits.py:load_splits
  burnt quantize net.safetensors --model nets.py:Net --scheme int4-block32 --skip head
  burnt quantize digits --scheme int4 --override 'blocks.0=int8' --plot error.svg

SCHEME is int8, int4-block32, fp8, int8-dynamic, int8-static or another name of
burnt.QuantScheme; auto takes the smallest one per layer whose output error
stays under --bound. DATA is as for `burnt evaluate`, and needed for static
schemes, auto and --smooth; with it the report has output errors. The code that
the run and the options name is imported. The file loads into a model that is
not quantized: Net.load(FILE), or burnt.load_weights(model, FILE).
"""

_SHOW_EXAMPLES = """\
examples:
  burnt show model.safetensors
  burnt show checkpoint.pt --only 'encoder*' --values
  burnt show snapshots/gpt2 --json | jq '.totals'
  burnt show model.onnx

FILE is a .safetensors, .pt, .pth, .bin, .ckpt, .npz or .bpk file, or a folder
with one or with shards and their index. Only names and shapes are read, unless --values
asks for the smallest, largest and mean value and the number of NaN. Of an .onnx file,
inputs, outputs and ops are shown, and whether `burnt import` supports them.
"""

_CONVERT_EXAMPLES = """\
examples:
  burnt convert checkpoint.pt model.safetensors
  burnt convert model.safetensors model/ --shard 2GB --dtype bfloat16
  burnt convert snapshots/bert bert.npz --only encoder --rename '^bert\\.='

The name of TARGET says the format: .safetensors, .npz, .pt, .pth, .bin, .bpk,
or a folder, which gets shards of safetensors and their index. Tied tensors are
stored once. With --dtype float16 or bfloat16, modules with running statistics
(BatchNorm) keep their dtype.
"""


def add(burnt: Parser) -> None:
    """Add the parsers."""
    _add_run_models(burnt)
    _add_serve(burnt)
    _add_quantize(burnt)
    _add_files(burnt)


def _add_run_models(burnt: Parser) -> None:
    """Add the commands that write a run's model: `load_run_model` reads what they share."""
    export = burnt.command("export", "write a run's model as an ONNX file", _EXPORT_EXAMPLES, "export")
    text = "a fixed number of items; by default the batch axis is open"
    export.option("--batch", "N", text, whole(1))
    text = "a further axis of any size, such as tokens:1=length"
    export.repeated("--open-axis", "INPUT:AXIS=NAME", text)
    text = "the version of ONNX's operators, 18 to 25; default: 20, or 21 where weights need it"
    export.option("--opset", "N", text, whole(18, 25))
    export.flag("--no-fold", "do not fold batch norms and other constants into weights")
    text = (
        "largest accepted error, relative to the largest output; default: 1e-4, or 0.02 with quantized inputs"
    )
    export.option("--tolerance", "ERROR", text, real())

    page = burnt.command(
        "page", "write a run's model as a web page that runs it", _PAGE_EXAMPLES, "export:page"
    )
    page.option("--title", "TITLE", "the page's title, default: the run's name")
    page.option("--classes", "A,B", "the names of the classes, default: the run's dataset's")
    page.option("--fields", "A,B", "the names of the input's numbers, in order")
    page.flag("--table", "show several outputs as numbers, not as bars of classes")
    text = "the npm package, for ops that the C generator lacks: a folder or archive; default: fetch it"
    page.option("--onnxruntime-web", "PATH", text)
    for command in (export, page):
        dtypes = ["float32", "float16", "bfloat16"]
        command.choice("--weights", dtypes, "how matrices are stored", "float32")

    firmware = burnt.command("c", "write a run's model as C for a microcontroller", _C_EXAMPLES, "export:c")
    firmware.option("--name", "NAME", "the C function", default="model")
    for memory in ("ram", "flash"):
        firmware.option(f"--{memory}", "BYTES", f"refuse a model that needs more {memory}, such as 64k", SIZE)

    written = (("FILE", "the .onnx file"), ("FILE", "the .html file"), ("FOLDER", "the folder"))
    for command, (metavar, what) in zip((export, page, firmware), written, strict=True):
        command.run()
        command.model()
        command.example()
        command.option("-o --out", metavar, f"{what} to write", required=True)
    export.json()


def _add_serve(burnt: Parser) -> None:
    serve = burnt.command("serve", "serve models over HTTP, in batches", _SERVE_EXAMPLES, "serve")
    text = "a run's folder, its name in runs/, or an .onnx file; the first one is at /v1/predict too"
    serve.words("models", "[NAME=]RUN|FILE", text, nargs="+")
    serve.option("--host", "HOST", "the address to listen at", default="127.0.0.1")
    serve.repeated("--allowed-host", "NAME", "answer requests for this name only, in their Host header")
    serve.option("--port", "PORT", "0 takes any that is free", whole(0), 8000)
    serve.option("--max-batch", "N", "most items that are run together", whole(1), 32)
    serve.option("--queue", "N", "most requests that wait", whole(1), 256)
    text = "limit for one request, and for each wait for a client"
    serve.option("--timeout", "SECONDS", text, real(), 30.0)
    serve.option("--max-body", "MB", "largest body of a request", real(), 16.0)
    serve.option("--drain", "SECONDS", "time for accepted requests after SIGTERM", real(), 30.0)
    serve.flag("--reload", "look for new checkpoints and changed files every 2 seconds")
    serve.flag("--access-log", "log every request")
    serve.option("--container", "DIR", "write what a container image is built from, and exit")
    serve.model()
    serve.example()


def _add_quantize(burnt: Parser) -> None:
    text = "write a model with quantized weights"
    quantize = burnt.command("quantize", text, _QUANTIZE_EXAMPLES, "quantize")
    quantize.words("source", "RUN|FILE", f"{RUN_HELP}, or a file of weights")
    quantize.option("--scheme", "SCHEME", "how weights are quantized", default="int8")
    quantize.option("--data", "MODULE:NAME", "the data to calibrate on")
    quantize.option("--batches", "N", "of the data, at most", whole(1), 32)
    quantize.option("--batch-size", "N", "for datasets", whole(1), 64)
    quantize.model()
    quantize.repeated("--only", "PATTERN", "quantize only these layers")
    quantize.repeated("--skip", "PATTERN", "leave these layers as they are")
    text = "another scheme for these layers, the first match counts"
    quantize.repeated("--override", "PATTERN=SCHEME", text, pair("PATTERN=SCHEME, such as 'head=int8'"))
    text = "how the range of weights is found, by default mse below 8 bits"
    quantize.choice("--weights", ["minmax", "mse", "percentile", "absmean"], text)
    text = "how the range of inputs is found for static schemes, default: minmax"
    methods = ["minmax", "moving_average", "percentile", "mse", "absmean"]
    quantize.choice("--activations", methods, text)
    text = "SmoothQuant before it, such as 0.5; default: without"
    quantize.option("--smooth", "ALPHA", text, real(open=False))
    text = "relative output error that auto allows, default: 0.02"
    quantize.option("--bound", "ERROR", text, real())
    quantize.option("--device", "DEVICE", "a torch device, default: the fastest")
    text = "the .safetensors file to write, default: NAME-SCHEME.safetensors"
    quantize.option("-o --out", "FILE", text)
    quantize.option("--plot", "FILE", "draw error against size per layer, as SVG")
    quantize.flag("--force", "replace what is there")
    quantize.json()


def _add_files(burnt: Parser) -> None:
    """Add the commands on files: `burnt import`, `show` and `convert`."""
    load = burnt.command("import", "write an ONNX model as a Python module", _IMPORT_EXAMPLES, "import_onnx")
    load.words("file", "FILE", "the .onnx file")
    load.option("-o --out", "FOLDER", "the package to write", required=True)
    load.option("--name", "NAME", "of the class; default: one like the file's")
    load.flag("--force", "replace an earlier import")
    show = burnt.command("show", "show a file of weights or an ONNX model", _SHOW_EXAMPLES, "show")
    show.words("file", "FILE", "a file or folder of weights, or an ONNX model")
    text = "compare the values with their checksums, also of a checkpoint or a run; exit code 1: damaged"
    show.flag("--check", text)
    show.flag("--values", "also read the values, and show min, max, mean, NaN")
    for command in (load, show):
        text = "limit of the constants that an ONNX model makes, default: 16 times the file, at least 64 MiB"
        command.option("--max-constant-bytes", "N", text, whole(0))
    convert = burnt.command(
        "convert", "write weights in another format or dtype", _CONVERT_EXAMPLES, "convert"
    )
    convert.words("source", "SOURCE", "a file or folder of weights")
    convert.words("target", "TARGET", "the file to write, or a folder")
    for command in (show, convert):
        command.repeated("--only", "PATTERN", "only tensors of these names or in these modules")
    convert.repeated("--skip", "PATTERN", "leave these tensors out")
    text = "change names, in the order given; before --only and --skip"
    expected = "REGEX=REPLACEMENT, such as '^bert\\.=' or '^layers=blocks'"
    convert.repeated("--rename", "REGEX=REPLACEMENT", text, pair(expected))
    dtypes = ["float64", "float32", "float16", "bfloat16"]
    convert.choice("--dtype", dtypes, "convert floating-point tensors")
    convert.repeated("--keep", "PATTERN", "tensors that --dtype does not convert")
    convert.option("--shard", "SIZE", "the largest file in a folder, such as 2GB; default: 5GB", SIZE)
    convert.flag("--force", "replace what is there")
    for command in (load, show, convert):
        command.json()
