"""The `burnt` command line: argument parsing, dispatch and exit codes.

===================  ===========================================================
`train.py`           `burnt train module:function key=value`
`resume.py`          `burnt train --resume RUN`
`check.py`           `burnt check module:function key=value`
`replay.py`          `burnt replay RUN --step K`
`fork.py`            `burnt fork RUN@K key=value`
`evaluate.py`        `burnt evaluate RUN --data module:loader`
`export.py`          `burnt export RUN -o model.onnx`
`page.py`            `burnt page RUN -o digits.html`
`c.py`               `burnt c RUN -o firmware`
`serve.py`           `burnt serve RUN|m.onnx`
`run_model.py`       what the commands that ship a run share: its model and inputs
`monitor.py`         `burnt monitor`
`runs_list.py`       `burnt runs list`
`runs_show.py`       `burnt runs show`
`runs_export.py`     `burnt runs export`
`runs_reproduce.py`  `burnt runs reproduce`
`runs_*.py`          `burnt runs compare`, `search`, `tag`, `note`, `rm`
`ctl.py`             `burnt ctl RUN pause`, `resume`, `stop`, `save`, `lr`, `note`
`tune.py`            `burnt tune run`, `show`, `export`, `import`, `clear`
`show.py`            `burnt show FILE`: the tensors in a file of weights
`convert.py`         `burnt convert A B`: weights in another format
`bench.py`           `burnt bench MODULE:MODEL`
`info.py`            `burnt info`
`output.py`          tables for terminals, plain columns for pipes, JSON, errors
===================  ===========================================================

A command imports what it needs when it runs: `burnt --help` and `burnt runs` never load torch. Exit codes:
0 success, 1 failure, 2 invalid command line, 3 a training has not answered yet, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import re
import sys
from collections.abc import Sequence

from burnt import __version__
from burnt.errors import BurntError

__all__ = ["main"]

_EXAMPLES = """\
examples:
  burnt train digits.py:main epochs=20 model.hidden=128
  burnt runs list                      all runs with progress and metrics
  burnt runs show digits               one run: metrics, checkpoints, log
  burnt runs export runs/digits --format csv --out digits.csv
  burnt export digits -o digits.onnx   the model of a run as a file
  burnt info                           versions, CPU, GPUs, missing packages
"""

_TRAIN_EXAMPLES = """\
examples:
  burnt train digits.train:main hidden=128 lr=1e-3    a module
  burnt train examples/digits/train.py:main           a file
  burnt train digits.train:main --show                print the configuration
  burnt train digits.train:main --config runs/digits lr=1e-4    as that run, with another lr
  burnt train digits.py:main schedule.type=Cosine schedule.steps=5000    a Config of another class
  burnt train digits.py:main 'schedule={"type": "Cosine", "steps": 5000}'    lists and objects are JSON
  burnt train --resume runs/digits epochs=40          go on with a run, for longer

The function must take one parameter, annotated with a subclass of burnt.Config.
"""

_REPLAY_EXAMPLES = """\
examples:
  burnt replay digits --step 1234
  burnt replay runs/digits --step 1221-1240    the first of these that is not finite
  burnt replay digits --step 1234 --pdb        in the debugger

The function that started the run goes forward from the newest checkpoint before
the step, in silence and without writing to the run. Exit code 1: the values
differ from those that the run recorded.
"""

_FORK_EXAMPLES = """\
examples:
  burnt fork digits@1200 lr=3e-4
  burnt fork runs/digits@1200 lr=3e-4 folder=runs/slower

The new run starts from the state after that step; its earlier steps are in the
other run. Default folder: RUN-fork-STEP.
"""

_CHECK_EXAMPLES = """\
examples:
  burnt check digits.py:main
  burnt check digits.py:main model.hidden=8 text.py:main    several; settings follow their function

Each function is called with its Config until its training would start: shapes,
loss, metrics, schedule and checkpoints are checked on the first batches,
without training, and no run folder is written. For pre-commit:

  - repo: local
    hooks:
      - {id: burnt-check, name: burnt check, language: system,
         entry: burnt check digits.py:main, pass_filenames: false}
"""

_EVALUATE_EXAMPLES = """\
examples:
  burnt evaluate digits --data digits.py:load_splits
  burnt evaluate runs/digits --data digits.py:test --checkpoint last --record
  burnt evaluate digits --data digits.py:test --metrics accuracy,digits.py:F1

