"""`burnt import`: what it prints, and which folders and files it refuses."""

import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

import burnt
from burnt.cli import main
from tests.cli.commands import refused
from tests.onnx.importer_files import read


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "net.onnx"
    burnt.onnx.export(torch.nn.Linear(3, 2), torch.ones(1, 3), path)
    return path


@pytest.fixture
def model(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(exported, tmp_path))


def test_layers_in_blocks_are_counted(tmp_path, capsys):
    path = tmp_path / "bert.onnx"
    path.write_bytes(read("bert.dynamo"))
    assert main(["import", str(path), "--out", str(tmp_path / "bert")]) == 0
    module = burnt.onnx.load(path)
    linears = sum(isinstance(layer, burnt.nn.Linear) for layer in module.modules())
    assert linears > 10
    assert f"layers   {linears} Linear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "hint"),
    [
        ("123-abc", "--out {0}/model_123_abc"),
        ("class", "--out {0}/model_class"),
        ("torch", "--out {0}/torch_model"),
        ("my net", "--out {0}/my_net"),
    ],
)
def test_a_folder_that_is_no_package(folder, hint, model, capsys):
    out = model.parent / folder
    assert hint.format(model.parent) in refused(capsys, "import", str(model), "--out", str(out))
    assert not out.exists()


def test_an_earlier_import_stays(model, capsys):
    words = ["import", str(model), "--out", str(model.parent / "net")]
    assert main(words) == 0
    written = (model.parent / "net" / "__init__.py").read_text()
    capsys.readouterr()
    (model.parent / "net" / "__init__.py").write_text("edited = True\n")
    error = refused(capsys, *words)
    assert f"in        {model.parent / 'net'}" in error
    assert "--force replaces them, with what you edited" in error
    assert (model.parent / "net" / "__init__.py").read_text() == "edited = True\n"
    assert main([*words, "--force"]) == 0
    assert (model.parent / "net" / "__init__.py").read_text() == written


def test_paths_that_are_no_model(model, capsys):
    folder = model.parent
    for path, text in ((folder / "none.onnx", "there is no such file"), (folder, "the file is a folder")):
        assert text in refused(capsys, "import", str(path), "--out", str(folder / "net"))
    assert f"mkdir -p '{folder}/a b'" in refused(
        capsys, "import", str(model), "--out", str(folder / "a b" / "net")
    )
    file = folder / "file"
    file.touch()
    error = refused(capsys, "import", str(model), "--out", str(file / "deep" / "net"))
    assert "the path is below a file" in error
    assert f"found     {file}\n" in error


def test_the_limit_of_constants_is_an_option(tmp_path, capsys):
    path = tmp_path / "sparse.onnx"
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    sparse = helper.make_sparse_tensor(values, indices, [1000])
    node = helper.make_node("Add", ["x", "v"], ["y"])
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", *([e] for e in ends), sparse_initializer=[sparse])),
        path,
    )
    for command in (["import", str(path), "--out", str(tmp_path / "net")], ["show", str(path)]):
        assert "at most 1,000 bytes" in refused(capsys, *command, "--max-constant-bytes", "1000", code=1)
        assert main(command) == 0
        capsys.readouterr()
