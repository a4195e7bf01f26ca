"""Service: the models that are served, from their first call to the last."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from burnt._independence import BatchProbe
from burnt.errors import BurntError, clean
from burnt.serve.device import DeviceThread, Slot
from burnt.serve.schema import Arrays
from burnt.serve.servable import Servable

OVER_LIMIT = "burnt.over_limit"  # in the scope of a request on a connection above the limit

_log = logging.getLogger("burnt.serve")


@dataclass(frozen=True)
class Settings:
    """Limits of a server.

    Args:
        max_batch: the largest number of items that are run together, and in one request.
        max_queue: the largest number of requests that wait; others are refused with 503.
        timeout: seconds of each wait: for headers, for the next request of a connection, for the rest of a
            request and its answer together, and for a client to read the answer.
        max_body: bytes of a request's body.
        max_bodies: bytes of all bodies that are read and not yet answered; others are refused with 503.
        max_answers: bytes of all outputs that wait to be encoded; more are refused with 503. Also of all
            answers that wait for their clients; those that have not read for longest are closed.
        max_connections: the largest number of connections; half of the files that the process may open
            (``ulimit -n``) if that is less.
        max_elements: elements of one input; matters where axes other than the batch are open.
        drain: seconds after SIGTERM in which accepted requests are answered.
        reload: seconds between looks for a new version of a model; None for never.
        api_key: what requests must send as ``Authorization: Bearer ...``; None to admit everybody.
        allowed_hosts: what the ``Host`` header must be, without a port; empty for anything. It keeps out web
            pages whose name was made to point to this server (DNS rebinding).
    """

    max_batch: int = 32
    max_queue: int = 256
    timeout: float = 30.0
    max_body: int = 16 * 1024**2
    max_bodies: int = 256 * 1024**2
    max_answers: int = 256 * 1024**2
    max_connections: int = 1024
    max_elements: int = 2**24
    drain: float = 30.0
    reload: float | None = None
    api_key: str | None = field(default=None, repr=False)
    allowed_hosts: Sequence[str] = ()


class Service:
    """The models that are served, the thread that runs them, and whether they are ready."""

    def __init__(self, models: Mapping[str, Servable], settings: Settings) -> None:
        self.settings = settings
        self.device = DeviceThread(settings.max_batch, settings.max_queue)
        self.slots = {
            name: Slot(name, model, model.batch_sizes(settings.max_batch)) for name, model in models.items()
        }
        self.coder = ThreadPoolExecutor(1, "burnt-coder")  # decodes and encodes what is large
        self.default = next(iter(self.slots.values()))
        self.is_ready = False
        self.failure: BurntError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.accepted = 0  # requests that were queued
        self.answered = 0  # and those of them whose answer was sent
        self._failed: dict[str, str] = {}  # the last version of a model that could not be served
        for slot in self.slots.values():
            self.device.metrics.info.labels(slot.name, slot.model.version).set(1)

    async def warm_up(self) -> None:
        """Run every model once with each batch size, then be ready.

        What a model raises is kept as `failure`, and `on_failure` is called: a server must not wait for ever
        for a model that does not run.
        """
        started = time.perf_counter()
        for slot in self.slots.values():
            try:
                await self._prepare(slot.name, slot.model)
            except Exception as error:
                self.failure = BurntError(
                    "the model does not run", where=slot.name, found=f"{type(error).__name__}: {error}"
                )
                self.failure.__cause__ = error
                self.on_failure()
                return
        self.is_ready = True
        _log.info("ready after %.1f s", time.perf_counter() - started)

    async def watch(self) -> None:
        """Look for new versions until the task is cancelled."""
        assert self.settings.reload is not None
        while True:
            await asyncio.sleep(self.settings.reload)
            for slot in self.slots.values():
                await self.reload(slot)

    async def reload(self, slot: Slot) -> bool:
        """Serve the newest version of a model, if it is another one; return whether it is.

        It is loaded and run next to the old one, which answers until then, and goes on if the new one fails.
        """
        version = None
        try:
            version = await asyncio.to_thread(slot.model.newest_version)
            if version in (slot.model.version, self._failed.get(slot.name)):
                return False
            new = await asyncio.to_thread(slot.model.reloaded)
            _check_same(slot.model, new)
            await self._prepare(slot.name, new)
        except Exception as error:  # a damaged file, or a model that fails: anything may be raised
            failed = version or str(error)
            if failed != self._failed.get(slot.name):  # said once, not at every look
                self._failed[slot.name] = failed
                self.device.metrics.reloads.labels(slot.name, "failed").inc()
                _log.error(
                    "%s: still %s, because %s cannot be served: %s",
                    slot.name, slot.model.version, clean(version or "the newest version"), error,
                )  # fmt: skip
            return False
        self._failed.pop(slot.name, None)
        old, slot.model = slot.model.version, new
        self.device.metrics.info.remove(slot.name, old)
        self.device.metrics.info.labels(slot.name, new.version).set(1)
        self.device.metrics.reloads.labels(slot.name, "loaded").inc()
        _log.info("%s: now %s, before %s", slot.name, clean(new.version), clean(old))
        return True

    async def _prepare(self, name: str, model: Servable) -> None:
        """Run a model with each of its batch sizes, each between two batches of requests.

        Where these runs do not show that the outputs of an item are the same in every batch, requests for the
        model are not joined.
        """
        sizes = model.batch_sizes(self.settings.max_batch)
        if model.schema.is_batchable and sizes[-1] > 1:
            reason = await self._reason_for_one_by_one(name, model, sizes)
            if reason is not None:
                model.schema = replace(model.schema, one_by_one=reason)
                _log.warning("%s: requests run one by one: %s", name, reason)
        # A model whose inputs have open axes cannot be run like that: it may not take every size.
        elif not model.schema.has_open_axes:
            for size in sizes:
                await self._run_checked(model, model.schema.example(size), size)

    async def _run_checked(self, model: Servable, arrays: Arrays, size: int) -> Arrays:
        outputs: Arrays = await self.device.call(functools.partial(model.run, arrays))
        model.schema.check_outputs(outputs, size)
        return outputs

    async def _reason_for_one_by_one(self, name: str, model: Servable, sizes: Sequence[int]) -> str | None:
        """Compare the outputs of random items between batches; return why requests may not be joined."""
        schema, largest = model.schema, sizes[-1]
        if len(sizes) < 3 or sizes[0] > 1:
            sizes = [1, min(4, largest), largest]
        open_sizes = [1]
        if schema.has_open_axes:  # models often take only some: a length, or multiples of 32
            sizes, open_sizes = [1, *[min(4, largest)] * 2], [32, 7, 224]
        # Large integers are not valid indices of small tables, and models may round large numbers to indices.
        largest_numbers = ((1000.0, schema.largest_integer), (1000.0, 1), (1.0, 1))
        for open_size, (large, integer) in itertools.product(open_sizes, largest_numbers):
            random = np.random.default_rng(0)
            items = [
                # Only the first item is padded, and run by itself: lengths relative to the longest show.
                schema.random_item(random, scale, open_size, integer, is_padded=number == 0)
                for number, scale in enumerate((1.0, large) * 2)
            ]
            taken, returned = ([t.batch_axis for t in tensors] for tensors in (schema.inputs, schema.outputs))
            probe = BatchProbe(items, taken, returned, schema.tolerance)
            for size in sizes:
                try:
                    outputs = await self.device.call(functools.partial(_run_probe, model, probe, size))
                except Exception as error:  # the model's code may raise anything
                    failed, failure = size, error
                    break
                schema.check_outputs(outputs, size)
                await self.device.call(functools.partial(probe.add, outputs))
            else:
                if probe.depends:
                    return "the outputs of an item depend on the other items of its batch"
                return None if probe.is_complete else "the outputs for random inputs cannot be compared"
        _log.warning("%s: a batch of %d random items fails: %s", name, failed, failure)
        if failed > 1:
            return "the model fails on batches of several items"
        if not schema.has_open_axes:
            try:
                await self._run_checked(model, schema.example(1), 1)
            except Exception:  # not if only single items fail, such as with statistics of the batch
                await self._run_checked(model, schema.example(largest), largest)
        return "the model fails on random inputs"


def _run_probe(model: Servable, probe: BatchProbe, size: int) -> Arrays:
    return model.run(probe.batch(size))


def _check_same(old: Servable, new: Servable) -> None:
    """Raise if a model has another schema than the one that clients have read."""
    if str(old.schema) != str(new.schema):
        raise BurntError(
            "the new version takes or returns something else",
            expected=str(old.schema),
            found=str(new.schema),
            hint="start the server anew",
        )