NAME is a loader, a dataset, a list of batches, a dict of these, or a function
that returns one; it may take the run's Config. The code is imported. With
--record the values become an event of the run, and tables are added to it.
"""

_CTL_EXAMPLES = """\
commands:
  pause        pause after the current step
  resume       continue a paused training
  stop         save a checkpoint and stop; resume=True continues from it
  save         save a checkpoint that is never deleted, and continue
  lr VALUE     use this learning rate instead of the schedule; the rates that
               groups of parameters schedule change by the same factor
  lr auto      follow the schedule again
  note TEXT    add a note to the run

examples:
  burnt ctl runs/digits pause
  burnt ctl digits lr 1e-4       the run digits or digits-<date> in runs/
  burnt ctl runs/digits note "new data from here on"

The training answers after the current step. Exit codes: 0 done, 1 refused or
the run has ended, 2 no such command, value or run, 3 not answered yet.
"""


_BENCH_EXAMPLES = """\
examples:
  burnt bench models.py:resnet --input 8x3x224x224
  burnt bench my.models:bert --input 4x256:int64:30522 --step training
  burnt bench models.py:pair --device cpu --report     a (model, batch) pair

A training step is forward, loss and backward, without the optimizer.
"""

_SEARCH_EXAMPLES = """\
examples:
  burnt runs search 'lr>0.001' model.hidden=128 'valid/loss<0.3'
  burnt runs search tag:baseline,paper -state:crashed digits
  burnt runs search 'best:valid/loss<0.25' 'took<2h' 'age<7d'
  burnt runs search 'note:"too high"' optimizer~adamw
  burnt runs rm $(burnt runs search state:crashed --paths)

All terms must match. Words are looked for in names, states, tags and notes; lr is
any setting that ends in .lr; a metric is its last value, after best: its best
one; -term is what must not match. Quote < and > for the shell. Exit codes: 0 a
run matches, 1 none, 2 the query cannot be read.
"""

_COMPARE_EXAMPLES = """\
examples:
  burnt runs compare digits-a digits-b
  burnt runs compare 'runs/digits-*' --metric valid/loss --metric '*/accuracy'
  burnt runs compare $(burnt runs search tag:paper --paths) --json

The better values are marked with *. A fork is drawn on top of its parent, from
the step of the fork on.
"""

_TAG_EXAMPLES = """\
examples:
  burnt runs tag digits +baseline -old
  burnt runs tag 'runs/digits-*' +sweep1
  burnt runs tag digits               print the tags
"""

_EXPORT_EXAMPLES = """\
examples:
  burnt export digits -o digits.onnx
  burnt export digits -o digits.onnx --weights float16 --checkpoint last
  burnt export runs/old -o old.onnx --model nets.py:Net --example 1x3x32x32

The file is run in ONNX Runtime beside the model before the command returns.
The code that the run names is imported. Needs: pip install burnt[onnx]
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

