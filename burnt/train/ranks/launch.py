"""How a process learns that it is one of several: from the variables of torchrun, Slurm and the like."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore as PrefixStore  # type: ignore[attr-defined]  # it is public

from burnt import _torch
from burnt.errors import RankError

_LAUNCHERS = {
    "WORLD_SIZE": ("RANK", "LOCAL_RANK"),  # torchrun, accelerate, deepspeed
    # SLURM_NTASKS is also set where only one process was started.
    "SLURM_STEP_NUM_TASKS": ("SLURM_PROCID", "SLURM_LOCALID"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALRANKID"),
}
"""The variables in which launchers tell a process the number of processes, its own, and that on its node."""
COMMAND = "burnt train --nproc 2 file.py:main, or torchrun --nproc-per-node 2 file.py"


@dataclasses.dataclass(frozen=True)
class Launched:
    """One of several processes that a launcher has started."""

    rank: int
    size: int
    local_rank: int

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Launched | None:
        """Return this process if a launcher or the program has made it one of several.

        >>> Launched.find({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"})
        Launched(rank=3, size=4, local_rank=1)
        """
        for size, (rank, local) in _LAUNCHERS.items():
            if environment.get(size) and (number := _number(environment, size, 1)) > 1:
                own = _number(environment, rank, 0, number - 1)
                on_node = _number(environment, local, 0) if environment.get(local) else own
                return cls(own, number, on_node)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return cls(dist.get_rank(), dist.get_world_size(), dist.get_node_local_rank(dist.get_rank()))
        return None

    def device(self, asked: torch.device) -> torch.device:
        """Return the device of this process: of several GPUs, the one with its number on the node."""
        if asked.type == "cpu":
            return asked
        if not dist.is_nccl_available():
            raise RankError(
                "several processes cannot train on GPUs with this build of torch",
                where=f"rank {self.rank} of {self.size}",
                expected="torch.distributed with NCCL, which Linux has",
                found=f"torch {torch.__version__} without NCCL",
                hint="train on the CPU, device='cpu', or in one process",
            )
        visible = torch.cuda.device_count()
        if self.local_rank >= visible > 1:
            raise self.too_few_gpus(f"{visible} GPUs")
        # A process that sees one GPU may have been given it, as by Slurm's --gpus-per-task: see `Ranks.join`.
        device = torch.device("cuda", self.local_rank if visible > 1 else 0)
        torch.cuda.set_device(device)
        return device

    def too_few_gpus(self, found: str) -> RankError:
        """Return the error of processes of a machine that do not have a GPU each."""
        return RankError(
            "there are more processes on this machine than GPUs",
            where=f"rank {self.rank} of {self.size}",
            expected="a GPU for each process",
            found=f"{found}, and this is process {self.local_rank + 1} of the machine",
            hint="start fewer, or train on the CPU: device='cpu'",
        )

    def backend(self, device: torch.device) -> str:
        """Return torch.distributed's backends: messages between the hosts are always by gloo."""
        return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"

    @functools.cache  # noqa: B019  one for the process, as the launcher's port is
    def store(self, timeout: float) -> Any:
        """Return the key-value store by which the processes meet: torchrun's, or one of rank 0."""
        if dist.is_initialized():
            return _torch.default_store()
        from torch.distributed.rendezvous import rendezvous

        for name, value in _meeting_point(os.environ).items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("RANK", str(self.rank))
        os.environ.setdefault("WORLD_SIZE", str(self.size))
        try:
            store, *_ = next(
                iter(rendezvous("env://", self.rank, self.size, timeout=datetime.timedelta(seconds=timeout)))
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise RankError(
                "the processes cannot meet",
                where=f"rank {self.rank} of {self.size}",
                expected="MASTER_ADDR and MASTER_PORT: the host of rank 0, and a port there that is free",
                found=f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}: {error}",
                hint=f"start them with: {COMMAND}",
            ) from error
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun's store outlives the processes that it restarts, and holds their addresses.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"attempt/{attempt}", store)
        return store


def _number(environment: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    """Return the number in a launcher's variable."""
    text = environment.get(name, "not set").strip()
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise RankError(
            "a launcher's variable does not say how many processes there are, or which of them this is",
            where=f"the environment variable {name}",
            expected=f"a number from {least}"
            + ("" if most is None else f" to {most}, as there are {most + 1}"),
            found=text,
            hint=f"start them with: {COMMAND}",
        )
    return int(text)


def _meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of rank 0 that Slurm tells: the first node of the step."""
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if not nodes:
        return {}
    first = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    job = int(environment.get("SLURM_JOB_ID", "0"))
    name = "" if first is None else first[1] + (first[2] or "")
    return {"MASTER_ADDR": name, "MASTER_PORT": str(15_000 + job % 20_000)}
