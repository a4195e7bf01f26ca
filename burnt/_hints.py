"""Hints for names and arguments that burnt lacks: those of torch, Lightning and Keras, and misspelt ones.

The tables hold only what closeness does not find. The tests find entries that are no longer needed or that
name what does not exist.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from burnt.errors import ArgumentError, BurntError, nearest

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE_BY_NAME = {
    "burnt.data.chunks": "PartialDataset",
    "burnt.data.concat": "ComposedDataset ConcatDataset",
    "burnt.data.Loader": "DataLoader",
    "burnt.data.map": "MapperDataset",
    "burnt.data.sample": "SamplerDataset",
    "burnt.data.select": "SelectionDataset Subset",
    "burnt.data.shuffle": "ShuffledDataset",
    "burnt.data.split": "random_split train_test_split",
    "burnt.data.transforms.ToFloat": "ConvertImageDtype ToDtype",
    "burnt.data.transforms.ToImage": "PILToTensor",
    "burnt.data.windows": "WindowsDataset",
    "burnt.Module": "LightningModule Model Module",
    "burnt.nn.AdaptiveLogSoftmax": "AdaptiveLogSoftmaxWithLoss",
    "burnt.nn.BatchNorm": "BatchNorm1d BatchNorm2d BatchNorm3d BatchNormalization",
    "burnt.nn.BinaryCrossEntropy": "BCE BCELoss",
    "burnt.nn.BinaryCrossEntropyWithLogits": "BCEWithLogitsLoss",
    "burnt.nn.CrossEntropy": "CrossEntropyLoss SparseCategoricalCrossentropy",
    "burnt.nn.init.Constant": "Constant",
    "burnt.nn.init.KaimingNormal": "HeNormal",
    "burnt.nn.init.KaimingUniform": "HeUniform",
    "burnt.nn.init.Normal": "RandomNormal",
    "burnt.nn.init.TruncatedNormal": "trunc_normal_",
    "burnt.nn.init.Uniform": "RandomUniform",
    "burnt.nn.init.XavierNormal": "GlorotNormal",
    "burnt.nn.init.XavierUniform": "GlorotUniform",
    "burnt.nn.InstanceNorm": "InstanceNorm1d InstanceNorm2d InstanceNorm3d",
    "burnt.nn.KeyValueCache": "TensorCache",
    "burnt.nn.L1": "MAE MeanAbsoluteError",
    "burnt.nn.LayerNorm": "LayerNormalization",
    "burnt.nn.Linear": "Dense",
    "burnt.nn.LocalResponseNorm": "CrossMapLRN2d",
    "burnt.nn.Mse": "MeanSquaredError",
    "burnt.nn.PositionWiseFeedForward": "FeedForward",
    "burnt.nn.Rnn": "SimpleRNN",
    "burnt.nn.RotaryEncoding": "RoPE",
    "burnt.nn.Upsample": "Interpolate1d Interpolate2d UpsamplingBilinear2d UpsamplingNearest2d",
    "burnt.optim.Constant": "ConstantLR",
    "burnt.optim.Cosine": "CosineAnnealingLR CosineAnnealingLrScheduler",
    "burnt.optim.CosineRestarts": "CosineAnnealingWarmRestarts",
    "burnt.optim.Cyclic": "CyclicLR",
    "burnt.optim.Ema": "ExponentialMovingAverage",
    "burnt.optim.Exponential": "ExponentialLR",
    "burnt.optim.Function": "LambdaLR",
    "burnt.optim.Linear": "LinearLR",
    "burnt.optim.Multiplicative": "MultiplicativeLR",
    "burnt.optim.MultiStep": "MultiStepLR",
    "burnt.optim.OneCycle": "OneCycleLR",
    "burnt.optim.Polynomial": "PolynomialLR",
    "burnt.optim.Product": "ChainedScheduler",
    "burnt.optim.Schedule": "LRScheduler lr_scheduler",
    "burnt.optim.ScheduleFreeAdamW": "AdamWScheduleFree",
    "burnt.optim.Sequential": "SequentialLR",
    "burnt.optim.Step": "StepLR",
    "burnt.optim.Swa": "AveragedModel swa_utils",
    "burnt.train.KeepBest": "ModelCheckpoint",
    "burnt.train.Plateau": "Plateau ReduceLROnPlateau",
    "burnt.train.SupervisedTraining": "Trainer",
}
ELSEWHERE = {name: own for own, names in _ELSEWHERE_BY_NAME.items() for name in names.split()}
"""Names of other frameworks -> what burnt has for it."""

_ADVICE = {
    "Bidirectional": "bidirectional=True of burnt.nn.Lstm, Gru and Rnn",
    "clip_grad_norm_": "clip_norm= of burnt.train.SupervisedTraining, or of an optimizer's step",
    "clip_grad_value_": "burnt clips norms: clip_norm= of burnt.train.SupervisedTraining",
    "ComposedLrScheduler": "use burnt.optim.Sum, burnt.optim.Product or burnt.optim.Mean",
    "DeformConv2d": "left out: torchvision.ops.DeformConv2d works inside a burnt Module",
    "export": "use burnt.onnx.export",
    "Initializer": "initializers are in burnt.nn.init",
    "Masking": "lengths= of the recurrent layers, and key_padding_mask= of attention",
    "pack_padded_sequence": "lengths= of the recurrent layers, which also take a PackedSequence of torch",
    "pad_sequence": "use torch.nn.utils.rnn.pad_sequence",
    "PaddingConfig1d": "use padding= of the layer: 'same', 'valid' or numbers",
    "PaddingConfig2d": "use padding= of the layer: 'same', 'valid' or numbers",
    "PaddingConfig3d": "use padding= of the layer: 'same', 'valid' or numbers",
    "TimeDistributed": "layers such as burnt.nn.Linear take any axes before the features",
    "ToTensor": "use burnt.data.transforms.ToImage, and ToFloat to scale to 0 to 1",
    "UpsamplingBilinear2d": "use burnt.nn.Upsample(mode='bilinear', align_corners=True)",
}
"""Names of other frameworks -> what to do in burnt, where no single name stands for them."""

_TORCH = {
    "burnt": ("torch", "burnt works on torch tensors"),
    "burnt.data": ("torch.utils.data", "it works with burnt's loaders and trainings"),
    "burnt.nn": ("torch.nn", "it works inside a burnt Module"),
    "burnt.nn.init": ("torch.nn.init", "which works on tensors"),
    "burnt.optim": ("torch.optim", "it steps burnt modules in a loop of your own, but not in a Learner"),
}
"""burnt's packages -> torch's for the same purpose, and what holds for a name that only torch has."""

_HOMES = ("burnt.nn", "burnt.optim", "burnt.data", "burnt.train")

_CONTENTS = (
    "layers are in burnt.nn, optimizers and schedules in burnt.optim, loaders in burnt.data, "
    "the Learner and the training in burnt.train"
)


def no_attribute(package: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that a package lacks, with the nearest name, or where else it is.

    >>> print(no_attribute("burnt.nn", "LSTM", ["Lstm", "Linear"]))
    module 'burnt.nn' has no attribute 'LSTM': did you mean burnt.nn.Lstm?
    """
    text = f"module {package!r} has no attribute {name!r}"
    hint = None if name.startswith("_") else _attribute_hint(package, name, list(known))
    # With obj=None, Python does not add a guess of its own to the traceback.
    return AttributeError(f"{text}: {hint}" if hint else text, name=name, obj=None)


