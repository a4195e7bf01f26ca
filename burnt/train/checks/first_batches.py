"""The checks before the first step: one batch of each loader through its step, or only a dry run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from burnt import inspect
from burnt._torch import restored_modes
from burnt._user_code import user_line
from burnt.data import move
from burnt.data.loading.loader import EpochLoader
from burnt.errors import BurntError, DataError, DefinitionError, MetricError, ShapeError, UnsupportedError
from burnt.inspect.meta import run_isolated, uncompiled
from burnt.inspect.signature import Signature, SignatureRecorder
from burnt.inspect.specs import named_tensors, shape_text, tensor_paths, tensors_in
from burnt.train.checkpoints.checkpoint import Loaded
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.checks.targets import TargetChecks, batch_of_extremes
from burnt.train.control.intercepting import use_first_training
from burnt.train.learner import Learner, Steps, checked_output
from burnt.train.logged import collected_names
from burnt.train.loop import remaining_batches, run_validation
from burnt.train.metrics import Metric, intervals, read
from burnt.train.metrics.base import update
from burnt.train.placement import device_of, device_types
from burnt.train.reporting.progress import Reporter
from burnt.train.settings import TrainingSettings
from burnt.train.step import StepOutput
from burnt.train.updates.manual import CheckedSteps, Optimizers, StepOptimizers
from burnt.train.updates.optimizer_step import GradientRules
from burnt.train.updates.precision import WHOLE, autocast


@dataclasses.dataclass
class Findings:
    """What a dry run has checked."""

    checked: dict[str, str]  # subject -> what was found, {"model": "Digits, 92,042 parameters"}
    warnings: list[str]  # what the training would warn of, and what could not be checked


class ValuesNeeded(Exception):
    """Raised where the values of meta parameters are needed; the function is then called with real ones."""


class CollectingReporter(Reporter):
    """Keeps the messages of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        """Keep a message."""
        self.messages.append(text.removeprefix("Warning: "))


def dry_run(function: Callable[[], object]) -> Findings:
    """Call a function, and return what `SupervisedTraining.run` has checked in it instead of training.

    Only the first training is checked, since what follows may need its results. The parameters of modules
    are meta tensors; if the function or a check needs their values, the function is called a second time
    with real ones. Any error of the function or of the checks is raised.
    """

    def check() -> Findings:
        name = getattr(function, "__qualname__", type(function).__name__)
        found: Findings = use_first_training(
            function, lambda training, learner: training.check_only(learner), name
        )
        return found

    try:
        with _meta_parameters():
            return check()
    except BurntError as error:
        if "meta" not in str(error):
            raise
    except Exception:
        # Where a meta tensor has no values, torch and the user's code may raise anything; if the error has
        # another cause, the second call raises it again.
        pass
    return check()


@contextlib.contextmanager
def _meta_parameters() -> Iterator[None]:
    """Context in which each parameter that a module registers is replaced by a meta tensor.

    The memory of the original, which is not written yet as a rule, is freed at once.
    """
    meta_copies = WeakTensorKeyDictionary()  # a parameter that two modules share has one copy

    def replace(
        module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None
    ) -> torch.nn.Parameter | None:
        if parameter is None or parameter.is_meta or type(parameter) is not torch.nn.Parameter:
            return parameter
        if parameter not in meta_copies:
            meta = torch.empty_like(parameter.detach(), device="meta")
            meta_copies[parameter] = torch.nn.Parameter(meta, requires_grad=parameter.requires_grad)
        meta_copy: torch.nn.Parameter = meta_copies[parameter]
        return meta_copy

    # Its annotation leaves out what its documentation says: the hook may return another parameter.
    handle = register_module_parameter_registration_hook(replace)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


_CLASSES = "torch's losses take classes of int64: labels.long(), or masks.long()\n"