_SHOW_EXAMPLES = """\
examples:
  burnt show model.safetensors
  burnt show checkpoint.pt --only 'encoder*' --values
  burnt show snapshots/gpt2 --json | jq '.totals'

FILE is a .safetensors, .pt, .pth, .bin, .ckpt, .npz or .bpk file, or a folder
with one or with shards and their index. Only names and shapes are read, unless --values
asks for the smallest, largest and mean value and the number of NaN.
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

_MONITOR_EXAMPLES = """\
examples:
  burnt monitor                          all runs in runs/
  burnt monitor runs/digits              one run
  burnt monitor digits                   the newest run digits(-...) in runs/
  burnt monitor runs/a runs/b --once     print a snapshot
  burnt monitor runs --json | jq '.[].state'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments after `burnt`; by default those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: the arguments are invalid, or a training was interrupted.

    >>> main(["runs", "list", "no-such-folder"])
    2
    """
    args = _parse(argv)
    if args.command not in ("train", "fork") and isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal whose encoding lacks a character of a run's name must still show the run.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(args)
        sys.stdout.flush()
        return code
    except BurntError as error:
        from burnt.cli.output import UsageError, report

        if os.environ.get("BURNT_DEBUG") == "1":
            raise
        report(error)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        if os.environ.get("BURNT_DEBUG") == "1":
            raise
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if args.command in ("train", "fork") or os.environ.get("BURNT_DEBUG") == "1":
            raise
        # Discard buffered output, which would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader closed the pipe, as `| head` does
            return 141
        print(f"error: {error}", file=sys.stderr)
        return 1


def _dispatch(args: argparse.Namespace) -> int:
    match args.command:
        case "train":
            from burnt.cli import train

            if args.monitor is not None:
                os.environ["BURNT_MONITOR"] = args.monitor
            if args.resume is not None:
                from burnt.cli import resume

                return resume.run(args.resume, args.overrides, args.show)
            return train.run(args.target, args.overrides, args.config, args.show)
        case "replay":
            from burnt.cli import replay

            return replay.run(args.run, args.step, args.pdb, args.yes, args.json)
        case "fork":
            from burnt.cli import fork

            if args.monitor is not None:
                os.environ["BURNT_MONITOR"] = args.monitor
            return fork.run(args.point, args.overrides, args.yes)
        case "check":
            from burnt.cli import check

            return check.run(args.words, args.json)
        case "evaluate":
            from burnt.cli import evaluate

            of_run = evaluate.EvaluateArguments(
                args.run,
                args.data,
                args.checkpoint,
                args.metrics,
                args.step,
                args.model,
                args.batch_size,
                args.device,
                args.record,
            )
            return evaluate.run(of_run, args.json)
        case "tune":
            from burnt.cli import tune

            match args.action:
                case "run":
                    return tune.run(
                        args.ops,
                        args.device,
                        args.full,
                        args.json,
                        args.dtype or (),
                        args.seconds,
                        args.modules or (),
                    )
                case "show":
                    return tune.show(args.op, args.json)
                case "export":
                    return tune.export(args.file, args.op, args.device)
                case "import":
                    return tune.import_rows(args.file)
                case _:
                    return tune.clear(args.op)
        case "monitor":
            from burnt.cli import monitor

            return monitor.run(
                args.folders,
                once=args.once,
                svg=args.svg,
                as_json=args.json,
                fps=args.fps,
                attached=args.attached,
                pulse=args.pulse,
                size=args.size,
            )
        case "show":
            from burnt.cli import show

            return show.run(args.file, args.only or (), args.values, args.json)
        case "convert":
            from burnt.cli import convert

            given = convert.ConvertArguments(
                args.source,
                args.target,
                args.dtype,
                args.keep or (),
                args.only or (),
                args.skip or (),
                args.rename or (),
                args.shard,
                args.force,
            )
            return convert.run(given, args.json)
        case "bench":
            from burnt.cli import bench

            return bench.run(
                args.target,
                args.input or (),
                args.device or (),
                args.seconds,
                args.step,
                args.report,
                args.json,
            )
        case "info":
            from burnt.cli import info

            return info.run(args.json)
        case "runs":
            match args.action:
                case "list":
                    from burnt.cli import runs_list

                    return runs_list.run(args.folder, args.json)
                case "show":
                    from burnt.cli import runs_show

                    return runs_show.run(args.run, args.json)
                case "reproduce":
                    from burnt.cli import runs_reproduce

                    return runs_reproduce.run(args.run, args.out, args.json)
                case "compare":
                    from burnt.cli import runs_compare

                    return runs_compare.run(args.runs, args.metric or (), args.json)
                case "search":
                    from burnt.cli import runs_search

                    return runs_search.run(args.query, args.folder, args.paths, args.json)
                case "tag":
                    from burnt.cli import runs_tag

                    return runs_tag.tag(args.words, args.json)
                case "note":
                    from burnt.cli import runs_tag

                    return runs_tag.note(args.run, args.text)
                case "rm":
                    from burnt.cli import runs_rm

                    return runs_rm.run(args.runs, args.yes)
                case _:
                    from burnt.cli import runs_export

                    return runs_export.run(args.run, args.format, args.out, args.follow)
        case "ctl":
            from burnt.cli import ctl

            return ctl.run(args.run, args.order, args.value, args.timeout, not args.no_wait)
        case "page":
            from burnt.cli import page, run_model

            page_given = page.PageArguments(
                args.out,
                args.weights,
                args.title,
                args.classes,
                args.fields,
                args.table,
                args.onnxruntime_web,
            )
            return page.run(run_model.arguments(args), page_given)
        case "c":
            from burnt.cli import c, run_model

            return c.run(run_model.arguments(args), args.out, args.name, args.ram, args.flash)
        case "serve":
            from burnt.serve.packages import require_packages

            require_packages()  # before what imports them
            from burnt.cli import serve

            return serve.run(args)
        case _:
            from burnt.cli import export, run_model

            return export.run(run_model.arguments(args), args.out, args.batch, args.weights, args.json)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _build_parser()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] in (["runs", "search"], ["runs", "tag"]):
        # -term and -tag are no options; argparse takes what begins with a space for an argument.
        words[2:] = [f" {word}" if re.match(r"-(?!-|h$)", word) else word for word in words[2:]]
    # argparse does not collect words that follow an option after other words; they are in `rest`.
    args, rest = parser.parse_known_args(words)
    for name in ("overrides", "runs", "query", "words", "text"):
        if args.command in ("train", "fork", "runs") and hasattr(args, name):
            getattr(args, name).extend(word for word in rest if not word.startswith("-"))
            rest = [word for word in rest if word.startswith("-")]
    if args.command == "train":
        _check_train(parser, args)
    if rest:
        hint = "; settings are written key=value" if args.command in ("train", "fork") else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if args.command == "runs" and args.action == "export" and args.follow and args.format != "jsonl":
        parser.error("--follow requires --format jsonl")
    return args


def _build_parser() -> argparse.ArgumentParser:
    parser = _add_parser(None, "burnt", "Train models, and inspect and control training runs.", _EXAMPLES)
    parser.add_argument("--version", action="version", version=f"burnt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    train = _add_parser(commands, "train", "run a training function with a configuration", _TRAIN_EXAMPLES)
    train.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="the function to call; the module may be a file",
    )
    train.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="configuration fields; nested fields are dotted"
    )
    train.add_argument(
        "--config",
        metavar="FILE",
        help="load the configuration from a run's folder or config.json, or a file of Config.save",
    )
    train.add_argument("--show", action="store_true", help="print the configuration as JSON and exit")
    train.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run, its folder or its name in runs/, by the function that started it",
    )
    replayed, forked = _add_time_machine(commands)
    for command in (train, forked):
        command.add_argument(
            "--monitor",
            choices=["tui", "live", "plain", "off"],
            help="how progress is shown, unless the function sets it; by default what the terminal supports",
        )

    check = _add_parser(commands, "check", "check training functions without training", _CHECK_EXAMPLES)
    check.add_argument(
        "words",
        nargs="+",
        metavar="MODULE:FUNCTION [KEY=VALUE ...]",
        help="functions as for `burnt train`, each followed by its settings",
    )

    evaluate = _add_evaluate(commands)
    monitor = _add_monitor(commands)

    runs = _add_parser(
        commands, "runs", "list, show, compare, search, tag and remove runs", "example: burnt runs list"
    )
    of_runs = runs.add_subparsers(dest="action", required=True, metavar="COMMAND")
    listing = _add_parser(
        of_runs, "list", "list the runs in a folder", "example: burnt runs list runs --json"
    )
    listing.add_argument("folder", nargs="?", default="runs", metavar="FOLDER", help="default: runs")
    show = _add_parser(of_runs, "show", "show one run in detail", "example: burnt runs show runs/digits")
    show.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    export = _add_parser(
        of_runs,
        "export",
        "export a run for other tools",
        "example: burnt runs export runs/digits --format jsonl --follow",
    )
    export.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    export.add_argument("--format", required=True, choices=["csv", "jsonl", "tensorboard"])
    export.add_argument(
        "--out",
        metavar="PATH",
        help="output file, default: standard output; for tensorboard a folder, default: RUN/tensorboard",
    )
    export.add_argument("--follow", action="store_true", help="jsonl: continue until the run ends")

    reproduced = _add_parser(
        of_runs,
        "reproduce",
        "run a run again in a new folder, and compare every value",
        "example: burnt runs reproduce digits",
    )
    reproduced.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    reproduced.add_argument("--out", metavar="FOLDER", help="the new run's folder, default: RUN-reproduced")
    selected = _add_runs_selection(of_runs)

    ctl = _add_parser(
        commands, "ctl", "control a running training: pause, resume, stop, save, lr, note", _CTL_EXAMPLES
    )
    ctl.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    ctl.add_argument("order", metavar="COMMAND", help="pause, resume, stop, save, lr or note")
    ctl.add_argument(
        "value", nargs="*", default=[], metavar="VALUE", help="for lr a number or auto, for note the text"
    )
    ctl.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="maximum time to wait for the answer, default: 10",
    )
    ctl.add_argument("--no-wait", action="store_true", help="send the command without waiting for the answer")

    tuned = _add_tune(commands)

    shipped = _add_parser(commands, "export", "write a run's model as an ONNX file", _EXPORT_EXAMPLES)
    _add_run_model(shipped)
    shipped.add_argument("-o", "--out", required=True, metavar="FILE", help="the .onnx file to write")
    shipped.add_argument(
        "--batch", type=int, metavar="N", help="a fixed number of items; by default the batch axis is open"
    )
    page = _add_parser(commands, "page", "write a run's model as a web page that runs it", _PAGE_EXAMPLES)
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

    firmware = _add_parser(commands, "c", "write a run's model as C for a microcontroller", _C_EXAMPLES)
    _add_run_model(firmware)
    firmware.add_argument("-o", "--out", required=True, metavar="FOLDER", help="the folder to write to")
    firmware.add_argument("--name", help="the C function, default: model")
    for option in ("ram", "flash"):
        firmware.add_argument(
            f"--{option}", metavar="BYTES", help=f"refuse a model that needs more {option}, such as 64k"
        )

    _add_serve(commands)
    weights = _add_weights(commands)
    bench = _add_bench(commands)

    info = _add_parser(
        commands, "info", "show versions, CPU, GPUs and missing packages", "example: burnt info --json"
    )
    for command in (
        *(listing, show, *selected, info, monitor, bench, shipped, replayed, reproduced, check, evaluate),
        *(*weights, *tuned),
    ):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _check_train(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check that `burnt train` was given either a function or a run to go on with."""
    if args.resume is not None:
        if args.target is not None and "=" in args.target:  # the first assignment
            args.overrides.insert(0, args.target)
        elif args.target is not None:
            parser.error("--resume calls the function that started the run: give no other one")
        if args.config is not None:
            parser.error(
                "--resume takes the configuration of the run: change it by key=value, not by --config"
            )
    elif args.target is None:
        parser.error("the following arguments are required: MODULE:FUNCTION, or --resume RUN")


