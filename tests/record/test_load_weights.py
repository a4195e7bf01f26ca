"""`burnt.load_weights` from every kind of source, into torch's, burnt's and transformers' models."""

import collections
import json

import numpy as np
import pytest
import safetensors.torch
import torch

import burnt
from burnt.errors import RecordError
from burnt.record import Renumber, load_weights, read_weights


class Net(torch.nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.BatchNorm1d(hidden))
        self.head = torch.nn.Linear(hidden, 2)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def bits_of(state):
    return {path: (t.dtype, t.contiguous().view(-1).view(torch.uint8).tolist()) for path, t in state.items()}


def bits(model):
    return bits_of(model.state_dict())


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net()
    model.encoder(torch.randn(7, 3))  # the statistics move
    return model


@pytest.fixture
def fresh():
    torch.manual_seed(1)
    return Net()


def refused(match, *arguments, **options):
    with pytest.raises(RecordError, match=match) as caught:
        load_weights(*arguments, **options)
    return str(caught.value)


def save(state, path):
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    else:
        torch.save(state, path, _use_new_zipfile_serialization=path.suffix != ".legacy")
    return path


class TestSources:
    @pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin", ".legacy", ".npz"])
    def test_files(self, net, fresh, tmp_path, suffix):
        path = save(net.state_dict(), tmp_path / f"weights{suffix}")
        report = load_weights(fresh, path)
        assert bits(fresh) == bits(net)
        assert set(report.applied) == set(net.state_dict())
        assert str(report) == f"9 tensors loaded from {path}"
        assert bits_of(read_weights(path).tensors) == bits(net)

    def test_state_dict_record_and_burnts_own_file(self, net, tmp_path):
        record = burnt.record.record_of(net)
        record.save(tmp_path / "m.safetensors")
        for source in (net.state_dict(), record, tmp_path / "m.safetensors", str(tmp_path / "m.safetensors")):
            fresh = Net()
            load_weights(fresh, source)
            assert bits(fresh) == bits(net)
            assert fresh.head.weight.data_ptr() != net.head.weight.data_ptr()

    def test_a_module_is_no_source(self, net, fresh):
        assert "pass module.state_dict()" in refused("cannot be loaded from this", fresh, net)
        assert "found     int" in refused("cannot be loaded from this", fresh, 3)

    def test_every_dtype(self, tmp_path):
        for dtype in burnt.record.formats.safetensors_file._DTYPES.values():
            model = torch.nn.Module()
            value = torch.arange(24, dtype=torch.uint8)
            value = value.view(3, 8) % 2 == 0 if dtype is torch.bool else value.view(dtype).clone()
            model.register_buffer("x", torch.zeros_like(value))
            safetensors.torch.save_file({"x": value}, tmp_path / "m.safetensors")
            assert load_weights(model, tmp_path / "m.safetensors").applied == ("x",)
            assert torch.equal(model.x.view(torch.uint8), value.view(torch.uint8)), dtype

    @pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".legacy", ".npz"])
    def test_shapes_without_elements_or_axes(self, tmp_path, suffix):
        state = {"empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "odd": torch.arange(3)}
        path = save(state, tmp_path / f"m{suffix}")
        model = torch.nn.Module()
        for name, tensor in state.items():
            model.register_buffer(name, torch.zeros_like(tensor))
        load_weights(model, path)
        assert bits(model) == bits_of(state)

    def test_values_are_converted_in_chunks_and_into_any_layout(self, tmp_path, monkeypatch):
        monkeypatch.setattr(burnt.record.formats.safetensors_file, "_CHUNK", 40)
        state = {"w": torch.randn(2, 3, 5, 7)}
        path = save(state, tmp_path / "m.safetensors")
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for layout in (torch.contiguous_format, torch.channels_last):
                model = torch.nn.Module()
                model.register_buffer("w", torch.zeros(2, 3, 5, 7, dtype=dtype).to(memory_format=layout))
                load_weights(model, path)
                assert torch.equal(model.w, state["w"].to(dtype))
                assert model.w.is_contiguous(memory_format=layout)

    def test_a_load_counts_as_a_change_in_place(self, net, tmp_path):
        # What was saved for backward before would be wrong after it.
        loss = net.head(torch.randn(2, 4, requires_grad=True)).sum()
        load_weights(net, save(net.state_dict(), tmp_path / "m.safetensors"))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_npz_in_fortran_order_and_of_other_dtypes(self, tmp_path):
        np.savez_compressed(tmp_path / "m.npz", weight=np.asfortranarray(np.arange(6.0).reshape(2, 3)))
        model = torch.nn.Linear(3, 2, bias=False)
        report = load_weights(model, tmp_path / "m.npz")
        assert model.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert report.cast == {"weight": (torch.float64, torch.float32)}
        for array, message in [
            (np.array([{}]), "holds Python objects"),
            (np.array(["a"]), "dtype that torch lacks"),
            (np.zeros(2, ">f4"), "dtype that torch lacks"),
        ]:
            np.savez(tmp_path / "m.npz", weight=array)
            assert "m.npz: weight.npy" in refused(message, model, tmp_path / "m.npz")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"GGUF\1\0\0\0" + bytes(100), "GGUF file of another version"),
            (b"\x89HDF\r\n\x1a\n" + bytes(100), "from a HDF5 file(?s:.)*hint +read it with Keras or h5py"),
            (b'{\n "weight_map": {}}', "from a JSON file"),
            (b"\x93NUMPY\1\0v\0{'descr", "from a .npy file(?s:.)*gives each array a name"),
            (b"version https://git-lfs.github.com/spec/v1", "from a pointer of Git LFS(?s:.)*git lfs pull"),
            (b"<!DOCTYPE html><html>", "from a web page(?s:.)*that of a page"),
            (b"\x80\x04\x95\x1c\0\0\0\0\0\0\0", "a pickle that torch.save did not write"),
            (
                b"some text",
                "not a tensor file(?s:.)*PyTorch(?s:.)*b'some'(?s:.)*numpy.savez; or the file was cut",
            ),
            (b"", "not a tensor file, or only its beginning"),
        ],
    )
    def test_other_formats_are_named(self, tmp_path, content, message):
        (tmp_path / "m.index.json").write_bytes(content)
        text = refused(message, Net(), tmp_path / "m.index.json")
        assert str(tmp_path / "m.index.json") in text
        assert ("load its folder" in text) == ("JSON" in message)

    @pytest.mark.parametrize("length", [0x4B50, 0x0280, 0x227B])
    def test_headers_whose_length_looks_like_another_format(self, tmp_path, length):
        # PK of a zip file, the beginning of a pickle, {" of JSON.
        layer = torch.nn.Linear(2, 2, bias=False)
        data = safetensors.torch.save({"weight": layer.weight.detach()})
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        values = data[8 + len(header) :]
        (tmp_path / "m").write_bytes(length.to_bytes(8, "little") + header.ljust(length) + values)
        other = torch.nn.Linear(2, 2, bias=False)
        load_weights(other, tmp_path / "m")
        assert bits(other) == bits(layer)

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load_weights(Net(), tmp_path / "no.safetensors")


