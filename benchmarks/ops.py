"""What ops cost: their candidates beside each other, and the Python front beside the candidate alone.

    python benchmarks/ops.py [OP ...] [--quick] [--device cpu]

The first table is what the heuristic is made of: times of torch's own call, of the generated kernels and of
the candidates that the op has besides, at each op's example sizes, forward alone and with backward, and which
one the heuristic takes. A ratio is that of torch's time to the best of the others. Rivals take
turns, with inputs that no cache holds. The second gives microseconds a call for 16 elements: the op, the
candidate that it goes to called directly, and the difference, with arguments by position, by name, and with
gradients; then the same of single calls, each after a copy that no cache holds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from burnt import kernels
from burnt.kernels.autotune import tuner
from burnt.kernels.autotune.timers import default_clock
from burnt.kernels.dispatch.selection import select_by_heuristic
from burnt.kernels.interface.tuning_key import runnable_candidates


def candidates(names: list[str], device: torch.device, quick: bool) -> None:
    head = f"{'op':<22}{'for':<34}{'mode':<10}{'library ms':>10}{'generated':>10}{'others':>18}{'ratio':>7}"
    print(f"{head}  heuristic")
    effort = tuner._Effort(0.2, 1, 3) if quick else tuner._Effort(1.5, 1, 15)
    for name in names or list(kernels.OPS):
        op = kernels.OPS[name]
        for args in op.example_args(device):
            for training in (False, True):
                given = with_gradients(args) if training else list(args)
                able = runnable_candidates(op, given)
                race = tuner._Benchmark(op, given, default_clock(device), effort)
                race.run(set())
                rows = race.rows
                ms = {row.config: row.ms for row in rows if row.ms is not None}
                for row in rows:
                    if row.status != "ok":
                        print(f"{name}: {row.config} {row.status}: {row.note}")
                if not {"library", "generated"} <= set(ms):
                    continue
                chosen = select_by_heuristic(op, given, able)[0].name
                rivals = {n: t for n, t in ms.items() if n != "library"}
                others = " ".join(f"{n} {t:.3f}" for n, t in rivals.items() if n != "generated")
                wrong = "" if ms[chosen] <= 1.05 * min(ms.values()) else "  <- slower"
                mode = "training" if training else "inference"
                shapes = " ".join("x".join(map(str, a.shape)) for a in given if is_tensor(a))
                print(
                    f"{name:<22}{shapes[:32]:<34}{mode:<10}"
                    f"{ms['library']:>10.3f}{ms['generated']:>10.3f}{others:>18}"
                    f"{ms['library'] / min(rivals.values()):>7.2f}  "
                    f"{chosen}{wrong}",
                    flush=True,
                )


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def with_gradients(args: tuple[Any, ...]) -> list[Any]:
    return [
        a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in args
    ]


def overhead(device: torch.device, rounds: int) -> None:
    head = f"{'op':>8}{'winner':>8}{'front':>8}"
    print(f"\n{'microseconds a call':<34}{head}   cold:{head}")
    source = torch.randn(1 << 24, device=device)
    target = torch.empty_like(source)
    x = torch.randn(4, 4, device=device)
    w = torch.randn(4, device=device)
    for name, op, args, named in [
        ("softmax", kernels.softmax, (x, -1, None), {"dim": -1}),
        ("silu", kernels.silu, (x,), {}),
        ("rms_norm", kernels.rms_norm, (x, w, 1e-6, None, None), {"weight": w, "eps": 1e-6}),
    ]:
        for mode in ("by position", "by name", "with gradients"):
            given = with_gradients(args) if mode == "with gradients" else list(args)
            winner = op.chosen(*given).call
            runs: list[Callable[[], Any]] = [
                (lambda op=op, x=given[0], named=named: op(x, **named))
                if mode == "by name"
                else (lambda op=op, given=given: op(*given)),
                lambda winner=winner, given=given: winner(*given),
            ]
            times = [[], []]
            for run in runs:
                run()
            for _ in range(rounds):
                for run, found in zip(runs, times, strict=True):
                    start = time.perf_counter()
                    for _ in range(200):
                        run()
                    found.append((time.perf_counter() - start) / 200)
            ours, direct = (min(t) * 1e6 for t in times)
            middle = statistics.median(a - b for a, b in zip(*times, strict=True)) * 1e6
            cold: list[list[float]] = [[], []]
            for _ in range(rounds):
                for run, found in zip(runs, cold, strict=True):
                    target.copy_(source)
                    start = time.perf_counter()
                    run()
                    found.append((time.perf_counter() - start) * 1e6)
            after, beside = map(statistics.median, cold)
            print(
                f"{name + ', ' + mode:<34}{ours:>8.2f}{direct:>8.2f}{middle:>8.2f}"
                f"        {after:>8.1f}{beside:>8.1f}{after - beside:>8.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", metavar="OP", help="by default all")
    parser.add_argument("--quick", action="store_true", help="few rounds, for the tests")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
    candidates(options.ops, device, options.quick)
    overhead(device, 5 if options.quick else 101)


if __name__ == "__main__":
    main()