def _add_time_machine(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Add the parsers of `burnt replay` and `burnt fork`."""
    replay = _add_parser(commands, "replay", "run a step of a run again and look into it", _REPLAY_EXAMPLES)
    replay.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    replay.add_argument(
        "--step",
        required=True,
        metavar="K",
        help="the step, or K-L for the first of these that is not finite",
    )
    replay.add_argument("--pdb", action="store_true", help="stop in the debugger in the training step")
    fork = _add_parser(commands, "fork", "start a run at a step of another one, with changes", _FORK_EXAMPLES)
    fork.add_argument(
        "point", metavar="RUN@STEP", help="the run's folder, or its name in runs/, and the step"
    )
    fork.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="changes; folder= is the folder of the new run"
    )
    for command in (replay, fork):
        command.add_argument(
            "--yes", action="store_true", help="do not ask, however long it takes to get to the step"
        )
    return replay, fork


def _add_runs_selection(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> list[argparse.ArgumentParser]:
    """Add the parsers of the commands on several runs; return those of the commands that can print JSON."""
    runs_help = "folders, names in runs/, or patterns such as 'digits-*'"
    compare = _add_parser(commands, "compare", "show runs side by side", _COMPARE_EXAMPLES)
    compare.add_argument("runs", nargs="+", metavar="RUN", help=runs_help)
    compare.add_argument(
        "--metric", action="append", metavar="NAME", help="also draw its curves; a pattern; may be repeated"
    )
    search = _add_parser(commands, "search", "list the runs that a query matches", _SEARCH_EXAMPLES)
    search.add_argument("query", nargs="+", metavar="QUERY", help="terms, as in the examples below")
    search.add_argument(
        "--in", dest="folder", default="runs", metavar="FOLDER", help="the folder to search, default: runs"
    )
    search.add_argument("--paths", action="store_true", help="print only the folders")
    tag = _add_parser(commands, "tag", "add tags to runs, or remove them", _TAG_EXAMPLES)
    tag.add_argument("words", nargs="+", metavar="RUN|+TAG|-TAG", help=f"{runs_help}; then the tags")
    note = _add_parser(
        commands, "note", "add a note to a run", 'example: burnt runs note digits "the rate was too high"'
    )
    note.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    note.add_argument("text", nargs="+", metavar="TEXT", help="the note")
    remove = _add_parser(
        commands,
        "rm",
        "remove runs that have ended, with their checkpoints",
        "example: burnt runs rm digits-a 'runs/old-*'",
    )
    remove.add_argument("runs", nargs="+", metavar="RUN", help=runs_help)
    remove.add_argument("-y", "--yes", action="store_true", help="remove without asking")
    return [compare, search, tag]


def _add_run_model(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a run's model: `run_model.arguments` reads them."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    _add_model_options(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="NAME",
        help="best, last, a step or a checkpoint's name; default: best",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="the model, its class, or a function that builds it, for runs that do not say it",
    )
    parser.add_argument(
        "--example",
        action="append",
        metavar="SHAPE[:DTYPE[:VALUES]]",
        help="an input of the model, batch axis first, for runs that do not know it; repeat for further ones",
    )


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the parser of `burnt evaluate`."""
    evaluate = _add_parser(
        commands, "evaluate", "compute metrics of a run's model on other data", _EVALUATE_EXAMPLES
    )
    evaluate.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    evaluate.add_argument("--data", required=True, metavar="MODULE:NAME", help="the data to evaluate on")
    evaluate.add_argument(
        "--checkpoint",
        default="best",
        metavar="NAME",
        help="best, last, a step or a checkpoint's name; default: best",
    )
    evaluate.add_argument(
        "--metrics", metavar="A,B", help="metrics by name or as MODULE:NAME, default: those of the run"
    )
    evaluate.add_argument("--step", metavar="MODULE:NAME", help="the step, for a model without one")
    evaluate.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="the model, its class, or a function that builds it, for runs that do not say it",
    )
    evaluate.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="for datasets, default: 256"
    )
    evaluate.add_argument("--device", help="a torch device, default: the fastest")
    evaluate.add_argument("--record", action="store_true", help="add the results to the run")
    return evaluate


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser of `burnt serve`."""
    serve = _add_parser(commands, "serve", "serve models over HTTP, in batches", _SERVE_EXAMPLES)
    serve.add_argument(
        "models",
        nargs="+",
        metavar="[NAME=]RUN|FILE",
        help="a run's folder, its name in runs/, or an .onnx file; the first one is at /v1/predict too",
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at, default: 127.0.0.1")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000; 0 takes any that is free")
    serve.add_argument(
        "--max-batch", type=int, default=32, metavar="N", help="most items that are run together, default: 32"
    )
    serve.add_argument(
        "--queue", type=int, default=256, metavar="N", help="most requests that wait, default: 256"
    )
    serve.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="limit for one request, default: 30"
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


def _add_weights(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> list[argparse.ArgumentParser]:
    """Add and return the parsers of `burnt show` and `burnt convert`."""
    show = _add_parser(commands, "show", "show the tensors in a file of weights", _SHOW_EXAMPLES)
    show.add_argument("file", metavar="FILE", help="a file or folder of weights")
    show.add_argument(
        "--values", action="store_true", help="also read the values, and show min, max, mean, NaN"
    )
    convert = _add_parser(commands, "convert", "write weights in another format or dtype", _CONVERT_EXAMPLES)
    convert.add_argument("source", metavar="SOURCE", help="a file or folder of weights")
    convert.add_argument("target", metavar="TARGET", help="the file to write, or a folder")
    for command in (show, convert):
        command.add_argument(
            "--only",
            action="append",
            metavar="PATTERN",
            help="only tensors of these names or in these modules; may be repeated",
        )
    convert.add_argument(
        "--skip", action="append", metavar="PATTERN", help="leave these tensors out; may be repeated"
    )
    convert.add_argument(
        "--rename",
        action="append",
        metavar="REGEX=REPLACEMENT",
        help="change names, in the order given; before --only and --skip",
    )
    convert.add_argument(
        "--dtype",
        choices=["float64", "float32", "float16", "bfloat16"],
        help="convert floating-point tensors",
    )
    convert.add_argument(
        "--keep", action="append", metavar="PATTERN", help="tensors that --dtype does not convert"
    )
    convert.add_argument(
        "--shard", metavar="SIZE", help="the largest file in a folder, such as 2GB; default: 5GB"
    )
    convert.add_argument("--force", action="store_true", help="replace what is there")
    return [show, convert]


def _add_monitor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the parser of `burnt monitor`."""
    monitor = _add_parser(
        commands, "monitor", "watch, compare and control runs in a full-screen app", _MONITOR_EXAMPLES
    )
    monitor.add_argument(
        "folders",
        nargs="*",
        default=["runs"],
        metavar="FOLDER",
        help="a run's folder, a run's name in runs/, or a folder of runs; default: runs",
    )
    monitor.add_argument("--once", action="store_true", help="print a snapshot as plain text and exit")
    monitor.add_argument("--svg", metavar="FILE", help="save a screenshot of the app and exit")
    monitor.add_argument(
        "--size", default="120x40", metavar="WxH", help="size of the screenshot, default: 120x40"
    )
    monitor.add_argument("--fps", type=float, default=2.0, help="updates per second, default: 2")
    monitor.add_argument("--attached", type=int, metavar="PID", help=argparse.SUPPRESS)
    monitor.add_argument("--pulse", type=int, metavar="FD", help=argparse.SUPPRESS)
    return monitor