def _attribute_hint(package: str, name: str, known: list[str]) -> str | None:
    by_lower = {other.lower(): other for other in known}
    torch_name, note = _TORCH.get(package, ("", ""))
    # Never imported for a hint: looking up a submodule that is not loaded yet comes here too.
    # Losses of others end in Loss, Burn's schedules in LrScheduler; xavier_uniform_ is XavierUniform.
    lower = name.lower()
    bare = lower.removesuffix("loss").removesuffix("lrscheduler").replace("_", "")
    same = by_lower.get(lower) or by_lower.get(bare)
    if same is not None:
        return f"did you mean {package}.{same}?"
    if ranks := [by_lower[f"{lower}{n}d"] for n in (1, 2, 3) if f"{lower}{n}d" in by_lower]:
        return f"did you mean {' or '.join(f'{package}.{other}' for other in ranks)}?"
    if name in _ADVICE:
        return _ADVICE[name]
    if name in ELSEWHERE:
        return f"use {ELSEWHERE[name]}"
    homes = [f"{home}.{name}" for home in _HOMES if name in getattr(sys.modules.get(home), "__all__", ())]
    if homes:
        return f"use {' or '.join(homes)}"
    if hasattr(sys.modules.get(torch_name), name):
        return f"use {torch_name}.{name}, {note}"
    if (close := nearest(name.lower(), by_lower)) is not None:
        return f"did you mean {package}.{by_lower[close]}?"
    return _CONTENTS if package == "burnt" else None