class TestFolders:
    @pytest.fixture(params=["safetensors", "bin"])
    def snapshot(self, request, net, tmp_path):
        """Two shards and their index, as transformers writes them."""
        state = net.state_dict()
        names = list(state)
        stem = "model" if request.param == "safetensors" else "pytorch_model"
        files = [f"{stem}-0000{i}-of-00002.{request.param}" for i in (1, 2)]
        for file, part in zip(files, (names[:3], names[3:]), strict=True):
            save({name: state[name] for name in part}, tmp_path / file)
        where = {name: files[i >= 3] for i, name in enumerate(names)}
        index = tmp_path / f"{stem}.{request.param}.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
        return tmp_path

    def test_shards(self, net, fresh, snapshot):
        report = load_weights(fresh, snapshot)
        assert bits(fresh) == bits(net)
        assert str(report) == f"9 tensors loaded from {snapshot}"

    def test_one_file(self, net, fresh, tmp_path):
        for name in ("adapter.safetensors", "pytorch_model.bin", "model.safetensors"):
            (tmp_path / "config.json").write_text("{}")
            save(net.state_dict(), tmp_path / name)
            load_weights(fresh, tmp_path)
            assert bits(fresh) == bits(net)

    def test_links_as_in_the_cache_of_hugging_face(self, net, fresh, tmp_path):
        (tmp_path / "blobs").mkdir()
        (tmp_path / "snapshot").mkdir()
        save(net.state_dict(), tmp_path / "blobs" / "0123.safetensors")
        (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0123.safetensors")
        load_weights(fresh, tmp_path / "snapshot")
        assert bits(fresh) == bits(net)

    @pytest.mark.parametrize(
        "name", ["../m.safetensors", "/etc/passwd", "..", "", "a/b", "a\\b", "C:x", "a\0b"]
    )
    def test_an_index_may_not_leave_its_folder(self, fresh, tmp_path, name):
        folder = tmp_path / "snapshot"
        folder.mkdir()
        save(fresh.state_dict(), tmp_path / "m.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
        assert repr(name) in refused("names a file outside of it", fresh, folder)

    def test_damaged_folders(self, fresh, snapshot):
        index = next(snapshot.glob("*.json"))
        good = index.read_text()
        for text, message in [
            ("{", "index of a folder is damaged"),
            ('{"weight_map": []}', "index of a folder is damaged"),
            ("[" * 10**5, "index of a folder is damaged"),
            (good.replace("head.bias", "tail.bias"), "lacks a tensor that the index expects"),
            (good.replace("00001-of", "00003-of"), "a shard of a folder is missing"),
        ]:
            index.write_text(text)
            refused(message, fresh, snapshot)
        index.unlink()
        assert "not written or copied completely" in refused(
            "shards of weights and no index", fresh, snapshot
        )
        for path in snapshot.glob("*-00*"):
            path.rename(path.with_stem(path.stem.replace("-of-", "-")))
        assert "name one of the files" in refused("several files of weights and no index", fresh, snapshot)

    def test_a_folder_without_weights(self, fresh, tmp_path):
        (tmp_path / "config.json").write_text("{}")
        assert "found     config.json" in refused("a folder has no weights", fresh, tmp_path)
        (tmp_path / "_CHECKPOINT_METADATA").touch()
        assert "a checkpoint of TensorFlow or JAX" in refused("a folder has no weights", fresh, tmp_path)

    def test_a_dict_of_arrays(self, fresh):
        arrays = {"weight": np.ones((2, 3))}
        assert "torch.from_numpy makes tensors" in refused("not a state dict", fresh, arrays)


class TestNestedKeysAndPrefixes:
    @pytest.mark.parametrize("key", ["state_dict", "model", "module", "anything"])
    @pytest.mark.parametrize("suffix", [".pt", ".legacy"])
    def test_a_nested_key_is_found_and_named(self, net, fresh, tmp_path, key, suffix):
        checkpoint = {"epoch": 3, key: net.state_dict(), "optimizer": {"state": {0: {"step": torch.ones(1)}}}}
        report = load_weights(fresh, save(checkpoint, tmp_path / f"m{suffix}"))
        assert bits(fresh) == bits(net)
        assert f"note  taken from {key!r}" in str(report)

    def test_two_levels_and_others_beside(self, net, fresh):
        source = {"ema": net.state_dict(), "model": {"state_dict": net.state_dict(), "best": torch.ones(1)}}
        report = load_weights(fresh, source)
        assert report.notes == ("taken from 'model', not from 'ema'", "taken from 'state_dict'")

    def test_several_state_dicts(self, net, fresh):
        text = refused("several state dicts", fresh, {"g": net.state_dict(), "d": net.state_dict()})
        assert "'g', 'd'" in text
        assert "['g']" in text

    def test_what_is_no_state_dict(self, fresh):
        assert "no tensors" in refused("not a state dict", fresh, {"epoch": 3})

    def test_values_that_are_no_tensors_are_named(self, net, fresh):
        state = collections.OrderedDict(net.state_dict(), version=2, _extra_state=None)
        assert load_weights(fresh, state).notes == (
            "ignored, as they are not tensors: 'version', '_extra_state'",
        )

    def test_prefixes_of_wrappers(self, net, fresh):
        compiled = torch.nn.Module()
        compiled._orig_mod = net  # as torch.compile does
        parallel = torch.nn.DataParallel(compiled)
        for model, prefixes in [(compiled, ["_orig_mod."]), (parallel, ["_orig_mod.", "module."])]:
            report = load_weights(fresh, model.state_dict())
            assert bits(fresh) == bits(net)
            assert len(report.notes) == len(prefixes)
            assert all(prefix in note for prefix, note in zip(prefixes, report.notes, strict=True))
            load_weights(model, fresh.state_dict())
            load_weights(model, model.state_dict())
            assert list(burnt.record.record_of(model).tensors) == list(net.state_dict())

    def test_a_model_with_a_layer_of_that_name(self):
        model = torch.nn.ModuleDict({"module": torch.nn.Linear(2, 2)})
        assert load_weights(model, model.state_dict()).notes == ()


class TestFit:
    def test_an_alternative_that_matches_nothing_gives_a_warning(self, net, fresh):
        with pytest.warns(
            UserWarning, match="'encodr' in the pattern .* matches no tensor: did you mean 'enc"
        ):
            load_weights(fresh, net.state_dict(), only="encodr|*.bias")

    def test_only_and_skip(self, net, fresh):
        before = bits(fresh)
        report = load_weights(fresh, net.state_dict(), only="encoder|*.bias", skip=["encoder.1"])
        assert report.applied == ("encoder.0.weight", "encoder.0.bias", "head.bias")
        assert len(report.skipped) == 6
        for path, value in bits(fresh).items():
            assert value == (bits(net) if path in report.applied else before)[path]
        del (state := net.state_dict())["head.weight"]
        state["other"] = torch.ones(1)
        load_weights(fresh, state, only="encoder")
        load_weights(fresh, state, skip=["head.weight", "other"])
        assert "did you mean 'encoder'?" in refused("matches nothing", fresh, state, only="encodr")

    def test_rename(self, net, fresh):
        state = {f"net.{k.replace('encoder.1', 'encoder.4')}": v for k, v in net.state_dict().items()}
        rename = [(r"^net\.", ""), Renumber(r"^encoder\.(\d+)")]
        assert set(load_weights(fresh, state, rename=rename).applied) == set(net.state_dict())
        assert bits(fresh) == bits(net)
        state = {k.replace("encoder", "e"): v for k, v in net.state_dict().items()}
        load_weights(fresh, state, rename=[(r"^e\.(\d)", lambda match: f"encoder.{match[1]}")])
        both = {"a": state["e.0.bias"], "b": state["e.1.bias"]}
        assert "'a' and 'b'" in refused("two tensors one name", fresh, both, rename=[("a|b", "c")])
        for step in [("(", ""), ("a", r"\9"), ("a",), Renumber("a")]:
            assert repr(step) in refused("rename= cannot be applied", fresh, {"a": both["a"]}, rename=[step])
        for steps in ["ab", ("a", "b"), {"a": "b"}]:  # no list of pairs
            assert "text that is in no pair" in refused(
                "rename= cannot be applied", fresh, {"a": both["a"]}, rename=steps
            )

    def test_a_step_of_rename_that_matches_nothing_is_noted(self, net, fresh):
        steps = [(r"^modle\.", ""), Renumber(r"^layers\.(\d+)"), ("head", "head")]
        report = load_weights(fresh, net.state_dict(), rename=steps)
        assert report.notes == tuple(f"{step!r} of rename= matches no name" for step in steps[:2])
        state = {f"model.{name}": value for name, value in net.state_dict().items()}
        assert report.notes[0] in refused("does not fit", fresh, state, rename=steps)

    @pytest.mark.parametrize("dtype", ["float16", torch.int8, float])
    def test_a_dtype_that_weights_do_not_have(self, net, fresh, dtype):
        text = refused(f"not loaded in {dtype!r}", fresh, net.state_dict(), dtype=dtype)
        assert "expected  a floating-point dtype such as torch.bfloat16, 'stored' or None" in text

    def test_other_names_of_weights_and_biases_are_guessed(self):
        model = torch.nn.Sequential(torch.nn.LayerNorm(3), torch.nn.Linear(3, 3, bias=False))
        state = {"0.beta": torch.ones(3), "0.gamma": torch.ones(3), "1.kernel": torch.ones(3, 3)}
        text = refused("does not fit", model, state)
        for path, name in [("0.weight", "0.gamma"), ("0.bias", "0.beta"), ("1.weight", "1.kernel")]:
            assert f"{path}: {tuple(model.state_dict()[path].shape)} in the module, nothing" in text
            assert f"(is {name!r} it?)" in text.split(f"{path}: ")[1].split("\n")[0]

    def test_sizes_of_another_model(self, net):
        assert "; build the model with the sizes of the file" in refused(
            "does not fit", Net(hidden=5), net.state_dict()
        )

    def test_renumber_counts_each_list_by_itself(self):
        names = ["a.3.x", "a.3.y", "a.7.x", "b.1.x", "c"]
        assert Renumber(r"\.(\d+)\.", start=1)(names) == ["a.1.x", "a.1.y", "a.2.x", "b.1.x", "c"]

    def test_the_error_is_a_table_with_guesses(self, net, fresh):
        before = bits(fresh)
        state = net.state_dict()
        state["head.weight"] = state["head.weight"].T
        state["encoder.0.wieght"] = state.pop("encoder.0.weight")
        state["other"] = torch.ones(1)
        text = refused("does not fit Net: 3 of 11 tensors", fresh, state)
        assert text.splitlines()[2:6] == [
            "  found     a state dict of 10 tensors",
            "  from      head.weight: (2, 4) in the module, (4, 2) in the state dict (transposed?)",
            "            encoder.0.weight: (4, 3) in the module, nothing in the state dict"
            " (is 'encoder.0.wieght' it?)",
            "            other: in the state dict, not in the module",
        ]
        assert "nothing was changed; skip='head.weight' leaves out tensors of another shape" in text
        assert bits(fresh) == before

    def test_a_prefix_is_guessed(self, net, fresh):
        more = {f"model.{name}": value for name, value in net.state_dict().items()}
        assert r"""rename=[(r"^model\.", "")] takes away""" in refused(
            "does not fit", fresh, more, partial=True
        )
        load_weights(fresh, more, rename=[(r"^model\.", "")])
        model = torch.nn.ModuleDict({"model": fresh})
        assert """rename=[(r"^", "model.")] adds""" in refused("does not fit", model, net.state_dict())
        load_weights(model, net.state_dict(), rename=[(r"^", "model.")])

    def test_partial(self, net, fresh):
        state = net.state_dict()
        state["encoder.0.wieght"] = state.pop("encoder.0.weight")
        report = load_weights(fresh, state, partial=True)
        assert str(report).splitlines() == [
            "8 tensors loaded from a state dict",
            "  missing     encoder.0.weight (is 'encoder.0.wieght' it?)",
            "  unexpected  encoder.0.wieght",
        ]
        refused("does not fit", fresh, {"a": torch.ones(1)}, partial=True)
        state["head.weight"] = torch.ones(1)
        refused("does not fit", fresh, state, partial=True)

    def test_long_reports_are_cut(self):
        model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(30)])
        half = {name: value.double() for name, value in model.state_dict().items() if "weight" in name}
        text = str(load_weights(model, half, partial=True))
        assert "cast     0.weight and 29 more: from torch.float64 to torch.float32" in text
        assert "missing  and 18 more" in text
        assert len(text.splitlines()) == 15

    def test_dtype(self, net, fresh):
        half = {k: v.half() if v.is_floating_point() else v for k, v in net.state_dict().items()}
        optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
        wanted_dtypes = {None: torch.float32, "stored": torch.float16, torch.bfloat16: torch.bfloat16}
        for dtype, wanted in wanted_dtypes.items():
            report = load_weights(fresh, half, dtype=dtype)
            assert bool(report.cast) == (wanted is not torch.float16)
            for path, value in fresh.state_dict().items():
                assert torch.equal(value, half[path].to(value.dtype))
                kept = dtype is torch.bfloat16 and path.startswith("encoder.1.")  # BatchNorm
                assert value.dtype == (
                    torch.int64 if "num_batches" in path else torch.float32 if kept else wanted
                )
            fresh = fresh.float()
        assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in fresh.parameters()}

    @pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
    def test_lazy_layers_must_be_called_first(self):
        model = torch.nn.Sequential(torch.nn.LazyLinear(2))
        state = {"0.weight": torch.ones(2, 3), "0.bias": torch.ones(2)}
        text = refused("Sequential has a lazy layer", model, state)
        assert "in        0.weight" in text
        assert "call the model once" in text
        model(torch.ones(1, 3))
        load_weights(model, state)
        assert model[0].weight.tolist() == state["0.weight"].tolist()