def _add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the parser of `burnt bench`."""
    bench = _add_parser(
        commands,
        "bench",
        "compare eager mode, torch.compile and burnt.swap",
        _BENCH_EXAMPLES,
    )
    bench.add_argument(
        "target", metavar="MODULE:MODEL", help="a model, or a function that returns a model or (model, batch)"
    )
    bench.add_argument(
        "--input",
        action="append",
        metavar="SHAPE[:DTYPE[:VALUES]]",
        help="a random input tensor; repeat the option for further arguments",
    )
    bench.add_argument(
        "--device", action="append", help="a torch device, may be repeated; default: all available"
    )
    bench.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="time of measuring in each comparison, after swapping and compiling; default: 10",
    )
    bench.add_argument(
        "--step",
        choices=["both", "forward", "training"],
        default="both",
        help="which steps to measure, default: both",
    )
    bench.add_argument(
        "--report", action="store_true", help="also print which modules were swapped, and whole errors"
    )
    return bench


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    """Add the parsers of `burnt tune`; return those of the commands that can print JSON."""
    tune = _add_parser(
        commands, "tune", "measure kernels, and manage the measurements", "example: burnt tune run"
    )
    actions = tune.add_subparsers(dest="action", required=True, metavar="COMMAND")
    run = _add_parser(
        actions, "run", "measure ops at their example sizes", "example: burnt tune run softmax rms_norm"
    )
    run.add_argument("ops", nargs="*", metavar="OP", help="names of ops in burnt.kernels, default: all")
    run.add_argument(
        "--import",
        dest="modules",
        action="append",
        metavar="MODULE",
        help="a module or file that registers further ops",
    )
    run.add_argument("--device", default="cpu", help="a torch device, default: cpu")
    run.add_argument("--full", action="store_true", help="measure all configurations, and each for longer")
    run.add_argument(
        "--dtype", action="append", help="dtype of floating-point examples, such as bfloat16; may be repeated"
    )
    run.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="time limit for starting examples, divided equally among the ops",
    )
    show = _add_parser(actions, "show", "show the measurements", "example: burnt tune show softmax --json")
    export = _add_parser(
        actions, "export", "write the measurements to a JSON file", "example: burnt tune export h200.json"
    )
    export.add_argument("file", metavar="FILE")
    export.add_argument("--device", help="only measurements on this device, default: all")
    load = _add_parser(
        actions, "import", "add measurements from another machine", "example: burnt tune import h200.json"
    )
    load.add_argument("file", metavar="FILE")
    clear = _add_parser(
        actions,
        "clear",
        "delete measurements and the decisions of burnt.swap",
        "example: burnt tune clear softmax",
    )
    for command in (show, export, clear):
        command.add_argument("op", nargs="?", metavar="OP", help="only this op")
    return [run, show]


def _add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser] | None, name: str, text: str, examples: str
) -> argparse.ArgumentParser:
    if commands is None:
        new = argparse.ArgumentParser(name, description=text, epilog=examples)
    else:
        description = f"{text[0].upper()}{text[1:]}."
        new = commands.add_parser(name, help=text, description=description, epilog=examples)
    new.formatter_class = argparse.RawDescriptionHelpFormatter
    new.allow_abbrev = False
    return new