@dataclasses.dataclass
class FirstBatches:
    """What the checks have found out: `signature` and `sources` are as in `TrainedAs`, for config.json.

    `targets` has the dtype of the step's targets, if they are a tensor, and ``entry``, that of the batch that
    they are, None for computed ones.

    The output of the training step has meta tensors; it is None if the step cannot run without values.
    """

    shapes: Mapping[str, str]  # of the modules' outputs, by path
    signature: dict[str, Any]
    sources: list[list[str | int] | None] = dataclasses.field(default_factory=list)
    targets: dict[str, Any] = dataclasses.field(default_factory=dict)
    output: StepOutput | None = None
    crossings: tuple[inspect.Crossing, ...] = ()

    def load_document(self) -> dict[str, Any]:
        """Return what predictions need to know of the model's inputs and targets, for config.json."""
        return {"signature": self.signature, "sources": self.sources, "targets": self.targets}


def check_first_batches(
    settings: TrainingSettings, learner: Learner, steps: Steps, loaded: Loaded
) -> FirstBatches:
    """Run a training step and the validation steps on one batch each; random states are restored.

    A training that goes on in the middle of an epoch is checked on its next batch: those that were served
    are not loaded again. Whatever does not fit raises a BurntError that says what.
    """
    rng = RandomStates.capture()
    try:
        found = _check_training_step(settings, learner, loaded)
        if found.output is not None:  # without values a metric may fail: then the first step tells
            _check_metrics([metric for metric in settings.metrics if metric.scalar], found.output)
        inputs: list[Any] = []
        for split in settings.valid:
            if settings.ranks is not None and not settings.ranks.has_replicas:
                _check_validation_shapes(settings, learner, split)  # the model is not on its device yet
            else:
                inputs += _check_validation_step(settings, steps, split)
        # The ranges of the values that the model was given.
        tensors = list(tensors_in(inputs[:1]))
        if "unknown" not in found.signature and len(tensors) == len(found.signature["inputs"]):
            found.signature = Signature.from_dict(found.signature).with_ranges(tensors).to_dict()
        return found
    finally:
        rng.restore()


def check_without_values(settings: TrainingSettings, learner: Learner) -> dict[str, str]:
    """Run the shapes of the first batches through the steps and the metrics, without values and memory.

    A step or metric that needs values is run on the batch itself, on the model's device; `ValuesNeeded` is
    raised if the parameters are meta tensors. What such a run changes in the model, such as running
    statistics, stays changed. Returned are, by split, the shapes of its first batch and of the step's output.
    """
    settings.placement = settings.placement.for_model(learner.model)
    settings.placement.add_hooks(learner.model)
    checked = _check_training_step(settings, learner, Loaded())
    output = checked.output
    batch = next(iter(settings.train.epoch(0)))
    scalars = [metric for metric in settings.metrics if metric.scalar]
    with_values = functools.cache(lambda: _step_with_values(learner, batch, "training"))
    output = output or with_values()
    _check_metrics(scalars, output, with_values)
    shapes = {"train": _step_text(batch, output)}
    for split in settings.valid:
        shapes[split] = _check_validation_shapes(settings, learner, split)
    if settings.placement.devices:
        in_step = f"a step has {settings.accumulate} of: " if settings.accumulate > 1 else ""
        copies = "; ".join(map(str, checked.crossings)) or "none seen"
        shapes["devices"] = f"{settings.placement}. Crossings of a step: {in_step}{copies}"
    return shapes


def _check_validation_shapes(settings: TrainingSettings, learner: Learner, split: str) -> str:
    loader, message = settings.valid[split], settings.reporter.message
    batch = _first_batch(loader, split)
    with restored_modes(learner.model):
        learner.model.eval()
        unchecked, outputs, messages = run_isolated(lambda: _validation_shapes(learner, split, loader, batch))
        for text in messages:
            message(text)
        with_values = functools.cache(lambda: _step_with_values(learner, batch, "validation"))
        output = with_values() if unchecked else outputs
        output = checked_output(output, learner.validation_step, "validation")
        _check_loss(output, "validation")
        _check_metrics(settings.metrics, output, with_values, "validation")
    return _step_text(batch, output)


def _validation_shapes(
    learner: Learner, split: str, loader: EpochLoader[Any], batch: Any
) -> tuple[bool, Any, list[str]]:
    """Return whether a validation step needs values, what it returns without them, and warnings."""
    messages: list[str] = []
    targets = TargetChecks(batch_of_extremes(loader, batch))
    step = targets.recorded(learner.validation_step)
    report = inspect.check(learner.model, batch, call=step, backward=False)
    targets.check_values(f"the validation step of {split}", messages.append)
    messages += [f"Warning: not checked: validation step, {line}" for line in report.unchecked]
    return bool(report.unchecked), report.outputs, messages


