"""What importing burnt loads, and that every public name exists."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnt

HEAVY = [
    *("triton", "textual", "rich", "onnx", "torchmetrics", "sklearn", "pandas", "IPython", "matplotlib"),
    *("lightning", "scipy", "safetensors", "transformers", "tensorboard"),
]
PACKAGES = [
    *("burnt", "burnt.data", "burnt.inspect", "burnt.nn", "burnt.optim", "burnt.record", "burnt.train"),
    *("burnt.train.metrics", "burnt.store", "burnt.codegen", "burnt.kernels", "burnt.swapping"),
    *("burnt.export", "burnt.models", "burnt.serve"),
]
WITHOUT_TORCH = [
    statement
    for statement, module in [
        ("import burnt", "burnt"),
        ("import burnt; dir(burnt)", "burnt"),
        ("import burnt.train", "burnt.train"),
        ("import burnt.store", "burnt.store"),
        ("import burnt.config", "burnt.config"),
        ("import burnt.cli", "burnt.cli"),
        ("import burnt.cli.monitor, burnt.monitor.data.commands", "burnt.monitor"),
        ("import burnt.cli.ctl", "burnt.cli"),
    ]
    if importlib.util.find_spec(module) is not None
]


@functools.cache
def loaded(statement: str) -> set[str]:
    """The top-level packages in memory after a statement in a new process."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_what_loaded_says_is_seen() -> None:
    assert "safetensors" in loaded("import safetensors")


@pytest.mark.parametrize("statement", WITHOUT_TORCH)
def test_light_parts_load_neither_torch_nor_anything_heavy(statement: str) -> None:
    assert loaded(statement).isdisjoint(["torch", "numpy", *HEAVY])


def test_modelling_and_training_load_nothing_that_torch_does_not() -> None:
    # Records are safetensors files: whoever has a Module may save it.
    code = """
import sys, torch
before = set(sys.modules)
from burnt import nn, optim, Module
from burnt.train import SupervisedTraining, Learner, EarlyStopping
print(*sorted(name for name in set(sys.modules) - before if "." not in name))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "burnt" in done.stdout.split()
    assert set(done.stdout.split()).isdisjoint(set(HEAVY) - {"safetensors"})


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve_and_are_listed(package: str) -> None:
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_shadows_a_public_name(package: str) -> None:
    """Importing a submodule binds it in its package, over a function of that name."""
    module = importlib.import_module(package)
    for name in module.__all__:
        submodule = importlib.util.find_spec(f"{package}.{name}") is not None
        assert submodule == isinstance(getattr(module, name), types.ModuleType), f"{package}.{name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_are_computed(package: str) -> None:
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    if "__all__" not in assigned(Path(str(module.__file__))):
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        known = {alias.asname for node in imports for alias in node.names if alias.asname == alias.name}
        stars = [str(node.module) for node in imports if node.names[0].name == "*"]
        inner = {name for star in stars for name in importlib.import_module(star).__all__}
        assert set(module.__all__) <= known | inner
        assert known - set(module.__all__) <= {"init", "quantized", "rope_scaling"}


def test_dir_before_anything_is_loaded_lists_everything() -> None:
    code = (
        "import burnt, sys; assert set(burnt.__all__) <= set(dir(burnt)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'burnt' has no attribute 'Modul'"):
        burnt.Modul


@pytest.mark.skipif(importlib.util.find_spec("textual") is None, reason="Textual is not installed")
def test_the_monitor_loads_no_torch_and_its_first_screen_not_what_runs_need() -> None:
    modules = loaded("import burnt.monitor.app, burnt.monitor.screens.run, burnt.monitor.screens.compare")
    assert modules.isdisjoint(["torch", "numpy", "triton", "textual_plot", "plotext", "PIL"])
    code = (
        "import sys, burnt.monitor.app; print([m for m in sys.modules if m in"
        " ('burnt.monitor.screens.run', 'burnt.monitor.plotting.chart_widget',"
        " 'burnt.store.writer', 'burnt.train.reporting.progress')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_packages_list_their_names() -> None:
    """What is public stands in `__init__.py`; `burnt.nn.init`, which users import, computes its names."""
    listing = [path for path in sources("__all__") if "__all__" in assigned(path)]
    assert {path.name for path in listing} == {"__init__.py"}


def sources(*words: str) -> Iterator[Path]:
    """The modules of burnt with one of these words: to parse them all takes seconds."""
    for path in Path(burnt.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield path


def assigned(path: Path) -> set[str]:
    """The names that a module's own assignments bind."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


TABLES = {"cli/__init__.py"}
"""Tables of modules, like those of `_lazy`: of the commands, a call imports the one that it is for."""


def test_no_module_of_burnt_is_imported_by_a_string() -> None:
    """`import_module("burnt...")` and looks into `sys.modules` would hide arrows between packages."""
    house = Path(burnt.__file__).parent
    found = {
        path.relative_to(house).as_posix()
        for path in sources("import_module", "__import__", "sys.modules")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if names_a_module_of_burnt(node)
    }
    assert found == TABLES


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('importlib.import_module("burnt.nn")', True),
        ('import_module(f"burnt.nn.{name}")', True),
        ('__import__("burnt")', True),
        ('sys.modules["burnt.nn"]', True),
        ('sys.modules.get("burnt.nn")', True),
        ('"burnt.nn" in sys.modules', True),
        ('sys.modules.get("torch.distributed")', False),
        ("importlib.import_module(name)", False),
        ('print("burnt.nn")', False),
    ],
)
def test_imports_by_string_are_found(code: str, expected: bool) -> None:
    assert any(names_a_module_of_burnt(node) for node in ast.walk(ast.parse(code))) == expected


def names_a_module_of_burnt(node: ast.AST) -> bool:
    """Whether this imports a module of burnt, or looks it up, by a string."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call) and node.args:
        function = ast.unparse(node.func)
        is_import = function.rpartition(".")[2] in ("import_module", "__import__")
        parts = node.args[:1] if is_import or function == "sys.modules.get" else []
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
        parts = [node.slice]
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "sys.modules":
        parts = [node.left]
    for part in parts:
        first = part.values[0] if isinstance(part, ast.JoinedStr) and part.values else part
        if isinstance(first, ast.Constant) and str(first.value).partition(".")[0] == "burnt":
            return True
    return False


def test_packages_keep_to_their_figures() -> None:
    """A package that grows by more than a tenth says why in a commit, which writes the new figure."""
    house = Path(burnt.__file__).parent
    page = (house.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    figures = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, flags=re.MULTILINE))
    packages = {path.parent.name for path in house.glob("*/__init__.py")}
    assert figures.keys() == packages
    lines = {
        name: sum(len(path.read_text("utf-8").splitlines()) for path in (house / name).rglob("*.py"))
        for name in packages
    }
    grown = {
        name: count for name, count in lines.items() if count > 1.1 * int(figures[name].replace(",", ""))
    }
    assert grown == {}


def test_the_run_store_keeps_its_earlier_name() -> None:
    earlier, store = importlib.import_module("burnt.train.store"), importlib.import_module("burnt.store")
    assert [name for name in store.__all__ if getattr(earlier, name) is not getattr(store, name)] == []
