"""The arguments of `burnt export`, `import`, `page`, `c`, `serve`, `quantize`, `show` and `convert`."""

from __future__ import annotations

import argparse

from burnt.cli.arguments.parser import RUN_HELP, add_json, add_model, add_parser, add_repeated, add_run

_EXPORT_EXAMPLES = """\
examples:
  burnt export digits -o digits.onnx
  burnt export digits -o digits.onnx --weights float16 --checkpoint last
  burnt export gpt -o gpt.onnx --opset 23 --open-axis tokens:1=length
  burnt export runs/old -o old.onnx --model nets.py:Net --example 1x3x32x32

The file is run in ONNX Runtime beside the model before the command returns.
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


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers."""
    shipped = add_parser(
        commands, "export", "write a run's model as an ONNX file", _EXPORT_EXAMPLES, "export"
    )
    _add_run_model(shipped)
    shipped.add_argument("-o", "--out", required=True, metavar="FILE", help="the .onnx file to write")
    shipped.add_argument(
        "--batch", type=int, metavar="N", help="a fixed number of items; by default the batch axis is open"
    )
    add_repeated(
        shipped, "--open-axis", "INPUT:AXIS=NAME", "a further axis of any size, such as tokens:1=length"
    )
    shipped.add_argument(
        "--opset",
        type=int,
        metavar="N",
        help="the version of ONNX's operators, 18 to 25; default: 20, or 21 where weights need it",
    )
    shipped.add_argument(
        "--no-fold", action="store_true", help="do not fold batch norms and other constants into weights"
    )
    shipped.add_argument(
        "--tolerance",
        type=float,
        metavar="ERROR",
        help="largest accepted error, relative to the largest output; "
        "default: 1e-4, or 0.02 with quantized inputs",
    )
    add_json(shipped)
    imported = add_parser(
        commands, "import", "write an ONNX model as a Python module", _IMPORT_EXAMPLES, "import_onnx"
    )
    imported.add_argument("file", metavar="FILE", help="the .onnx file")
    imported.add_argument("-o", "--out", required=True, metavar="FOLDER", help="the package to write")
    imported.add_argument("--name", help="of the class; default: one like the file's")
    imported.add_argument("--force", action="store_true", help="replace an earlier import")
    _add_constant_limit(imported)
    add_json(imported)
    page = add_parser(
        commands, "page", "write a run's model as a web page that runs it", _PAGE_EXAMPLES, "page"
    )
    _add_run_model(page)
    page.add_argument("-o", "--out", required=True, metavar="FILE", help="the .html file to write")
    page.add_argument("--title", help="the page's title, default: the run's name")
    page.add_argument(
        "--classes", metavar="A,B", help="the names of the classes, default: those of the run's dataset"
    )
    page.add_argument("--fields", metavar="A,B", help="the names of the input's numbers, in order")
    page.add_argument(
        "--table", action="store_true", help="show several outputs as numbers, not as bars of classes"
    )
    page.add_argument(
        "--onnxruntime-web",
        metavar="PATH",
        help="the npm package, for ops that the C generator lacks: a folder or archive; default: fetch it",
    )
    for command in (shipped, page):
        command.add_argument(
            "--weights",
            choices=["float32", "float16", "bfloat16"],
            default="float32",
            help="how matrices are stored, default: float32",
        )

    firmware = add_parser(commands, "c", "write a run's model as C for a microcontroller", _C_EXAMPLES, "c")
    _add_run_model(firmware)
    firmware.add_argument("-o", "--out", required=True, metavar="FOLDER", help="the folder to write to")
    firmware.add_argument("--name", help="the C function, default: model")
    for option in ("ram", "flash"):
        firmware.add_argument(
            f"--{option}", metavar="BYTES", help=f"refuse a model that needs more {option}, such as 64k"
        )
    _add_serve(commands)
    _add_quantize(commands)
    _add_weights(commands)