def _step_with_values(learner: Learner, batch: Any, kind: str) -> StepOutput:
    device = device_of(learner.model)
    if device.type == "meta":
        raise ValuesNeeded
    step = learner.step if kind == "training" else learner.validation_step
    extra = []
    if kind == "training" and isinstance(learner.optimizer, Optimizers):
        extra = [StepOptimizers(learner.optimizer, learner.model, GradientRules(), CheckedSteps())]
    with torch.set_grad_enabled(bool(extra)):  # a step with optimizers takes gradients itself
        output = step(learner.model, move(batch, device), *extra)
    return checked_output(output, step, kind)


def _check_metrics(
    metrics: Sequence[Metric],
    output: StepOutput,
    with_values: Callable[[], StepOutput] | None = None,
    kind: str = "training",
) -> None:
    """Update copies of the metrics with a step's output of meta tensors, or where that fails, of values."""
    for metric in metrics:
        try:
            update(metric.fresh(), output, is_first=True)
            continue
        except BurntError:
            raise
        except Exception:
            if with_values is None:
                continue
            found = with_values()
        try:
            update(metric.fresh(), found, is_first=True)
        except BurntError:
            raise
        except Exception as error:
            raise MetricError(
                f"{metric.name} does not take the output of the {kind} step",
                where=f"{type(metric).__name__}.update",
                found=f"{type(error).__name__}: {error}, from {found!r}",
            ) from error


def _step_text(batch: Any, output: StepOutput) -> str:
    given = named_tensors(batch, "batch")
    text = ", ".join(f"{name} {shape_text(tensor)}" for name, tensor in given.items())
    shapes = [
        f"{path} {tuple(tensor.shape)}"
        for name in ("loss", "outputs", "targets")
        for path, tensor in named_tensors(getattr(output, name), name).items()
    ]
    return f"{text} -> {', '.join(shapes)}"


def _check_training_step(settings: TrainingSettings, learner: Learner, loaded: Loaded) -> FirstBatches:
    train, position, message = settings.train, loaded.position, settings.reporter.message
    if position.batch and getattr(train, "replays", False):
        # The loop goes through the batches before it, once.
        return FirstBatches({}, {"unknown": "the run was resumed in the middle of an epoch"})
    batches = remaining_batches(train, position, loaded.document.get("loader_state"))
    batch = next(iter(batches), None)
    if batch is None:
        if position.batch == 0:
            raise _no_batches("train")
        return FirstBatches({}, {"unknown": "the run was resumed at the end of an epoch"})
    found, messages = run_isolated(lambda: _training_shapes(settings, learner, batch))
    for text in messages:
        message(text)
    return found


