"""The arguments of `burnt tune`, `bench`, `explain` and `info`."""

from __future__ import annotations

from burnt.cli.arguments.parser import Parser, real

_BENCH_EXAMPLES = """\
examples:
  burnt bench models.py:resnet --input 8x3x224x224
  burnt bench my.models:bert --input 4x256:int64:30522 --step training
  burnt bench models.py:pair --device cpu --report     a (model, batch) pair

A training step is forward, loss and backward, without the optimizer.
"""

_EXPLAIN_EXAMPLES = """\
examples:
  burnt explain my.ops:norm --input 64x1024 --input 1024
  burnt explain models.py:bert --input 4x256:int64:30522 --target sm_90,gfx942,metal --html bert.html
  burnt explain burnt.kernels:softmax --input 64x1024:bfloat16 --target sm_90 --source

Nothing here needs a GPU. Architectures are compiled by Triton: sm_80, sm_90, sm_100, sm_120, gfx90a, gfx942,
gfx950, gfx1100.
"""


def add(burnt: Parser) -> None:
    """Add the parsers."""
    tune = burnt.command("tune", "measure kernels, and manage the measurements", "example: burnt tune run")
    tune.start_commands("action")
    example = "example: burnt tune run softmax rms_norm"
    run = tune.command("run", "measure ops at their example sizes", example, "tune")
    run.words("ops", "OP", "names of ops in burnt.kernels, default: all", nargs="*")
    run.repeated("--import", "MODULE", "a module or file that registers further ops", dest="modules")
    run.option("--device", "DEVICE", "a torch device", default="cpu")
    run.flag("--full", "measure all configurations, and each for longer")
    run.repeated("--dtype", "DTYPE", "dtype of floating-point examples, such as bfloat16")
    text = "time limit for starting examples, divided equally among the ops"
    run.option("--seconds", "SECONDS", text, real(open=False))
    example = "example: burnt tune show softmax --json"
    show = tune.command("show", "show the measurements", example, "tune:show")
    example = "example: burnt tune export h200.json"
    export = tune.command("export", "write the measurements to a JSON file", example, "tune:export")
    export.words("file", "FILE")
    export.option("--device", "DEVICE", "only measurements on this device, default: all")
    example = "example: burnt tune import h200.json"
    load = tune.command("import", "add measurements from another machine", example, "tune:import_rows")
    load.words("file", "FILE")
    text, example = "delete measurements and the decisions of burnt.swap", "example: burnt tune clear softmax"
    clear = tune.command("clear", text, example, "tune:clear")
    for command in (show, export, clear):
        command.words("op", "OP", "only this op", nargs="?")

    bench = burnt.command(
        "bench", "compare eager mode, torch.compile, burnt.compile and burnt.swap", _BENCH_EXAMPLES, "bench"
    )
    text = "a model, or a function that returns a model or (model, batch)"
    bench.words("target", "MODULE:MODEL", text)
    bench.repeated("--input", "SHAPE[:DTYPE[:VALUES]]", "a random input tensor")
    bench.repeated("--device", "DEVICE", "a torch device; default: all available")
    text = "time of measuring in each comparison, after swapping and compiling"
    bench.option("--seconds", "SECONDS", text, real(open=False), 10.0)
    bench.choice("--step", ["both", "forward", "training"], "which steps to measure", "both")
    bench.flag("--report", "also print which modules were swapped, and whole errors")

    text = "show the kernels of a function or model, for any GPU"
    explain = burnt.command("explain", text, _EXPLAIN_EXAMPLES, "explain")
    text = "a function of tensors, a model, or a function that returns a model or (model, inputs)"
    explain.words("function", "MODULE:NAME", text)
    explain.repeated("--input", "SHAPE[:DTYPE[:VALUES]]", "a random input tensor")
    text = "what to show next to C: metal, triton, or architectures"
    explain.option("--target", "NAME,...", text, default="triton,metal")
    explain.flag("--backward", "also the gradients of the inputs; of a model they are shown anyway")
    explain.option("--html", "FILE", "write a page with the sources side by side")
    explain.flag("--source", "print the sources, too")

    text = "show versions, CPU, GPUs and missing packages"
    info = burnt.command("info", text, "example: burnt info --json", "info")
    for command in (run, show, bench, explain, info):
        command.json()