class TestTied:
    @pytest.mark.parametrize("on_meta", [False, True])
    @pytest.mark.parametrize("dtype", [None, torch.float64])
    def test_one_name_is_enough_and_stays_tied(self, tmp_path, on_meta, dtype):
        tied = Tied()
        for keep in ("embed.weight", "head.weight"):
            path = save({keep: tied.embed.weight.detach()}, tmp_path / "m.safetensors")
            with torch.device("meta" if on_meta else "cpu"):
                model = Tied()
                model.head.weight = model.embed.weight
            report = load_weights(model, path, dtype=dtype)
            other = "head.weight" if keep == "embed.weight" else "embed.weight"
            assert report.tied == {other: keep}
            assert f"tied  {other} is {keep}" in str(report) or "cast" in str(report)
            assert model.head.weight is model.embed.weight
            assert torch.equal(model.head.weight, tied.head.weight)

    def test_two_names_must_agree(self, tmp_path):
        model, weight = Tied(), torch.randn(5, 3)
        weight[0, 0] = torch.nan
        for path in (tmp_path / "m.safetensors", tmp_path / "m.pt"):
            save({"embed.weight": weight, "head.weight": weight.clone()}, path)
            load_weights(model, path)
            before = bits(model)
            save({"embed.weight": weight, "head.weight": weight + 1}, path)
            text = refused("tied tensors of the model have different values", model, path)
            assert "skip='head.weight'" in text
            assert bits(model) == before
            load_weights(model, path, skip="head.weight")

    def test_untied_models_get_both_from_one(self, tmp_path):
        tied, untied = Tied(), Tied()
        untied.head.weight = torch.nn.Parameter(torch.zeros(5, 3))
        safetensors.torch.save_model(tied, tmp_path / "m.safetensors")
        load_weights(untied, tmp_path / "m.safetensors")
        assert torch.equal(untied.head.weight, tied.embed.weight)
        assert torch.equal(untied.embed.weight, tied.embed.weight)