def _training_shapes(
    settings: TrainingSettings, learner: Learner, batch: Any
) -> tuple[FirstBatches, list[str]]:
    """Run a training step on the shapes of a batch; return what was found, and warnings."""
    messages: list[str] = []
    recorder = SignatureRecorder()
    optimizers = learner.optimizer if isinstance(learner.optimizer, Optimizers) else None
    found = CheckedSteps()
    about_targets: dict[str, Any] = {}

    def call(model: torch.nn.Module, batch: Any) -> StepOutput:
        if settings.precision == WHOLE:
            model.float()  # a copy of the model: autocast, which makes the dtypes fit, has no meta tensors
        if optimizers is None:
            output = learner.step(model, batch)
        else:
            output = learner.step(model, batch, StepOptimizers(optimizers, model, GradientRules(), found))
        given = getattr(output, "targets", None)
        if isinstance(given, torch.Tensor):
            path = tensor_paths(batch).get(id(given))
            about_targets["dtype"] = str(given.dtype).removeprefix("torch.")
            about_targets["entry"] = None if path is None else path[0]
        return output

    targets = TargetChecks(batch_of_extremes(settings.train, batch))
    step = recorder.recorded(targets.recorded(call))
    step.__name__ = getattr(learner.step, "__name__", "the training step")  # for messages
    report = inspect.check(learner.model, batch, call=step, backward=optimizers is None)
    targets.check_values("the training step", messages.append)
    try:
        signature = recorder.signature().to_dict()
    except UnsupportedError as error:
        signature = {"unknown": f"{error.what}: {error.found}"}
    trainable = [path for path, p in learner.model.named_parameters() if p.requires_grad]
    without_gradient = report.without_gradient
    if optimizers is not None:
        if found.error is not None:
            raise found.error
        unreached = [path for path in trainable if path not in found.reached]
        without_gradient = () if report.unchecked else tuple(unreached)
    if not report.unchecked:
        output = checked_output(report.outputs, learner.step, "training")
        _check_loss(output, "training", report.batch_sizes[:1])
        targets.check_shapes(output, "the training step")
        if len(without_gradient) == len(trainable):
            raise BurntError(
                "the loss depends on no trainable parameter",
                found=f"{len(trainable)} trainable parameters, none of which the loss reaches",
                hint="is the model frozen, or the loss detached or computed under no_grad?",
            )
        if learner.compile is not False and "" not in report.shapes:
            raise DefinitionError(
                "compile= has no effect, as the training step does not call the model itself",
                expected="a step that calls model(...)",
                found=f"calls of {', '.join(report.shapes) or 'no module'}"[:200],
                hint='without it, compile what the step calls: model.encoder.compile(backend="burnt")',
            )
    messages += [f"Warning: not checked: {line}" for line in report.unchecked]
    messages += [
        f"Warning: {path} will not be trained, because the loss does not depend on it."
        for path in without_gradient
    ]
    sources = [None if path is None else list(path) for path in recorder.sources()]
    if "unknown" in signature and report.unchecked:
        sources = [None]  # the step needs values for what it gives the model
    found_first = FirstBatches(
        report.shapes, signature, sources, about_targets, report.outputs, report.crossings
    )
    return found_first, messages


def _check_validation_step(settings: TrainingSettings, steps: Steps, split: str) -> list[Any]:
    """Run the validation step; return the arguments of the model's calls."""
    batch = _first_batch(settings.valid[split], "valid" if split == "valid" else f"valid[{split!r}]")
    device = device_of(steps.model)
    seen: list[StepOutput] = []
    inputs: list[Any] = []
    hooks = [
        steps.register_forward_hook(lambda module, inputs, output: seen.append(output)),
        steps.model.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.append((args, kwargs)), with_kwargs=True
        ),
    ]
    metrics = [metric.fresh() for metric in settings.metrics]
    try:
        with collected_names() as logged:
            context = functools.partial(autocast, settings.precision, *device_types(steps.model))
            with uncompiled():  # the hooks would be compiled, too
                run_validation(steps, [move(batch, device)], metrics, context, logged.update)
    except BurntError:
        raise
    except Exception as error:
        raise BurntError(
            "the validation step fails on its first batch",
            where=f"{type(steps.model).__name__}, {split}, {batch!r}"[:200],
            found=f"{type(error).__name__}: {error}",
            origin=() if (line := user_line(error)) is None else (line,),
            hint=(_CLASSES if "Long" in str(error) else "")
            + "this check ran before the first training step; nothing was written",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    for output in seen:
        _check_loss(output, "validation")
    for monitored in settings.monitored:
        if monitored.split == split and monitored.is_logged:
            logged.update(intervals(metrics, read(metrics), None))
            monitored.check(logged, "of its first batch")
    return inputs


def _first_batch(loader: EpochLoader[Any], name: str) -> Any:
    batch = next(iter(loader.epoch(0)), None)
    if batch is None:
        raise _no_batches(name)
    return batch


def _no_batches(name: str) -> DataError:
    return DataError(
        f"{name}= gave no batches", hint="is its dataset empty? Can it be iterated more than once?"
    )


def _check_loss(output: StepOutput, kind: str, batch_sizes: Sequence[int] = ()) -> None:
    if not isinstance(output.loss, torch.Tensor) or output.loss.dim() != 0:
        raise ShapeError(
            f"the loss of the {kind} step is not a scalar",
            expected="a tensor of shape ()",
            found=f"shape {tuple(output.loss.shape)}" + "".join(f" for a batch of {n}" for n in batch_sizes)
            if isinstance(output.loss, torch.Tensor)
            else type(output.loss).__name__,
            hint="reduce it with .mean(); reduction='none' returns one value per item",
        )
