"""What is not a model, pattern or mapping is refused before anything is done, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import burnt
from burnt.errors import ArgumentError, BurntError
from tests import forked


def mlp() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def hint_of(error: BurntError) -> str:
    assert error.expected is not None
    assert error.found is not None
    return error.hint or ""


@pytest.mark.parametrize("name", ["quantize", "dequantize", "quant.from_torchao"])
@pytest.mark.parametrize(
    ("model", "found", "hint"),
    [
        (Path("m.safetensors"), "an object of PosixPath", "burnt.load_weights(model, path)"),
        (mlp().state_dict(), "an object of OrderedDict", "burnt.load_weights(model, state_dict)"),
        (torch.nn.Linear, "the class Linear", "an instance: Linear(...)"),
        (torch.relu, "an object of builtin_function_or_method", ""),
    ],
)
def test_a_model_is_a_module(name: str, model: Any, found: str, hint: str) -> None:
    function = burnt.quant.from_torchao if name.startswith("quant.") else getattr(burnt, name)
    with pytest.raises(ArgumentError, match=f"burnt.{name} takes a model") as caught:
        function(model)
    assert (caught.value.expected, caught.value.found) == ("a torch.nn.Module", found)
    assert hint in hint_of(caught.value)


@pytest.mark.parametrize(
    ("argument", "value", "found", "hint"),
    [
        ("skip", 4, "4", "'4' instead of 4"),
        ("only", ["0", 2], "2", "'2' instead of 2"),
        ("skip", [None], "None", ""),
        ("overrides", {0: "int8"}, "0", "'0' instead of 0"),
    ],
)
def test_patterns_are_strings(argument: str, value: Any, found: str, hint: str) -> None:
    with pytest.raises(ArgumentError, match=f"{argument}= of burnt.quantize takes patterns") as caught:
        burnt.quantize(mlp(), **{argument: value})
    assert caught.value.found == found
    assert hint_of(caught.value) == hint


def test_overrides_are_a_mapping() -> None:
    wrong: Any = ["0=int8"]
    with pytest.raises(ArgumentError, match=r"overrides= of burnt\.quantize is not a mapping") as caught:
        burnt.quantize(mlp(), overrides=wrong)
    assert (caught.value.expected, caught.value.found) == (
        "patterns and their schemes, such as {'head': 'int8'}",
        "['0=int8']",
    )


def test_the_package_is_there_after_import_burnt_alone() -> None:
    result = forked.run("import burnt; print(burnt.quant.from_torchao.__name__)")
    assert result.stdout == "from_torchao\n", result.stderr


def test_an_embedding_shows_its_sizes_in_torchs_order() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 32))
    burnt.quantize(model)
    assert repr(model[0]) == "QuantizedEmbedding(10, 32, scheme=int8)"