class TestMeta:
    def test_a_model_on_meta_gets_its_memory_from_the_file(self, net, tmp_path):
        path = save(net.state_dict(), tmp_path / "m.safetensors")
        with torch.device("meta"):
            model = Net()
        model.head.weight.requires_grad_(False)
        model.register_buffer("table", torch.ones(2, device="meta"), persistent=False)
        report = load_weights(model, path)
        assert bits(model) == bits(net)
        assert isinstance(model.head.weight, torch.nn.Parameter)
        assert not model.head.weight.requires_grad
        assert model.head.bias.requires_grad
        assert report.meta == ("table",)
        assert "on meta  table" in str(report)

    def test_the_default_device(self, net):
        with torch.device("meta"):
            model = Net()
            load_weights(model, net.state_dict())
        assert model.head.weight.device.type == "cpu"


class Buffer(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("x", value)


LOST = {
    "imaginary part": (torch.ones(1), torch.tensor([1 + 2j])),
    "fraction": (torch.ones(2, dtype=torch.int64), torch.tensor([1.0, 2.5])),
    "NaN": (torch.ones(2, dtype=torch.int64), torch.tensor([1.0, torch.nan])),
    "range of integers": (torch.ones(1, dtype=torch.int8), torch.tensor([300])),
    "integer in float16": (torch.ones(1, dtype=torch.float16), torch.tensor([70000])),
    "8 bits without infinity": (torch.ones(1).to(torch.float8_e4m3fn), torch.tensor([1e6])),
}


@pytest.mark.parametrize("case", LOST)
def test_values_that_the_dtype_lacks_are_refused(case):
    own, value = LOST[case]
    module = Buffer(own)
    with pytest.raises(RecordError, match=r"do not exist in|are too large for"):
        load_weights(module, {"x": value})
    assert torch.equal(module.x.double(), torch.ones(own.shape, dtype=torch.float64))


def test_values_that_the_dtype_has_are_converted():
    for own, value in [
        (torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 3.0])),
        (torch.zeros(2, dtype=torch.bool), torch.tensor([1, 0], dtype=torch.uint8)),
        (torch.zeros(2, dtype=torch.uint32), torch.tensor([1, 2**31])),
        (torch.zeros(2, dtype=torch.int64), torch.tensor([1, 2]).to(torch.uint64)),
        (torch.zeros(2, dtype=torch.float16), torch.tensor([1, 2])),
        (torch.zeros(2).to(torch.float8_e4m3fn), torch.tensor([1.0, 2.0])),
    ]:
        module = Buffer(own)
        load_weights(module, {"x": value})
        assert module.x.dtype == own.dtype
        assert torch.equal(module.x.double(), value.double())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_expanded_buffer_is_replaced(device):
    module = Buffer(torch.ones(1, device=device).expand(2, 3))
    value = torch.arange(6.0).view(2, 3)
    load_weights(module, {"x": value})
    assert torch.equal(module.x, value)


