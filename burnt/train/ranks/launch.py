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
            text = environment.get(size, "").strip()
            if text.isdecimal() and int(text) > 1:
                if not environment.get(rank, "").strip().isdecimal():
                    raise RankError(
                        "the launcher does not say which of several processes this is",
                        where=f"the environment variable {rank}",
                        expected=f"a number from 0 to {int(text) - 1}, as {size}={text}",
                        found=environment.get(rank, "not set"),
                        hint=f"start them with: {COMMAND}",
                    )
                own = int(environment[rank])
                return cls(own, int(text), int(environment.get(local, own)))
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return cls(dist.get_rank(), dist.get_world_size(), dist.get_node_local_rank(dist.get_rank()))
        return None

    def device(self, asked: torch.device) -> torch.device:
        """Return the device of this process: of several GPUs, the one with its number on the node."""
        if asked.type != "cuda":
            return asked
        if self.local_rank >= torch.cuda.device_count():
            raise RankError(
                "there are more processes on this machine than GPUs",
                where=f"rank {self.rank} of {self.size}",
                expected=f"at most {torch.cuda.device_count()} on each machine",
                found=f"process {self.local_rank + 1} of this machine",
                hint="start fewer, or train on the CPU: device='cpu'",
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

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
        return store


def _meeting_point(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the address of rank 0 that Slurm tells: the first node of the step."""
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    if not nodes:
        return {}
    first = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    job = int(environment.get("SLURM_JOB_ID", "0"))
    name = "" if first is None else first[1] + (first[2] or "")
    return {"MASTER_ADDR": name, "MASTER_PORT": str(15_000 + job % 20_000)}
