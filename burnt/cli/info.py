"""`burnt info`: versions, hardware and missing packages on this machine. Imports torch."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from burnt import __version__
from burnt.cli.output import Cell, Page, print_json
from burnt.monitor.format import size_text


def run(args: argparse.Namespace) -> int:
    """Print what burnt finds on this machine, as a table or as JSON; return the exit code."""
    facts = collect_facts()
    if args.json:
        print_json(facts)
    else:
        _print(facts)
    return 0


def collect_facts() -> dict[str, Any]:
    """Return versions, CPU, memory, compiler and GPUs as JSON data; sizes in bytes."""
    import numpy
    import psutil
    import torch

    from burnt import memory as pool
    from burnt.device import accelerators, device_info

    cpu = device_info("cpu")
    memory = psutil.virtual_memory()
    return {
        "burnt": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "numpy": numpy.__version__,
        "triton": _package_status("triton", "pip install 'burnt[triton]'"),
        "nvml": _nvml_status(),
        "onnx": _extra_status("onnx", ("onnx", "onnxscript", "onnxruntime", "google-re2")),
        "serve": _extra_status("serve", ("starlette", "uvicorn", "prometheus_client")),
        "c_export": _extra_status("c", ("emx-onnx-cgen",)),
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
        "compiler": _compiler_info(),
        "kernels": _kernel_status(),
        "gpus": [asdict(device_info(name)) for name in accelerators()],
    }


def _usable_cores() -> int | None:
    # A container or batch system may restrict the process to fewer cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _package_status(name: str, install_command: str) -> dict[str, Any]:
    """Return whether a package can be imported, with its version or the reason."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return {"available": False, "why": f"not installed: {install_command}"}
        return {"available": False, "why": str(error)}
    except (ImportError, OSError, RuntimeError) as error:  # its shared library cannot be loaded
        return {"available": False, "why": f"{type(error).__name__}: {error}"}
    return {"available": True, "version": getattr(module, "__version__", None)}


def _extra_status(extra: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the versions of the packages of an extra, or which are missing; none is imported."""
    versions = {name: _installed_version(name) for name in names}
    if missing := [name for name, version in versions.items() if version is None]:
        return {"available": False, "why": f"no {', no '.join(missing)}: pip install 'burnt[{extra}]'"}
    return {"available": True, "version": ", ".join(f"{name} {v}" for name, v in versions.items())}


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvml_status() -> dict[str, Any]:
    """Return whether NVML can measure GPUs: the package's and the driver's versions, or the reason."""
    status = _package_status("pynvml", "pip install 'burnt[nvml]'")
    if not status["available"]:
        return status
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        driver = nvml.nvmlSystemGetDriverVersion()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return {"available": False, "why": f"installed, but: {error}"}
    return {"available": True, "version": importlib.metadata.version("nvidia-ml-py"), "driver": driver}


def _compiler_info() -> dict[str, str] | None:
    from burnt.codegen.runtime.c_compiler import find_compiler

    compiler = find_compiler()
    return None if compiler is None else {"path": compiler.command[0], "version": compiler.version}


def _kernel_status() -> dict[str, Any]:
    from burnt.codegen.runtime import c_compiler, c_library
    from burnt.errors import CacheError
    from burnt.kernels.autotune.database import TuningDatabase

    status = c_library.status()
    facts = {
        "generated": status["compiler"] is not None,
        "why": c_compiler.why_no_compiler(),
        "folder": status["folder"],
        "entries": status["entries"],
        "bytes": status["bytes"],
        "tuned": None,
        "notes": status["notes"],
    }
    try:
        database = TuningDatabase()
        facts |= {"table": str(database.path), "tuned": len(database.rows())}
    except (CacheError, OSError) as error:
        facts["notes"].append(str(error))
    return facts


def _print(facts: dict[str, Any]) -> None:
    page = Page()
    backends = [f"{kind.upper()} {facts[kind]}" for kind in ("cuda", "rocm") if facts[kind]]
    no_compiler = "none found: install gcc or clang, or set CC"
    if sys.platform == "win32":
        no_compiler = "not used on Windows"
    cpu, memory, pool, compiler = (facts[name] for name in ("cpu", "memory", "memory_pool", "compiler"))
    rows: dict[str, str | Cell] = {
        "burnt": facts["burnt"],
        "Python": facts["python"],
        "torch": f"{facts['torch']} ({', '.join(backends) if backends else 'CPU-only build'})",
        "numpy": facts["numpy"],
        "Triton": _status_cell(facts["triton"]),
        "NVML": _status_cell(facts["nvml"]),
        "ONNX": _status_cell(facts["onnx"]),
        "server": _status_cell(facts["serve"]),
        "C export": _status_cell(facts["c_export"]),
        "system": facts["os"],
        "CPU": f"{cpu['name']}, {cpu['capability']}",
        "cores": f"{cpu['cores'] or 'unknown'}, {cpu['logical']} logical, {cpu['usable']} usable; "
        f"torch uses {cpu['torch_threads']} threads",
        "memory": f"{size_text(memory['total'])}, {size_text(memory['available'])} available",
        "host pool": f"caches at most {size_text(pool['limit'])} for the Learner and compiled code"
        if pool["reason"] is None
        else Cell(f"off: {pool['reason']}", "yellow"),
        "C compiler": f"{compiler['version']} ({compiler['path']})"
        if compiler
        else Cell(no_compiler, "yellow"),
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


def _kernels_text(kernels: dict[str, Any]) -> str | Cell:
    tuned = "the tuning table cannot be read" if kernels["tuned"] is None else f"{kernels['tuned']} tunings"
    if not kernels["generated"]:
        return Cell("PyTorch only: no working C compiler", "yellow")
    cached = (
        "not cached" if kernels["folder"] is None else f"{kernels['entries']} compiled in {kernels['folder']}"
    )
    return Cell(
        "\n".join([f"generated; {cached}; {tuned}", *kernels["notes"]]), "yellow" if kernels["notes"] else ""
    )


def _status_cell(status: dict[str, Any]) -> Cell:
    if not status["available"]:
        return Cell(status["why"], "yellow")
    driver = f", driver {status['driver']}" if "driver" in status else ""
    return Cell(f"{status['version'] or 'unknown version'}{driver}")
