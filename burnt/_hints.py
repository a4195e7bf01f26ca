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

ELSEWHERE = {
    "AdamWScheduleFree": "burnt.optim.ScheduleFreeAdamW",
    "AdaptiveLogSoftmaxWithLoss": "burnt.nn.AdaptiveLogSoftmax",
    "BatchNorm1d": "burnt.nn.BatchNorm",
    "BatchNorm2d": "burnt.nn.BatchNorm",
    "BatchNorm3d": "burnt.nn.BatchNorm",
    "AveragedModel": "burnt.optim.Swa",
    "BatchNormalization": "burnt.nn.BatchNorm",
    "BCE": "burnt.nn.BinaryCrossEntropy",
    "ChainedScheduler": "burnt.optim.Product",
    "ComposedDataset": "burnt.data.concat",
    "ConcatDataset": "burnt.data.concat",
    "Constant": "burnt.nn.init.Constant",
    "ConstantLR": "burnt.optim.Constant",
    "ConvertImageDtype": "burnt.data.transforms.ToFloat",
    "CosineAnnealingLR": "burnt.optim.Cosine",
    "CosineAnnealingLrScheduler": "burnt.optim.Cosine",
    "CosineAnnealingWarmRestarts": "burnt.optim.CosineRestarts",
    "CyclicLR": "burnt.optim.Cyclic",
    "BCELoss": "burnt.nn.BinaryCrossEntropy",
    "BCEWithLogitsLoss": "burnt.nn.BinaryCrossEntropyWithLogits",
    "CrossEntropyLoss": "burnt.nn.CrossEntropy",
    "CrossMapLRN2d": "burnt.nn.LocalResponseNorm",
    "DataLoader": "burnt.data.Loader",
    "Dense": "burnt.nn.Linear",
    "ExponentialMovingAverage": "burnt.optim.Ema",
    "GlorotNormal": "burnt.nn.init.XavierNormal",
    "GlorotUniform": "burnt.nn.init.XavierUniform",
    "HeNormal": "burnt.nn.init.KaimingNormal",
    "HeUniform": "burnt.nn.init.KaimingUniform",
    "Interpolate1d": "burnt.nn.Upsample",
    "Interpolate2d": "burnt.nn.Upsample",
    "ExponentialLR": "burnt.optim.Exponential",
    "FeedForward": "burnt.nn.PositionWiseFeedForward",
    "LambdaLR": "burnt.optim.Function",
    "LayerNormalization": "burnt.nn.LayerNorm",
    "InstanceNorm1d": "burnt.nn.InstanceNorm",
    "InstanceNorm2d": "burnt.nn.InstanceNorm",
    "InstanceNorm3d": "burnt.nn.InstanceNorm",
    "LightningModule": "burnt.Module",
    "LinearLR": "burnt.optim.Linear",
    "LRScheduler": "burnt.optim.Schedule",
    "lr_scheduler": "burnt.optim.Schedule",
    "MAE": "burnt.nn.L1",
    "MapperDataset": "burnt.data.map",
    "MeanAbsoluteError": "burnt.nn.L1",
    "MeanSquaredError": "burnt.nn.Mse",
    "Model": "burnt.Module",
    "ModelCheckpoint": "burnt.train.KeepBest",
    "Module": "burnt.Module",
    "MultiplicativeLR": "burnt.optim.Multiplicative",
    "MultiStepLR": "burnt.optim.MultiStep",
    "OneCycleLR": "burnt.optim.OneCycle",
    "PartialDataset": "burnt.data.chunks",
    "Plateau": "burnt.train.Plateau",
    "PILToTensor": "burnt.data.transforms.ToImage",
    "PolynomialLR": "burnt.optim.Polynomial",
    "random_split": "burnt.data.split",
    "RandomNormal": "burnt.nn.init.Normal",
    "RandomUniform": "burnt.nn.init.Uniform",
    "ReduceLROnPlateau": "burnt.train.Plateau",
    "RoPE": "burnt.nn.RotaryEncoding",
    "SamplerDataset": "burnt.data.sample",
    "SelectionDataset": "burnt.data.select",
    "SequentialLR": "burnt.optim.Sequential",
    "ShuffledDataset": "burnt.data.shuffle",
    "SimpleRNN": "burnt.nn.Rnn",
    "SparseCategoricalCrossentropy": "burnt.nn.CrossEntropy",
    "StepLR": "burnt.optim.Step",
    "Subset": "burnt.data.select",
    "ToDtype": "burnt.data.transforms.ToFloat",
    "swa_utils": "burnt.optim.Swa",
    "TensorCache": "burnt.nn.KeyValueCache",
    "Trainer": "burnt.train.SupervisedTraining",
    "train_test_split": "burnt.data.split",
    "trunc_normal_": "burnt.nn.init.TruncatedNormal",
    "UpsamplingBilinear2d": "burnt.nn.Upsample",
    "WindowsDataset": "burnt.data.windows",
    "UpsamplingNearest2d": "burnt.nn.Upsample",
}
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

    Args:
        package: ``"burnt.nn"``.
        name: the name that was looked up.
        known: the package's public names.

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