@pytest.mark.filterwarnings("ignore")  # torch announces the end of its quantized tensors, and prototypes
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: torch.eye(2).to_sparse(), "torch.sparse_coo"),
        (lambda: torch.eye(2).to_sparse_csr(), "torch.sparse_csr"),
        (lambda: torch.eye(2).to_mkldnn(), "torch._mkldnn"),
        (lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8), "torch.qint8"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), "nested"),
        (lambda: torch.masked.masked_tensor(torch.eye(2), torch.eye(2).bool()), "MaskedTensor"),
    ],
)
@pytest.mark.parametrize("where", ["source", "model"])
def test_tensors_without_plain_values_leave_the_model_as_it_was(make, found, where):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    before = model[0].weight.clone()
    state = {"0.weight": torch.ones(2, 2), "1.weight": torch.ones(2, 2)}
    if where == "source":
        state["1.weight"] = make()
    elif found == "nested":
        return  # a nested parameter has no shape that a source could fit
    else:
        del model[1].weight
        model[1].register_buffer("weight", make())
    with pytest.raises(RecordError, match="not stored as plain values") as caught:
        load_weights(model, state)
    assert found in str(caught.value.found)
    assert ("state dict: " if where == "source" else "the model: ") + "1.weight" in str(caught.value.where)
    assert torch.equal(model[0].weight, before)
