"""The arguments of `burnt new`, `train`, `replay`, `fork`, `check`, `evaluate` and `predict`."""

from __future__ import annotations

import argparse

from burnt.cli.arguments.parser import STEPS, Parser, whole

_TRAIN_EXAMPLES = """\
examples:
  burnt train digits.train:main hidden=128 lr=1e-3    a module
  burnt train examples/digits/train.py:main           a file
  burnt train digits.train:main --show                print the configuration
  burnt train digits.train:main --config runs/digits lr=1e-4    as that run, with another lr
  burnt train digits.py:main schedule.type=Cosine schedule.steps=5000    a Config of another class
  burnt train digits.py:main 'schedule={"type": "Cosine", "steps": 5000}'    lists and objects are JSON
  burnt train --resume runs/digits epochs=40          go on with a run, for longer
  burnt train --nproc 2 digits.train:main             in two processes, each with a part of each batch

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

_SWEEP_EXAMPLES = """\
examples:
  burnt sweep digits.py:main lr=1e-4..1e-1:log 'hidden=8|32' layers=1..4 epochs=5
  burnt sweep digits.py:main lr=1e-4..1e-1:log --metric valid/accuracy --prune median --jobs 2
  burnt sweep digits.py:main 'lr=0.01|0.1' layers=1..4 --sampler grid
  burnt sweep digits-sweep --trials 40    go on, for longer
  burnt sweep digits-sweep --best         print the command that trains the best one

A range is low..high, of whole numbers where both ends and the field are, and with
:log on a logarithmic scale; choices are written A|B, which the shell needs in
quotes; other settings hold for all trials. Each trial is a run, NAME/0007.
"""

_PREDICT_EXAMPLES = """\
examples:
  burnt predict churn --data new.csv -o predicted.csv
  burnt predict churn --data 'new-*.parquet' -o predicted.parquet --keep id,name
  burnt predict churn --data rows.jsonl | head
  burnt predict digits --data digits.py:test -o predicted.csv

DATA is a file with the columns that the training read, .csv, .parquet or .jsonl,
without the label, or what `burnt evaluate` takes. Classes get a column for the name
and one for the probability of each; the code that the run names is imported.
"""


def add(burnt: Parser) -> None:
    """Add the parsers."""
    examples = "example:\n  burnt new spirals && cd spirals && burnt train spirals.train:main"
    new = burnt.command("new", "make a project that trains, tests and monitors", examples, "new")
    new.words("name", "NAME", "the name of the folder to make, and of the package in it")

    train = burnt.command("train", "run a training function with a configuration", _TRAIN_EXAMPLES, "train")
    train.words("target", "MODULE:FUNCTION", "the function to call; the module may be a file", nargs="?")
    text = "configuration fields; nested fields are dotted"
    train.words("overrides", "KEY=VALUE", text, nargs="*")
    text = "load the configuration from a run's folder or config.json, or a file of Config.save"
    train.option("--config", "FILE", text)
    train.flag("--show", "print the configuration as JSON and exit")
    text = "go on with a run, its folder or its name in runs/, by the function that started it"
    train.option("--resume", "RUN", text)
    train.option("--nproc", "N", "train in N processes of this machine, one for each GPU", whole(1))

    replay = burnt.command("replay", "run a step of a run again and look into it", _REPLAY_EXAMPLES, "replay")
    replay.run()
    text = "the step, or K-L for the first of these that is not finite"
    replay.option("--step", "K", text, STEPS, required=True)
    replay.flag("--pdb", "stop in the debugger in the training step")

    text = "start a run at a step of another one, with changes"
    fork = burnt.command("fork", text, _FORK_EXAMPLES, "fork")
    fork.words("point", "RUN@STEP", "the run's folder, or its name in runs/, and the step")
    text = "changes; folder= is the folder of the new run"
    fork.words("overrides", "KEY=VALUE", text, nargs="*")
    for command in (replay, fork):
        command.flag("--yes", "do not ask, however long it takes to get to the step")
    for command in (train, fork):
        text = "how progress is shown, unless the function sets it; by default what the terminal supports"
        command.choice("--monitor", ["tui", "live", "plain", "off"], text)

    text = "search for the best settings of a training function"
    sweep = burnt.command("sweep", text, _SWEEP_EXAMPLES, "sweep")
    sweep.words("target", "MODULE:FUNCTION|NAME", "the function, or a sweep to go on with: its name in runs/")
    sweep.words("overrides", "KEY=VALUE", "ranges, choices and other settings", nargs="*")
    sweep.option("--trials", "N", "how many; default: 20, or the whole grid", whole(1))
    text = "what is compared, NAME or NAME:higher; default: what the run is ranked by, or valid/loss"
    sweep.option("--metric", "NAME", text)
    sweep.choice("--sampler", ["tpe", "random", "grid"], "how settings are chosen; default: tpe, of Optuna")
    sweep.choice("--prune", ["median", "halving", "none"], "stop trials that fall behind; default: none")
    sweep.option("--jobs", "N", "trials at the same time; default: 1", whole(1))
    sweep.option("--seed", "N", "of the sampler; default: 0", whole(0))
    sweep.option("--name", "NAME", "its folder in runs/; default: MODULE-sweep")
    sweep.trust()
    sweep.flag("--best", "print the command that trains the best trial again, and exit")

    check = burnt.command("check", "check training functions without training", _CHECK_EXAMPLES, "check")
    text = "functions as for `burnt train`, each followed by its settings"
    check.words("words", "MODULE:FUNCTION [KEY=VALUE ...]", text, nargs="+")

    text = "compute metrics of a run's model on other data"
    evaluate = burnt.command("evaluate", text, _EVALUATE_EXAMPLES, "evaluate")
    evaluate.run()
    evaluate.option("--data", "MODULE:NAME", "the data to evaluate on", required=True)
    evaluate.model()
    text = "metrics by name or as MODULE:NAME, default: the run's"
    evaluate.option("--metrics", "A,B", text)
    evaluate.option("--step", "MODULE:NAME", "the step, for a model without one")
    evaluate.flag("--record", "add the results to the run")

    text = "predict new data by a run's model"
    predict = burnt.command("predict", text, _PREDICT_EXAMPLES, "predict")
    predict.run()
    predict.option("--data", "FILE|FOLDER|MODULE:NAME", "the data to predict", required=True)
    text = "the file to write, .csv, .parquet or .jsonl; default: CSV on standard output"
    predict.option("-o --out", "FILE", text)
    predict.option("--keep", "A,B", "columns of the data to copy, default: all; '' for none")
    predict.flag("--force", "replace a file that exists")
    predict.model()
    for command in (evaluate, predict):
        command.option("--batch-size", "N", "for datasets", whole(1), 256)
        command.option("--device", "DEVICE", "a torch device, default: the fastest")
    for command in (train, replay, fork):
        command.trust()
    for command in (replay, check, evaluate):
        command.json()


def check_train(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check that `burnt train` was given either a function or a run to go on with."""
    if args.resume is not None:
        args.home = "fork:resume"
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
    elif args.trust:
        parser.error("--trust is about the code that a run names: it needs --resume RUN")