SYNONYMS = {
    "accelerator": ("device",),
    "alpha": ("weight",),
    "ckpt_path": ("resume",),
    "collate_fn": ("batcher",),
    "default_root_dir": ("folder",),
    "end_factor": ("end",),
    "dim_feedforward": ("d_ff",),
    "divergence_threshold": ("diverged",),
    "epochs": ("duration",),
    "eta_min": ("end",),
    "eval_dataset": ("valid",),
    "filters": ("out_channels",),
    "grad_clip": ("clip_norm",),
    "gradient_clip_val": ("clip_norm",),
    "init": ("alpha",),
    "input_dim": ("in_features", "num_embeddings"),
    "kdim": ("context_dim",),
    "learning_rate": ("lr", "schedule"),
    "lr": ("schedule",),
    "max_epochs": ("duration",),
    "max_lr": ("lr",),
    "max_grad_norm": ("clip_norm",),
    "max_steps": ("duration",),
    "max_time": ("duration",),
    "monitor": ("metric",),
    "na_values": ("missing",),
    "num_epochs": ("duration",),
    "num_train_epochs": ("duration",),
    "output_dim": ("out_features", "embedding_dim"),
    "output_dir": ("folder",),
    "pad_tokens": ("ignore_index",),
    "r": ("rank",),
    "rate": ("p", "dropout"),
    "sep": ("delimiter",),
    "start_factor": ("start",),
    "start_from_epoch": ("warmup",),
    "step_size": ("every",),
    "stopping_threshold": ("target",),
    "T_0": ("steps",),
    "T_max": ("steps",),
    "T_mult": ("multiplier",),
    "target": ("label",),
    "total_iters": ("steps",),
    "train_dataloader": ("train",),
    "train_dataset": ("train",),
    "units": ("out_features", "hidden_size"),
    "usecols": ("columns",),
    "val_check_interval": ("validate_every",),
    "val_dataloader": ("valid",),
    "val_dataloaders": ("valid",),
    "validation_data": ("valid",),
}
"""Names of arguments in other frameworks -> burnt's; a callable's first one of these is suggested."""

VALUE_SYNONYMS = {"none": "identity", "swish": "silu", "hswish": "hardswish", "hsigmoid": "hardsigmoid"}
"""Values of arguments in other frameworks -> burnt's, both in lower case."""


def explain_arguments(**notes: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that turns the TypeError of a call that does not fit the signature into a hint.

    Args:
        notes: what to say of an argument that the callable lacks: where it belongs, or why it is not needed.

    The decorated callable raises ArgumentError, a TypeError. Calls that fit only pass through it.

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
            what = f"{name}() {error}" if str(error).startswith("missing") else f"{name}(): {error}"
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