_SYNONYMS_BY_NAME = {
    "alpha": "init",
    "batcher": "collate_fn",
    "clip_norm": "grad_clip gradient_clip_val max_grad_norm",
    "columns": "usecols",
    "context_dim": "kdim",
    "d_ff": "dim_feedforward",
    "delimiter": "sep",
    "device": "accelerator",
    "diverged": "divergence_threshold",
    "p": "rate",
    "duration": "epochs max_epochs max_steps max_time num_epochs num_train_epochs",
    "out_features": "output_dim units",
    "end": "end_factor eta_min",
    "every": "step_size",
    "folder": "default_root_dir output_dir",
    "hidden_size": "units",
    "ignore_index": "pad_tokens",
    "in_features": "input_dim",
    "label": "target",
    "lr": "learning_rate max_lr",
    "metric": "monitor",
    "missing": "na_values",
    "multiplier": "T_mult",
    "num_embeddings": "input_dim",
    "out_channels": "filters",
    "embedding_dim": "output_dim",
    "dropout": "rate",
    "rank": "r",
    "resume": "ckpt_path",
    "schedule": "learning_rate lr",
    "start": "start_factor",
    "steps": "T_0 T_max total_iters",
    "target": "stopping_threshold",
    "train": "train_dataloader train_dataset",
    "valid": "eval_dataset val_dataloader val_dataloaders validation_data",
    "validate_every": "val_check_interval",
    "warmup": "start_from_epoch",
    "weight": "alpha",
}
SYNONYMS = {
    other: [own for own, others in _SYNONYMS_BY_NAME.items() if other in others.split()]
    for others in _SYNONYMS_BY_NAME.values()
    for other in others.split()
}
"""Names of arguments in other frameworks -> burnt's; a callable's first one of these is suggested."""

VALUE_SYNONYMS = {"none": "identity", "swish": "silu", "hswish": "hardswish", "hsigmoid": "hardsigmoid"}
"""Values of arguments in other frameworks -> burnt's, both in lower case."""


def explain_arguments(**notes: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that turns the TypeError of a call that does not fit the signature into a hint.

    `notes` say of arguments that the callable lacks where they belong, or why they are not needed, and of
    required ones how to give them. The decorated callable raises ArgumentError, a TypeError. Calls that fit
    only pass through it.

    >>> @explain_arguments(num_workers="items are loaded in this process")
    ... def load(batch_size): ...
    >>> load(batchsize=8)
    Traceback (most recent call last):
    burnt.errors.ArgumentError: load() got an unexpected keyword argument 'batchsize'
      expected  batch_size
      hint      did you mean 'batch_size'?
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except BurntError:
                raise
            except TypeError:
                error = argument_error(call, args, kwargs, notes)
                if error is None:  # it was raised inside
                    raise
            raise error

        return call

    return decorate


def argument_error(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    notes: Mapping[str, str] | None = None,
) -> ArgumentError | None:
    """Return why arguments do not fit a callable's signature, with hints; None if they fit."""
    signature = inspect.signature(fn)
    names = [name for name in signature.parameters if name != "self"]
    unknown = [name for name in kwargs if name not in names]
    # A class that inherits its arguments speaks for itself.
    name = type(args[0]).__qualname__ if fn.__name__ == "__init__" and args else fn.__qualname__
    if unknown:
        what = f"{name}() got an unexpected keyword argument {unknown[0]!r}"
    else:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            is_missing = str(error).startswith("missing")
            what = f"{name}() {error}" if is_missing else f"{name}(): {error}"
            missing = [one for one in notes or () if is_missing and str(error).endswith(repr(one))]
            if missing and notes is not None:
                return ArgumentError(what, expected=", ".join(names), hint=notes[missing[0]])
            if len(args) > 1 and hasattr(args[0], "from_torch") and hasattr(args[1], "state_dict"):
                copied = f"{name}.from_torch(module) copies one of torch"
                return ArgumentError(what, expected=", ".join(names), hint=copied)
        else:
            return None
    hints = {argument: _argument_hint(argument, names, notes or {}) for argument in unknown}
    lines = [hint if len(unknown) == 1 else f"{argument}: {hint}" for argument, hint in hints.items() if hint]
    return ArgumentError(what, expected=", ".join(names) or "no arguments", hint="\n".join(lines) or None)


def _argument_hint(name: str, known: list[str], notes: Mapping[str, str]) -> str | None:
    if name in notes:
        return notes[name]
    synonym = next((other for other in SYNONYMS.get(name, ()) if other in known), None)
    guess = synonym or nearest(name, known)
    return f"did you mean {guess!r}?" if guess else None
