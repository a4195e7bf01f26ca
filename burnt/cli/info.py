"""`burnt info`: what burnt finds on this machine. The one command here that imports torch."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
from dataclasses import asdict
from typing import Any

from burnt import __version__
from burnt.cli.output import Cell, Page, print_json, size_text

__all__ = ["accelerators", "gather", "run"]


def run(as_json: bool) -> int:
    """Print what there is."""
    facts = gather()
    if as_json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def gather() -> dict[str, Any]:
    """Versions, CPU, memory, compiler and GPUs, as JSON can hold them; sizes in bytes."""
    import numpy
    import psutil
    import torch

    from burnt import memory as pool
    from burnt.device import device_info

    cpu = device_info("cpu")
    memory = psutil.virtual_memory()
    return {
        "burnt": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "numpy": numpy.__version__,
        "triton": _package("triton", "pip install 'burnt[triton]'"),
        "nvml": _nvml(),
        "os": platform.platform(),
        "cpu": {
            "name": cpu.name,
            "capability": cpu.architecture,
            "cores": psutil.cpu_count(logical=False),
            "logical": os.cpu_count(),
            "usable": _usable_cores(),
            "torch_threads": torch.get_num_threads(),
        },
        "memory": {"total": memory.total, "available": memory.available},
        "memory_pool": asdict(pool.stats()),
        "compiler": _compiler(),
        "kernels": _kernels(),
        "gpus": [asdict(device_info(name)) for name in accelerators(torch)],
    }


def accelerators(torch: Any) -> list[str]:
    """The accelerators that torch sees, by its names."""
    names = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def _usable_cores() -> int | None:
    # A container or a batch system may leave this process fewer than there are.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _package(name: str, how: str) -> dict[str, Any]:
    """Whether a package can be imported, which version, or why not."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return {"available": False, "why": f"not installed: {how}"}
        return {"available": False, "why": str(error)}
    except (ImportError, OSError, RuntimeError) as error:  # a library of its own that does not load here
        return {"available": False, "why": f"{type(error).__name__}: {error}"}
    return {"available": True, "version": getattr(module, "__version__", None)}


def _nvml() -> dict[str, Any]:
    """Whether NVML measures GPUs here: the package, and the driver behind it."""
    found = _package("pynvml", "pip install 'burnt[nvml]'")
    if not found["available"]:
        return found
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return {"available": False, "why": f"installed, but: {error}"}
    return {"available": True, "version": importlib.metadata.version("nvidia-ml-py"), "driver": driver}


def _compiler() -> dict[str, str] | None:
    """The C compiler of generated kernels: ``$BURNT_CC``, ``$CC``, or the first that works."""
    from burnt.codegen.runtime.c_compiler import find_compiler

    found = find_compiler()
    return None if found is None else {"path": found.command[0], "version": found.version}


def _kernels() -> dict[str, Any]:
    """Whether kernels are generated, where they are kept, and how many tunings are known."""
    from burnt.codegen.runtime import c_library
    from burnt.errors import CacheError
    from burnt.kernels.autotune.database import TuningDatabase

    status = c_library.status()
    found = {
        "generated": status["compiler"] is not None,
        "why": c_library.why_no_compiler(),
        "folder": status["folder"],
        "entries": status["entries"],
        "bytes": status["bytes"],
        "tuned": None,
        "notes": status["notes"],
    }
    try:
        store = TuningDatabase()
        found |= {"table": str(store.path), "tuned": len(store.rows())}
    except (CacheError, OSError) as error:
        found["notes"].append(str(error))
    return found


def _print(facts: dict[str, Any]) -> None:
    page = Page()
    built = [f"{kind.upper()} {facts[kind]}" for kind in ("cuda", "rocm") if facts[kind]]
    cpu, memory, pool, compiler = (facts[name] for name in ("cpu", "memory", "memory_pool", "compiler"))
    rows: dict[str, str | Cell] = {
        "burnt": facts["burnt"],
        "Python": facts["python"],
        "torch": f"{facts['torch']} ({', '.join(built) if built else 'built for the CPU alone'})",
        "numpy": facts["numpy"],
        "Triton": _availability(facts["triton"]),
        "NVML": _availability(facts["nvml"]),
        "system": facts["os"],
        "CPU": f"{cpu['name']}, {cpu['capability']}",
        "cores": f"{cpu['cores'] or 'unknown'}, {cpu['logical']} logical, {cpu['usable']} usable; "
        f"torch uses {cpu['torch_threads']} threads",
        "memory": f"{size_text(memory['total'])}, {size_text(memory['available'])} available",
        "host pool": f"keeps at most {size_text(pool['limit'])} for the Learner and compiled code"
        if pool["reason"] is None
        else Cell(f"off: {pool['reason']}", "yellow"),
        "C compiler": f"{compiler['version']} ({compiler['path']})"
        if compiler
        else Cell("none found: install gcc or clang, or set CC", "yellow"),
        "kernels": _kernels_text(facts["kernels"]),
    }
    if not facts["gpus"]:
        rows["GPU"] = Cell("none that torch can use", "yellow")
    for gpu in facts["gpus"]:
        memory_text = "" if gpu["memory"] is None else f", {size_text(gpu['memory'])}"
        bfloat16 = "bfloat16" if gpu["bfloat16"] else "no bfloat16"
        rows[gpu["device"]] = Cell(
            f"{gpu['name']}{memory_text}, {gpu['architecture']} ({gpu['kind']}), {bfloat16}", "green"
        )
    page.pairs(rows)


def _kernels_text(found: dict[str, Any]) -> str | Cell:
    tuned = "its table cannot be read" if found["tuned"] is None else f"{found['tuned']} measured"
    if not found["generated"]:
        return Cell("torch's own alone: none can be compiled", "yellow")
    kept = "not kept" if found["folder"] is None else f"{found['entries']} compiled in {found['folder']}"
    return Cell(
        "\n".join([f"generated; {kept}; {tuned}", *found["notes"]]), "yellow" if found["notes"] else ""
    )


def _availability(found: dict[str, Any]) -> Cell:
    if not found["available"]:
        return Cell(found["why"], "yellow")
    driver = f", driver {found['driver']}" if "driver" in found else ""
    return Cell(f"{found['version'] or 'of unknown version'}{driver}")
