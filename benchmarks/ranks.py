"""What a step on two ranks costs over gloo: burnt's sums during and after the backward pass, and torch's DDP.

    python benchmarks/ranks.py [--width 1024] [--layers 12] [--rounds 5]

Two processes of one thread each train the same network on the same batches, with the forward pass, the
backward pass and the sum of the gradients in each step, without an optimizer. The rivals alternate; a row is
the median of the rounds' medians, and what a step takes more than the same step without any sum. `overlap`
is the share of the time of the sums, measured after the backward pass, that summing early saves.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from burnt.gradients import Gradients
from burnt.train.ranks.early import EarlySums

BUCKET_BYTES = 25 << 20
STEPS = 6


def network(width: int, layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def call(operation: Callable[[], object]) -> None:
    operation()


def rivals(width: int, layers: int) -> dict[str, Callable[[Tensor], object]]:
    model, wrapped = network(width, layers), torch.nn.parallel.DistributedDataParallel(network(width, layers))
    params = dict(model.named_parameters())
    early = EarlySums(params, BUCKET_BYTES, call)

    def alone(x: Tensor) -> object:
        return Gradients.of(model(x).square().mean(), params)

    def during(x: Tensor) -> object:
        loss = model(x).square().mean()
        early.begin(len(x))
        Gradients.of(loss, params)
        return early.finish()

    def after(x: Tensor) -> object:
        gradients = Gradients.of(model(x).square().mean(), params)
        flat = torch.cat([(value * len(x)).reshape(-1) for value in gradients.values()])
        dist.all_reduce(flat)
        return flat

    def ddp(x: Tensor) -> object:
        wrapped.zero_grad()
        wrapped(x).square().mean().backward()
        return wrapped

    return {"no sum": alone, "burnt, during": during, "burnt, after": after, "torch DDP": ddp}


def work(rank: int, port: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    x = torch.randn(args.batch, args.width)
    steps = rivals(args.width, args.layers)
    medians: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds + 1):
        for name, step in steps.items():
            times = []
            for _ in range(STEPS):
                dist.barrier()
                start = time.perf_counter()
                step(x)
                times.append(time.perf_counter() - start)
            if number:  # the first round is a warm-up
                medians[name].append(statistics.median(times))
    if rank == 0:
        milliseconds = {name: 1e3 * statistics.median(values) for name, values in medians.items()}
        base = milliseconds["no sum"]
        print(f"{args.layers} layers of {args.width}, batch {args.batch}, two ranks of one thread, gloo")
        for name, value in milliseconds.items():
            print(f"{name:14} {value:8.1f} ms a step   {value - base:+8.1f} ms")
        late, soon = milliseconds["burnt, after"] - base, milliseconds["burnt, during"] - base
        print(f"overlap        {1 - soon / late:8.0%} of the sums' time")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (port, args), nprocs=2)


if __name__ == "__main__":
    main()
