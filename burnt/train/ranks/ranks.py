"""Ranks: the processes that train one model together, and what they tell each other, by torch.distributed.

Each rank runs the same loop on its part of each batch. Gradients, metrics and decisions are common: what one
rank alone knows (its number of items, a loss that is not finite, a signal, a command in rank 0's folder, rank
0's clock) is summed or sent before any rank acts on it, so that all ranks take the same branches.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import itertools
import math
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from burnt.data import Part, move
from burnt.data.seeds import seed_global_states, seed_of
from burnt.errors import RankError, UnsupportedError, clean
from burnt.gradients import Gradients, summed_dtype
from burnt.inspect.specs import tensors_in
from burnt.nn import SyncBatchNorm
from burnt.optim import Optimizer, OptimizerRecord
from burnt.record import Record, load_into, record_of
from burnt.store import RunWriter
from burnt.store.schema import RANKS, RUN_FILE
from burnt.train.checkpoints.rng import RandomStates
from burnt.train.code.source import is_restartable, resume_command
from burnt.train.learner import Learner
from burnt.train.metrics.base import EpochMetric, Metric
from burnt.train.ranks.early import EarlySums, grouped
from burnt.train.ranks.launch import Launched, PrefixStore
from burnt.train.ranks.parts import PartLoader
from burnt.train.step import StepOutput
from burnt.train.updates.manual import Optimizers
from burnt.train.updates.optimizer_step import WindowGradients
from burnt.train.updates.outcome import StepOutcomes

T = TypeVar("T")
_BUCKET_BYTES = 25 << 20  # as torch's DistributedDataParallel
_POLL_SECONDS = 0.02
_DONE = "done"
_FAILURE, _FAILURE_SECONDS = "failure", 2.0
_TRAININGS = itertools.count()
"""Numbers the trainings of this process, in the same order on all ranks."""


class _OtherFailed(RankError):
    """This rank cannot go on as another one has failed, died or hangs."""


class Ranks:
    """The strategy ``"ddp"``: each rank has the whole model, and the gradients are summed over the ranks.

    A strategy of one's own is a subclass, given as ``strategy=``; what it overrides is `sum`, through which
    all gradients go, or `mean`.

    Args:
        timeout: seconds after which ranks that wait for another one give up.

    Attributes:
        rank: the number of this process, from 0, which writes the run.
        size: the number of processes.
        device: where this process computes.
    """

    name = "ddp"
    needs_launcher = True
    """Whether a process by itself is an error; a strategy of one's own may find the others in another way."""
    has_replicas = True
    """Whether each rank has the whole model, with the same values."""

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self.rank, self.size = 0, 1
        self.device = torch.device("cpu")
        self.seconds = 0.0
        """The seconds of training on rank 0's clock, at the last step."""
        self.clock: Callable[[], float] = float
        self.poll: Callable[[], tuple[int | None, Sequence[Any]]] = lambda: (None, [])
        """Returns the signal and the commands that this rank has got."""
        self._collected: tuple[int | None, list[Any]] | None = None
        self.wait_seconds = 0.0
        """The seconds of training in which this rank has waited for others, since they were last logged."""
        self.part = Part(None, 1, 1)
        """The part of a batch that this rank works on."""
        self.is_joint = False
        """Whether the backward passes of the ranks need each other, as by `nn.SyncBatchNorm`."""
        self._joint_counts: list[int] = []
        self._early: EarlySums | None = None
        self._is_early = False
        self._firsts = 0
        self._has_drifted = False
        self._secondary: RankError | None = None

    def join(self, launched: Launched, device: torch.device) -> None:
        """Meet the other processes, by torch.distributed; done once for all trainings of a process."""
        self.rank, self.size, self.device = launched.rank, launched.size, launched.device(device)
        store = launched.store(self.timeout)
        if not dist.is_initialized():
            meet = functools.partial(
                dist.init_process_group,
                launched.backend(self.device),
                store=PrefixStore("group", store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=self.timeout),
            )
            self._together(meet)
            atexit.register(_leave)
        elif "cpu:" not in dist.get_backend_config():
            raise RankError(
                "the processes have no way to exchange what is on their hosts",
                where=f"rank {self.rank} of {self.size}",
                expected=f"a process group with the backends {launched.backend(self.device)!r}",
                found=dist.get_backend_config(),
                hint="leave init_process_group to the training, or give it these backends",
            )
        if self.device.type == "cuda":
            gpus = self.every(str(torch.cuda.get_device_properties(self.device).uuid))
            if (same := gpus.index(gpus[self.rank])) != self.rank:
                raise launched.too_few_gpus(f"a GPU that rank {same} has")
        self._store = PrefixStore(f"training/{next(_TRAININGS)}", store)
        self._firsts = 0

    # messages

    def every(self, value: T) -> list[T]:
        """Return the values of all ranks, which JSON or pickle can hold."""
        values: list[Any] = [None] * self.size
        self._together(dist.all_gather_object, values, value)
        return values

    def _together(self, operation: Callable[..., object], *arguments: object) -> None:
        """Call an operation of torch.distributed that all ranks take part in."""
        since = self.clock()
        try:
            operation(*arguments)
            self.wait_seconds += self.clock() - since
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> _OtherFailed:
        return _OtherFailed(
            "another rank has died or hangs",
            where=f"rank {self.rank} of {self.size}",
            expected=f"an answer within {self.timeout:g} s",
            found=str(error).splitlines()[0],
        )

    def _ask(self, question: Callable[..., T], *arguments: object, seconds: float | None = None) -> T:
        """Call a method of the store, whose process may have ended, or be stopped: it has no timeout then."""
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put((question(*arguments), None))
            except RuntimeError as error:
                answers.put((None, error))

        threading.Thread(target=ask, name="burnt-rank-ask", daemon=True).start()
        seconds = self.timeout if seconds is None else seconds
        try:
            answer, error = answers.get(timeout=seconds)
        except queue.Empty:
            answer, error = None, TimeoutError(f"no answer within {seconds:g} s")
        if error is not None:
            raise _OtherFailed(
                "the process in which the ranks meet has ended or hangs: rank 0, or the launcher",
                where=f"rank {self.rank} of {self.size}",
                found=str(error).splitlines()[0],
            ) from error
        value: T = answer
        return value

    def first(self, make: Callable[[], T]) -> T:
        """Return on all ranks what a function returns on rank 0, however long it takes there.

        An error there is raised there; the other ranks raise a RankError.
        """
        self._firsts += 1
        key = f"first/{self._firsts}"
        found: Any = None
        if self.rank:
            if (failure := self._wait(key)) != _DONE:
                raise _OtherFailed("rank 0 has failed", found=failure)
        else:
            with self._beating():
                try:
                    found = make()
                except BaseException as error:
                    with contextlib.suppress(_OtherFailed):  # this error is the first one
                        self._ask(self._store.set, key, f"{type(error).__name__}: {error}")
                    raise
            self._ask(self._store.set, key, _DONE)
        # All send something: rank 0, whose end can be that of the store, goes on when they have read the key.
        value: T = self.every(found)[0]
        return value

    def _wait(self, key: str) -> str:
        """Wait for rank 0 to set a key, as long as it shows that it is alive."""
        beat, since = -1, time.monotonic()
        while not self._ask(self._store.check, [key]):
            time.sleep(_POLL_SECONDS)
            if (now := self._ask(self._store.add, "beat", 0)) != beat:
                beat, since = now, time.monotonic()
            elif time.monotonic() - since > self.timeout:
                raise _OtherFailed(
                    "rank 0 does not answer", expected=f"a sign of life within {self.timeout:g} s"
                )
        found: str = self._ask(self._store.get, key).decode()
        return found

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Show the other ranks that this one is alive while the block runs."""
        stop = threading.Event()

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store has gone: the next message tells
                while not stop.wait(min(self.timeout / 6, 5.0)):
                    self._store.add("beat", 1)

        thread = threading.Thread(target=beat, name="burnt-rank-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(self.timeout)

    def totals(self, values: Sequence[float]) -> list[float]:
        """Return the sums of some numbers over the ranks."""
        message = torch.tensor(values, dtype=torch.float64)
        self._together(dist.all_reduce, message)
        totals: list[float] = message.tolist()
        return totals

    def common_commands(self) -> tuple[int | None, list[Any]]:
        """Return the signal and the commands that any rank has got, the same on all of them.

        Those of a step came with its gradients; elsewhere the ranks ask each other.
        """
        if self._collected is None:
            own = self.poll()
            self._collect(own, any(self.totals(_numbers_of(own))))
        assert self._collected is not None
        heard, self._collected = self._collected, None
        return heard

    def _collect(self, own: tuple[int | None, Sequence[Any]], has_some: bool) -> None:
        """Keep what all ranks have got, until `common_commands` returns it."""
        signal, commands = self._collected or (None, [])
        if has_some:
            everything = self.every(own)
            signal = max((number for number, _ in everything if number is not None), default=signal)
            commands = [*commands, *(command for _, some in everything for command in some)]
        self._collected = signal, commands

    def share_seconds(self) -> float:
        """Return the seconds of rank 0's clock."""
        self.seconds = self.totals([self.clock() if self.rank == 0 else 0.0])[0]
        return self.seconds

    def agreed(self, value: T | None) -> T | None:
        """Return the value of the first rank that has one, on all of them."""
        if not self.totals([float(value is not None)])[0]:
            return None
        return next(one for one in self.every(value) if one is not None)

    def check_same(self, values: Mapping[str, Any], hint: str | None = None) -> None:
        """Raise a RankError on all ranks if values by name, or by name in these, are not the same on each."""
        every = self.every(values)
        for rank, other in enumerate(every):
            if other == every[0]:
                continue
            names, expected, found = [], every[0], other
            while isinstance(expected, Mapping) and isinstance(found, Mapping):
                name = next(n for n in [*expected, *found] if expected.get(n) != found.get(n))
                names.append(name)
                expected, found = expected.get(name, "nothing"), found.get(name, "nothing")
            raise RankError(
                f"the ranks differ in {': '.join(names)}",
                where=f"rank {rank} of {self.size}",
                expected=f"{expected}, as rank 0",
                found=str(found),
                hint=hint,
            )

    # what a training needs before its first step

    def prepare(self, learner: Learner, state: Mapping[str, Any]) -> None:
        """Give the model of each rank the values of rank 0's, after checking that all train the same.

        `state` is what must be the same on all ranks: settings, the loaders' state, the step to resume from.
        """
        model = self._model = learner.model
        tensors = [*model.named_parameters(), *model.named_buffers()]
        shapes = {path: f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for path, t in tensors}
        self.check_same(
            {**state, "the model": shapes}, "start the same program with the same Config and data"
        )
        self._send([tensor.detach() for _, tensor in tensors])
        self.is_joint = any(isinstance(module, SyncBatchNorm) for module in model.modules())
        self._prepare_sums(learner)

    def _prepare_sums(self, learner: Learner) -> None:
        """Let sums of gradients start during the backward pass, where each step has one backward pass."""
        is_own = any(getattr(type(self), n) is not getattr(Ranks, n) for n in ("sum", "mean", "_reduced"))
        if not (self.is_joint or is_own or isinstance(learner.optimizer, Optimizers)):
            self._early = EarlySums(self.params(learner.model), _BUCKET_BYTES, self._together)

    def writer(self, create: Callable[..., RunWriter], folder: Path, **options: Any) -> RunWriter:
        """Create the run, on rank 0; on the others, a run of their own samples below it, ``ranks/1``."""
        made: list[RunWriter] = []

        def first() -> tuple[Path, int]:
            made.append(create(folder, **options))
            if RUN_FILE in os.environ:
                Path(os.environ[RUN_FILE]).write_text(str(made[0].folder))
            return made[0].folder, made[0].attempt

        run, attempt = self.first(first)
        part_of = {"attempt": attempt, "device": str(self.device)}
        return made[0] if made else create(run / RANKS / str(self.rank), config=part_of, exists="resume")

    # what differs where a rank has a part of each parameter

    total_norm: Callable[[Gradients], Tensor] | None = None
    """Returns the norm of whole gradients from a rank's parts; None if a rank has whole ones."""

    def params(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that the optimizer of this rank steps."""
        return dict(model.named_parameters())

    def reshard(self, model: torch.nn.Module) -> None:
        """Put the parameters that the optimizer steps in place, after forward passes."""

    def all_finite(self, values: Gradients) -> bool:
        """Whether tensors are finite on all ranks."""
        return values.finite()

    def record(self, model: torch.nn.Module) -> Record:
        """Return the record of the whole model; all ranks call it."""
        return record_of(model, config=getattr(model, "_built_by", None))

    def optimizer_record(self, optimizer: Optimizer, params: Mapping[str, Tensor]) -> OptimizerRecord:
        """Return the state of the whole optimizer; all ranks call it."""
        return optimizer.into_record()

    def drift_warning(self) -> str | None:
        """Return once, the same on all ranks, which parameters differ between them; None if none do."""
        named = dict(self._model.named_parameters()) if self.has_replicas and not self._has_drifted else {}
        digests = self.every([_digest(param) for param in named.values()]) if named else []
        for rank, own in enumerate(digests):
            if paths := [p for p, one, first in zip(named, own, digests[0], strict=True) if one != first]:
                self._has_drifted = True
                others = f" and {len(paths) - 1} more parameters" if len(paths) > 1 else ""
                return (
                    f"Warning: the ranks have drifted apart: {paths[0]}{others} of rank {rank} differ from "
                    "rank 0's, which checkpoints have. Does a callback change gradients or parameters by "
                    "random numbers, or by what one rank alone knows? Devices of two kinds round differently."
                )
        return None

    def load_into(self, model: torch.nn.Module, record: Record) -> None:
        """Load the whole values of a record into a model."""
        load_into(model, record)

    def _send(self, tensors: Sequence[Tensor]) -> None:
        """Replace the values of tensors by rank 0's."""
        for tensor in tensors:
            value = tensor.contiguous()  # its bytes, as the backends lack dtypes such as int16
            self._together(dist.broadcast, value.reshape(-1).view(torch.uint8), 0)
            if value is not tensor:
                tensor.copy_(value)

    def share_buffers(self) -> None:
        """Give the buffers, such as running statistics, the values of rank 0's."""
        self._send([buffer for _, buffer in self._model.named_buffers()])  # which it may have replaced

    def loader(self, loader: Any) -> PartLoader:
        """Return the part of this rank in each batch of a loader."""
        return PartLoader(loader, self)

    def reseed(self, step: int) -> None:
        """Have each rank draw other random numbers than rank 0 from a step on."""
        if self.rank:
            seed = seed_of(torch.initial_seed(), self.rank, step)
            seed_global_states(seed)
            if self.device.type == "cuda":
                torch.cuda.manual_seed(seed)

    # what it needs in a step

    @property
    def is_stand_in(self) -> bool:
        """Whether this rank has no items of the batch, and works on another rank's without effect."""
        return not self.part.count

    def taking(self, to_device: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that takes the batch of a `Part` to the device, and notes the part."""

        def take(part: Part) -> Any:
            self.part = part
            SyncBatchNorm.counts, SyncBatchNorm.all_count = part.count > 0, part.total >= self.size
            return to_device(part.batch)

        return take

    def begin_step(self, batches: int, params: Mapping[str, torch.nn.Parameter]) -> None:
        """Begin the forward and backward passes of a step; those of several batches are summed at the end."""
        self._is_early = self._early is not None and batches == 1
        if self._early is not None and not self._early.fits(params):  # the program has frozen some
            self._early.close()
            self._early = EarlySums(params, _BUCKET_BYTES, self._together)

    def begin_backward(self, count: int) -> None:
        """Begin the backward pass of a batch of which this rank has `count` items."""
        if self._early is not None and self._is_early:
            self._early.begin(count)

    def sum(self, tensors: list[Tensor]) -> None:
        """Sum tensors of one dtype, some 25 MB in all, over the ranks, in place."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._together(dist.all_reduce, flat)
        for tensor, total in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def add_joint(
        self, window: WindowGradients, loss: Tensor, output: StepOutput, params: Mapping[str, Tensor]
    ) -> None:
        """Add the gradients of a batch whose items depend on those of other ranks.

        Each rank differentiates its share of the batch's loss, and all of them do, whatever their number of
        items. The shares are of the part's items, which all ranks know; `mean` divides by the counts. In the
        place of a mean over no items, which is NaN, the outputs are differentiated: they must reach all
        parameters that the loss does.
        """
        total, count = self.part.total, output.count or 0
        share = loss * (count / total)
        # The mean over no items may be NaN, and so would be the gradients of all ranks.
        if not count and not math.isfinite(loss.detach()):
            reached = [tensor for tensor in tensors_in(output.outputs) if tensor.requires_grad]
            share = sum((tensor.sum() * 0 for tensor in reached), torch.zeros(())) if reached else loss * 0
        window.add(self._differentiated(share, params), total)
        self._joint_counts.append(count)

    def _differentiated(self, loss: Tensor, params: Mapping[str, Tensor]) -> Gradients:
        return Gradients.of(loss, params)

    def first_non_finite(self, loss: float) -> float:
        """Return the first rank's loss that is not finite, the same on all of them; else the given loss."""
        if not self.totals([float(not math.isfinite(loss))])[0]:
            return loss
        return next(one for one in self.every(loss) if not math.isfinite(one))

    def mean(
        self, window: WindowGradients, params: Mapping[str, Tensor], outcomes: StepOutcomes
    ) -> Gradients | None:
        """Return the gradients of the mean loss over the items of all ranks; None if there are none.

        The message about them also has rank 0's clock, signals and commands.
        """
        sums: dict[str, Tensor] | None = None
        if self._early is not None and self._is_early:
            sums = self._early.finish()
        local = window.mean() if outcomes.non_finite is None else None
        count = window.count if local is not None else 0
        if self.is_joint:
            counts, self._joint_counts = self._joint_counts, []
            count = sum(counts) if local is not None else 0
        clock = self.clock() if self.rank == 0 else 0.0
        own = self.poll()
        total, self.seconds, signals, commands, *owners = self.totals(
            [float(count), clock, *_numbers_of(own), *_owned(local, params)]
        )
        self._collect(own, bool(signals or commands))
        if not total:
            return None
        _refuse_sparse(local)
        if sums is not None:
            paths = [path for path, owner in zip(trainable(params), owners, strict=True) if owner]
            return Gradients({path: (sums[path] / total).to(params[path].dtype) for path in paths})
        return self._reduced(local, params, owners, (window.count if self.is_joint else count) / total)

    def mean_of_parts(self, gradients: Gradients, params: Mapping[str, Tensor]) -> Gradients:
        """Return the gradients of the mean loss over a batch, from those of each rank's part."""
        _refuse_sparse(gradients)
        owners = self.totals(_owned(gradients, params))
        return self._reduced(gradients, params, owners, self.part.count / self.part.total)

    def joint_weight(self) -> float:
        """Return by what a loss is multiplied before its backward pass, if that needs the other ranks.

        Then all ranks differentiate the loss of the whole batch, each its share of it; else it is 1.
        """
        return self.size * self.part.count / self.part.total if self.is_joint else 1.0

    def _reduced(
        self, local: Gradients | None, params: Mapping[str, Tensor], owners: list[float], weight: float
    ) -> Gradients:
        """Return the sum over the ranks of gradients times their weight; of 16-bit ones in float32."""
        named = [path for path, owner in zip(trainable(params), owners, strict=True) if owner]
        found: dict[str, Tensor] = {}
        for path in named:
            value, wide = None if local is None else local.get(path), summed_dtype(params[path].dtype)
            if value is None or not weight:  # 0 times infinity is NaN
                found[path] = torch.zeros(params[path].shape, dtype=wide, device=params[path].device)
            else:
                found[path] = value.to(wide) * weight
        for bucket in grouped(found.items(), _BUCKET_BYTES):
            self.sum(list(bucket.values()))
        return Gradients({path: found[path].to(params[path].dtype) for path in named})

    def mean_loss(self, losses: Sequence[tuple[Tensor, int]]) -> Tensor:
        """Return the mean loss over the items of all ranks, from losses with their counts."""
        sums = [sum(float(loss) * count for loss, count in losses), float(sum(c for _, c in losses))]
        loss, count = self.totals(sums)
        return torch.tensor(loss / max(count, 1.0), dtype=torch.float64)  # also on ranks without losses

    # metrics and states

    def mean_values(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the means over the ranks of values by name; each over the ranks that have it."""
        every = self.every(dict(values))
        names = dict.fromkeys(name for one in every for name in one)
        found = {name: [one[name] for one in every if name in one] for name in names}
        return {name: sum(numbers) / len(numbers) for name, numbers in found.items()}

    def merged(self, metrics: Sequence[Metric], *, whole: bool) -> list[Metric]:
        """Return copies of metrics with the batches of all ranks; only of sums, unless `whole`."""
        own = [
            (
                None if metric.total is None else metric.total.cpu(),
                metric.count,
                # From a device that only this rank uses.
                move(metric.state(), torch.device("cpu")) if whole or not metric.whole_epoch else {},
            )
            for metric in metrics
        ]
        merged = []
        for metric, parts in zip(metrics, zip(*self.every(own), strict=True), strict=True):
            total = metric.fresh()
            with_items = [part for part in parts if part[1] or part[0] is not None]
            for sums, count, state in with_items:
                if metric.whole_epoch and state:
                    assert isinstance(total, EpochMetric)
                    total.merge(state)
                    continue
                if sums is not None:
                    total.total = sums if total.total is None else total.total + sums
                total.count += count
                if state:  # such as shapes, which another rank may have had no batch to learn from
                    total.load_state(state)
                    metric.load_state(state)
            merged.append(total)
        return merged

    def other_states(self, states: Mapping[str, RandomStates]) -> dict[str, RandomStates]:
        """Return the random states of the ranks other than 0, under the name and the rank."""
        everything = self.every(dict(states))
        return {
            f"{name}{rank}": one for rank, own in enumerate(everything) if rank for name, one in own.items()
        }

    @contextlib.contextmanager
    def failing(self, folder: Path, common: type[BaseException]) -> Iterator[None]:
        """Tell the other ranks why this one fails; if it only lost another one, raise why that has failed.

        An error of the class `common` is raised by all ranks together. One block may be in another.
        """
        try:
            try:
                yield
            except RuntimeError as error:  # of messages that torch sends, such as `fully_shard`
                if isinstance(error, RankError) or not (
                    isinstance(error, dist.DistError) or "/gloo/" in str(error)
                ):
                    raise
                raise self._lost(error) from error
        except _OtherFailed as lost:
            cause = self._first_failure()
            resume = resume_command(folder, self.size) if is_restartable() else None
            hint = f"from the last checkpoint: {resume or 'the same program, with resume=True'}"
            if cause is None:
                self._secondary = RankError(
                    lost.what, where=lost.where, expected=lost.expected, found=lost.found, hint=hint
                )
                raise self._secondary.with_traceback(lost.__traceback__) from None
            rank, found, *lines = cause.splitlines()
            what = f"rank {rank} has failed, and this one cannot go on"
            first = self._secondary = RankError(what, found=clean(found), hint=hint)
            if not self.rank:  # whose run has it as its end; the others would repeat it in the same terminal
                first.add_note("\n".join([f"the traceback of rank {rank}:", *map(clean, lines)]))
            raise first from None
        except BaseException as error:
            if not isinstance(error, common) and error is not self._secondary:
                lines = [str(self.rank), *traceback.format_exception_only(error)[0].splitlines()[:1]]
                lines += "".join(traceback.format_exception(error)).splitlines()
                with contextlib.suppress(_OtherFailed):  # the store may have gone with its process
                    text = "\n".join(lines)
                    self._ask(self._store.compare_set, _FAILURE, "", text, seconds=_FAILURE_SECONDS)
                if isinstance(error, Exception):
                    # Not on top: the package cannot be imported on every machine.
                    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

                    get_error_handler().record_exception(error)  # for torchrun's report
            raise
        finally:
            SyncBatchNorm.counts = SyncBatchNorm.all_count = True
            if self._early is not None:
                self._early.close()

    def _first_failure(self) -> str | None:
        """Return the rank and the traceback of the first failure, if its process could tell."""
        until = time.monotonic() + _FAILURE_SECONDS
        with contextlib.suppress(_OtherFailed):
            while (left := until - time.monotonic()) > 0:
                if self._ask(self._store.check, [_FAILURE], seconds=left):
                    return self._ask(self._store.get, _FAILURE).decode()
                time.sleep(_POLL_SECONDS)
        return None


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _digest(tensor: Tensor) -> int:
    """Return a number that two tensors have in common if their bits are the same, and else hardly ever."""
    as_integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(tensor.itemsize, torch.int64)
    return int(tensor.detach().contiguous().reshape(-1).view(as_integers).sum(dtype=torch.int64))


def trainable(params: Mapping[str, Tensor]) -> list[str]:
    """Return the paths of the parameters that are trained."""
    return [path for path, param in params.items() if param.requires_grad]


def _numbers_of(own: tuple[int | None, Sequence[Any]]) -> list[float]:
    """Return numbers that are 0 without a signal and without commands."""
    return [float(own[0] or 0), float(len(own[1]))]


def _refuse_sparse(gradients: Gradients | None) -> None:
    if (path := next((path for path, g in (gradients or {}).items() if g.is_sparse), None)) is not None:
        raise UnsupportedError(
            "sparse gradients are not summed over ranks",
            where=path,
            expected="a dense gradient",
            hint="Embedding(sparse=False)",
        )


def _owned(gradients: Gradients | None, params: Mapping[str, Tensor]) -> list[float]:
    """Return 1 for each trainable parameter that has a gradient here."""
    return [float(gradients is not None and path in gradients) for path in trainable(params)]