def _add_run_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a run's model: `run_model.arguments` reads them."""
    add_run(parser)
    _add_model_options(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_repeated(
        parser,
        "--example",
        "SHAPE[:DTYPE[:VALUES]]",
        "an input of the model, batch axis first, for runs that do not know it",
    )


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of `burnt serve`."""
    serve = add_parser(commands, "serve", "serve models over HTTP, in batches", _SERVE_EXAMPLES, "serve")
    serve.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]RUN|FILE",
        help="a run's folder, its name in runs/, or an .onnx file; the first one is at /v1/predict too",
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at, default: 127.0.0.1")
    add_repeated(serve, "--allowed-host", "NAME", "answer requests for this name only, in their Host header")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000; 0 takes any that is free")
    serve.add_argument(
        "--max-batch", type=int, default=32, metavar="N", help="most items that are run together, default: 32"
    )
    serve.add_argument(
        "--queue", type=int, default=256, metavar="N", help="most requests that wait, default: 256"
    )
    serve.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="limit for one request, and for each wait for a client, default: 30",
    )
    serve.add_argument(
        "--max-body", type=float, default=16.0, metavar="MB", help="largest body of a request, default: 16"
    )
    serve.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for accepted requests after SIGTERM, default: 30",
    )
    serve.add_argument(
        "--reload", action="store_true", help="look for new checkpoints and changed files every 2 seconds"
    )
    serve.add_argument("--access-log", action="store_true", help="log every request")
    serve.add_argument(
        "--container", metavar="DIR", help="write what a container image is built from, and exit"
    )
    _add_model_options(serve)


def _add_weights(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of `burnt show` and `burnt convert`."""
    show = add_parser(commands, "show", "show a file of weights or an ONNX model", _SHOW_EXAMPLES, "show")
    show.add_argument("file", metavar="FILE", help="a file or folder of weights, or an ONNX model")
    show.add_argument(
        "--check",
        action="store_true",
        help="compare the values with their checksums, also of a checkpoint or a run; exit code 1: damaged",
    )
    show.add_argument(
        "--values", action="store_true", help="also read the values, and show min, max, mean, NaN"
    )
    _add_constant_limit(show)
    convert = add_parser(
        commands, "convert", "write weights in another format or dtype", _CONVERT_EXAMPLES, "convert"
    )
    convert.add_argument("source", metavar="SOURCE", help="a file or folder of weights")
    convert.add_argument("target", metavar="TARGET", help="the file to write, or a folder")
    for command in (show, convert):
        add_json(command)
        add_repeated(command, "--only", "PATTERN", "only tensors of these names or in these modules")
    add_repeated(convert, "--skip", "PATTERN", "leave these tensors out")
    add_repeated(
        convert, "--rename", "REGEX=REPLACEMENT", "change names, in the order given; before --only and --skip"
    )
    convert.add_argument(
        "--dtype",
        choices=["float64", "float32", "float16", "bfloat16"],
        help="convert floating-point tensors",
    )
    add_repeated(convert, "--keep", "PATTERN", "tensors that --dtype does not convert")
    convert.add_argument(
        "--shard", metavar="SIZE", help="the largest file in a folder, such as 2GB; default: 5GB"
    )
    convert.add_argument("--force", action="store_true", help="replace what is there")


def _add_quantize(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    quantize = add_parser(
        commands, "quantize", "write a model with quantized weights", _QUANTIZE_EXAMPLES, "quantize"
    )
    quantize.add_argument("source", metavar="RUN|FILE", help=f"{RUN_HELP}, or a file of weights")
    quantize.add_argument("--scheme", default="int8", metavar="SCHEME", help="default: int8")
    quantize.add_argument("--data", metavar="MODULE:NAME", help="the data to calibrate on")
    quantize.add_argument(
        "--batches", type=int, default=32, metavar="N", help="of the data, at most; default: 32"
    )
    quantize.add_argument("--batch-size", type=int, default=64, metavar="N", help="for datasets, default: 64")
    add_model(quantize)
    for option, text in (("only", "quantize these layers alone"), ("skip", "leave these layers as they are")):
        add_repeated(quantize, f"--{option}", "PATTERN", text)
    add_repeated(
        quantize, "--override", "PATTERN=SCHEME", "another scheme for these layers, the first match counts"
    )
    methods = ["minmax", "mse", "percentile", "absmean"]
    quantize.add_argument(
        "--weights", choices=methods, help="how the range of weights is found, by default mse below 8 bits"
    )
    quantize.add_argument(
        "--activations",
        choices=["minmax", "moving_average", "percentile", "mse", "absmean"],
        help="how the range of inputs is found for static schemes, default: minmax",
    )
    quantize.add_argument(
        "--smooth", type=float, metavar="ALPHA", help="SmoothQuant before it, such as 0.5; default: without"
    )
    quantize.add_argument(
        "--bound", type=float, metavar="ERROR", help="relative output error that auto allows, default: 0.02"
    )
    quantize.add_argument("--device", help="a torch device, default: the fastest")
    quantize.add_argument(
        "-o", "--out", metavar="FILE", help="the .safetensors file to write, default: NAME-SCHEME.safetensors"
    )
    quantize.add_argument("--plot", metavar="FILE", help="draw error against size per layer, as SVG")
    quantize.add_argument("--force", action="store_true", help="replace what is there")
    add_json(quantize)


def _add_constant_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--max-constant-bytes",
        type=int,
        metavar="N",
        help="limit of the constants that an ONNX model makes, default: 16 times the file, at least 64 MiB",
    )
