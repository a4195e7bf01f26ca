"""Layouts: each step in both directions, by hand and at random; from files; what messages say."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings

import burnt
from burnt.errors import RecordError
from burnt.record import Drop, Join, Keep, Layout, Record, Rename, Split, load_weights, read_weights


def numbered(*shape, dtype=torch.float32):
    return torch.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


def equal(tensors, expected):
    assert list(tensors) == list(expected)
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor), name


def both_ways(layout, theirs, ours):
    equal(layout.read(theirs), ours)
    equal(layout.write(ours), theirs)


class Holder(torch.nn.Module):
    """Parameters under any names with dots."""

    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            holder = self
            for part in path:
                if not hasattr(holder, part):
                    holder.add_module(part, torch.nn.Module())
                holder = getattr(holder, part)
            value = torch.zeros_like(tensor)
            holder.register_parameter(last, torch.nn.Parameter(value, requires_grad=False))


def loaded(theirs, ours, layout, **options):
    """Load into parameters shaped as `ours`, and compare."""
    model = Holder(ours)
    report = load_weights(model, theirs, layout=layout, **options)
    equal({name: model.get_parameter(name).data for name in ours}, ours)
    return report


def refused(match, call, *arguments, **options):
    with pytest.raises(RecordError, match=match) as caught:
        call(*arguments, **options)
    return str(caught.value)


class TestRename:
    def test_pairs_of_tensors_and_modules_with_stars(self):
        x, y, z = numbered(2), numbered(3), numbered(4)
        both_ways(
            Layout([("wte.weight", "embed.weight"), ("h.*.ln_*", "layers.*.norm*"), ("ln", "final.norm")]),
            {"wte.weight": x, "h.11.ln_1.bias": y, "ln.weight": z, "other": x},
            {"embed.weight": x, "layers.11.norm1.bias": y, "final.norm.weight": z, "other": x},
        )

    def test_nested_stars_and_double_stars(self):
        x = numbered(2)
        both_ways(
            Layout([("b.*.e.*.w1", "blocks.*.experts.*.up"), ("**.gamma", "**.weight")]),
            {"b.0.e.12.w1.weight": x, "a.b.gamma": x, "gamma": x},
            {"blocks.0.experts.12.up.weight": x, "a.b.weight": x, "weight": x},
        )

    def test_a_name_is_matched_whole(self):
        names = ["head.weight", "my.head.weight", "header.weight", "head", "a.b.c"]
        read = Layout([("head", "out"), ("a.*", "x.*")]).read({name: numbered(1) for name in names})
        assert list(read) == ["out.weight", "my.head.weight", "header.weight", "out", "x.b.c"]

    def test_the_first_step_wins_with_and_without_stars(self):
        x = numbered(1)
        assert list(Layout([("a.*.w", "s.*.w"), ("a.b", "t")]).read({"a.b.w": x, "a.b.v": x})) == [
            "s.b.w",
            "t.v",
        ]
        assert list(Layout([("a.b", "t"), ("a.*.w", "s.*.w")]).read({"a.b.w": x})) == ["t.w"]
        assert list(Layout([("a.b", "t"), ("a.b.w", "u")]).read({"a.b.w": x})) == ["t.w"]
        assert list(Layout([("a.b.w", "u"), ("a.b", "t")]).read({"a.b.w": x})) == ["u"]

    def test_transposed_matrices_and_other_orders_of_axes(self):
        matrix, vector, kernel = numbered(2, 3), numbered(3), numbered(2, 3, 4, 5)
        layout = Layout(
            [
                Rename("dense.kernel", "fc.weight", transpose=True),
                Rename("c", "conv", transpose=True),
                Rename("k.kernel", "k.weight", transpose=(3, 2, 0, 1)),
            ]
        )
        both_ways(
            layout,
            {"dense.kernel": matrix, "c.weight": matrix, "c.bias": vector, "k.kernel": kernel},
            {"fc.weight": matrix.T, "conv.weight": matrix.T, "conv.bias": vector,
             "k.weight": kernel.permute(3, 2, 0, 1)},
        )  # fmt: skip

    def test_memory_is_shared_where_nothing_moves(self):
        x, y = numbered(2, 3), numbered(4, 3)
        layout = Layout([Rename("a", "b", transpose=True), Split("q", ("r", "s"))])
        read = layout.read({"a": x, "q": y})
        assert read["b"].data_ptr() == x.data_ptr()
        assert read["r"].data_ptr() == y.data_ptr()


class TestJoinAndSplit:
    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    def test_parts_in_any_order_in_the_file(self, order):
        parts = {name: numbered(2) * 10**i for i, name in enumerate("qkv")}
        shuffled = {"qkv"[i]: parts["qkv"[i]] for i in order}
        read = Layout([Join(("q", "k", "v"), "whole")]).read(shuffled)
        equal(read, {"whole": torch.cat(list(parts.values()))})

    def test_dim_1(self):
        a, b = numbered(2, 3), numbered(2, 1) + 50
        layout = Layout([Join(("a", "b"), "c", sizes=(3, 1), dim=1)])
        both_ways(layout, {"a": a, "b": b}, {"c": torch.cat([a, b], 1)})

    def test_groups_are_the_heads_of_gpt_neox(self):
        heads, size, width = 3, 2, 4
        fused = numbered(heads * 3 * size, width)
        q, k, v = (
            torch.cat([fused[(3 * h + i) * size : (3 * h + i + 1) * size] for h in range(heads)])
            for i in range(3)
        )
        layout = Layout([Split("qkv", ("q", "k", "v"), groups=heads)])
        both_ways(
            layout,
            {"qkv.weight": fused, "qkv.bias": fused[:, 0]},
            {"q.weight": q, "k.weight": k, "v.weight": v, "q.bias": q[:, 0], "k.bias": k[:, 0],
             "v.bias": v[:, 0]},
        )  # fmt: skip

    def test_groups_of_unequal_sizes(self):
        # Falcon: in each group two queries, one key and one value of size 1.
        fused = numbered(2 * 4, 3)
        layout = Layout([Split("qkv", ("q", "k", "v"), sizes=(4, 2, 2), groups=2)])
        ours = {"q": fused[[0, 1, 4, 5]], "k": fused[[2, 6]], "v": fused[[3, 7]]}
        both_ways(layout, {"qkv": fused}, ours)

    def test_transposed(self):
        q, k = numbered(2, 3), numbered(2, 3) + 10
        both_ways(
            Layout([Join(("q", "k"), "qk", transpose=True)]),
            {"q.w": q, "k.w": k, "q.b": q[0], "k.b": k[0]},
            {"qk.w": torch.cat([q.T, k.T]), "qk.b": torch.cat([q[0], k[0]])},
        )
        whole = numbered(3, 4)  # GPT-2's Conv1D: [in, out]
        both_ways(
            Layout([Split("c", ("q", "k"), transpose=True)]),
            {"c.w": whole, "c.b": whole[0]},
            {"q.w": whole[:, :2].T, "k.w": whole[:, 2:].T, "q.b": whole[0, :2], "k.b": whole[0, 2:]},
        )

    def test_meta_tensors_stay_on_meta(self):
        layout = Layout([Join(("a", "b"), "c", groups=2), Rename("d", "e", transpose=True)])
        theirs = {name: torch.empty(4, 6, device="meta") for name in "abd"}
        ours = layout.read(theirs)
        assert {name: (tuple(t.shape), t.is_meta) for name, t in ours.items()} == {
            "e": ((6, 4), True),
            "c": ((8, 6), True),
        }
        assert all(t.is_meta and t.shape == (4, 6) for t in layout.write(ours).values())


class TestPrefixDropKeep:
    LAYOUT = Layout([("emb", "embedding"), Drop("*.mask"), Keep("table")], prefix="bert", heads=("cls",))

    def test_the_prefix_is_taken_away_where_it_is(self):
        x = numbered(2)
        for theirs in ({"bert.emb.w": x, "cls.w": x}, {"emb.w": x, "cls.w": x}):
            equal(self.LAYOUT.read(theirs), {"embedding.w": x, "cls.w": x})
        assert list(self.LAYOUT.write({"embedding.w": x, "cls.w": x})) == ["emb.w", "cls.w"]
        prefixed = Layout(self.LAYOUT.steps, prefix="bert", heads=("cls",), prefixed=True)
        both_ways(prefixed, {"bert.emb.w": x, "cls.w": x}, {"embedding.w": x, "cls.w": x})

    def test_a_module_that_is_named_as_the_prefix(self):
        x = numbered(2)
        equal(Layout([], prefix="a").read({"a.w": x, "w": x}), {"a.w": x, "w": x})

    def test_drop_and_keep(self):
        x = numbered(2)
        equal(self.LAYOUT.read({"emb": x, "0.mask": x, "table": x}), {"embedding": x, "table": x})
        equal(self.LAYOUT.write({"embedding": x, "table": x}), {"emb": x})
        model = Holder({"embedding": x, "table": x})
        report = load_weights(model, {"bert.emb": x, "0.mask": x}, layout=self.LAYOUT)
        assert report.applied == ("embedding",)
        assert report.missing == report.unexpected == ()
        assert model.table.eq(0).all()
        report = load_weights(model, {"emb": x, "table": x}, layout=self.LAYOUT)
        assert report.applied == ("embedding", "table")


# Random layouts: each step is on modules of its own, with one or two stars.
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int32])


@st.composite
def layouts_and_tensors(draw):
    steps, ours = [], {}
    for number in range(draw(st.integers(1, 4))):
        stars = draw(st.sampled_from(["*", "*.x.*", "**.y", "z"]))
        layers = {"*": ["0", "10"], "*.x.*": ["1.x.2"], "**.y": ["y", "p.q.y"], "z": ["z"]}[stars]
        start = "" if stars.startswith("**") else f"s{number}."
        transpose = draw(st.sampled_from([False, True, (1, 0), (2, 0, 1)]))
        groups, dim = draw(st.integers(1, 3)), draw(st.integers(0, 1))
        sizes = tuple(groups * size for size in draw(st.lists(st.integers(1, 3), min_size=2, max_size=3)))
        parts = tuple(f"{start}{stars}.our{number}_{i}" for i in range(len(sizes)))
        whole = f"{start}{stars}.whole{number}"
        kind = draw(st.sampled_from(["pair", "rename", "join", "split"]))
        axes = 3 if transpose == (2, 0, 1) else 2
        shape = [draw(st.integers(0, 4)) for _ in range(axes)]
        options = {"sizes": sizes, "dim": dim, "groups": groups, "transpose": transpose}
        if kind == "pair":
            steps.append((f"{start}{stars}.their{number}", whole))
            made = {whole: shape}
        elif kind == "rename":
            steps.append(Rename(f"{start}{stars}.their{number}", whole, transpose))
            made = {whole: shape}
        elif kind == "join":
            theirs = tuple(name.replace("our", "their") for name in parts)
            steps.append(Join(theirs, whole, **options))
            made = {whole: [*shape[:dim], sum(sizes), *shape[dim + 1 :]]}
        else:
            steps.append(Split(f"{start}{stars}.their{number}", parts, **options))
            made = {name: [*shape[:dim], size, *shape[dim + 1 :]] for name, size in zip(parts, sizes)}  # noqa: B905
        dtype = draw(DTYPES)
        for layer in layers:
            for name, size in made.items():
                ours[name.replace(stars, layer) + ".weight"] = torch.randint(-99, 99, size).to(dtype)
    return Layout(steps, prefix="body", prefixed=draw(st.booleans())), ours


@settings(max_examples=25, deadline=None)
@given(layouts_and_tensors())
def test_reading_undoes_writing(case):
    layout, ours = case
    written = layout.write(ours)
    assert all("their" in name for name in written)
    read = layout.read(written)
    equal({name: read[name] for name in ours}, ours)
    assert read.keys() == ours.keys()
    equal(layout.write(read), {name: written[name] for name in layout.write(read)})


THEIRS = {
    "q.weight": numbered(4, 3), "k.weight": 20 + numbered(2, 3), "v.weight": 40 + numbered(2, 3),
    "fused": numbered(12, 2), "grouped": numbered(12, 2), "columns": numbered(2, 12),
    "out.kernel": numbered(3, 5), "conv.kernel": numbered(2, 2, 3, 4),
}  # fmt: skip
LAYOUT = Layout(
    [
        Join(("q", "k", "v"), "attention.in_proj", sizes=(4, 2, 2)),
        Split("fused", ("f.a", "f.b", "f.c"), sizes=(6, 2, 4)),
        Split("grouped", ("g.a", "g.b", "g.c"), groups=2),
        Split("columns", ("c.a", "c.b"), dim=1),
        Rename("out.kernel", "out.weight", transpose=True),
        Rename("conv.kernel", "conv.weight", transpose=(3, 2, 0, 1)),
    ]
)
OURS = {
    "attention.in_proj.weight": torch.cat([THEIRS["q.weight"], THEIRS["k.weight"], THEIRS["v.weight"]]),
    "f.a": THEIRS["fused"][:6], "f.b": THEIRS["fused"][6:8], "f.c": THEIRS["fused"][8:],
    "g.a": THEIRS["grouped"][[0, 1, 6, 7]], "g.b": THEIRS["grouped"][[2, 3, 8, 9]],
    "g.c": THEIRS["grouped"][[4, 5, 10, 11]],
    "c.a": THEIRS["columns"][:, :6], "c.b": THEIRS["columns"][:, 6:],
    "out.weight": THEIRS["out.kernel"].T, "conv.weight": THEIRS["conv.kernel"].permute(3, 2, 0, 1),
}  # fmt: skip


class TestFiles:
    @pytest.mark.parametrize("kind", ["safetensors", "pt", "npz", "folder", "dict", "record"])
    def test_every_source(self, tmp_path, kind):
        path = tmp_path / f"weights.{kind}"
        source = path
        if kind == "safetensors":
            safetensors.torch.save_file(THEIRS, path)
        elif kind == "pt":
            torch.save(THEIRS, path)
        elif kind == "npz":
            np.savez(path, **{name: tensor.numpy() for name, tensor in THEIRS.items()})
        elif kind == "folder":
            Record(THEIRS).save_folder(path, shard_bytes=100)
        else:
            source = THEIRS if kind == "dict" else Record(THEIRS)
        report = loaded(source, OURS, LAYOUT)
        assert set(report.applied) == set(OURS)
        assert report.unexpected == report.missing == ()

    def test_dtypes_and_the_meta_device(self, tmp_path):
        safetensors.torch.save_file(THEIRS, tmp_path / "w.safetensors")
        with torch.device("meta"):
            model = Holder({name: tensor.to("meta") for name, tensor in OURS.items()})
        load_weights(model, tmp_path / "w.safetensors", layout=LAYOUT, dtype=torch.bfloat16)
        equal(
            {name: model.get_parameter(name).data for name in OURS},
            {name: tensor.bfloat16() for name, tensor in OURS.items()},
        )

    def test_targets_that_are_not_contiguous(self, tmp_path):
        safetensors.torch.save_file(THEIRS, tmp_path / "w.safetensors")
        model = Holder(OURS)
        for name, tensor in OURS.items():
            turned = torch.zeros(tuple(reversed(tensor.shape))).permute(*reversed(range(tensor.dim())))
            model.get_parameter(name).data = turned
        load_weights(model, tmp_path / "w.safetensors", layout=LAYOUT)
        equal({name: model.get_parameter(name).data for name in OURS}, OURS)

    def test_rows_alone_are_read(self, tmp_path, monkeypatch):
        from burnt.record.formats import safetensors_file

        safetensors.torch.save_file({"qkv": numbered(3000, 10)}, tmp_path / "w.safetensors")
        counted = []
        read = safetensors_file.FileTensor._read
        monkeypatch.setattr(
            safetensors_file.FileTensor,
            "_read",
            lambda self, out, first: counted.append(out.numel()) or read(self, out, first),
        )
        ours = dict(zip("qkv", numbered(3000, 10).chunk(3), strict=True))
        loaded(tmp_path / "w.safetensors", ours, Layout([Split("qkv", tuple("qkv"))]))
        assert counted == [10_000] * 3

    def test_a_damaged_part_is_refused_before_anything_is_loaded(self, tmp_path):
        np.savez(tmp_path / "w.npz", **{name: tensor.numpy() for name, tensor in THEIRS.items()})
        data = bytearray((tmp_path / "w.npz").read_bytes())
        at = data.find(numbered(12, 2).numpy().tobytes())
        data[at] ^= 1
        (tmp_path / "w.npz").write_bytes(data)
        model = Holder(OURS)
        refused("damaged", load_weights, model, tmp_path / "w.npz", layout=LAYOUT)
        assert all(parameter.eq(0).all() for parameter in model.parameters())

    def test_autograd_sees_that_a_joined_parameter_has_changed(self, tmp_path):
        safetensors.torch.save_file({"a": numbered(2, 2), "b": numbered(2, 2)}, tmp_path / "w.safetensors")
        model = Holder({"c": torch.zeros(4, 2)})
        version = model.c._version
        load_weights(model, tmp_path / "w.safetensors", layout=Layout([Join(("a", "b"), "c")]))
        assert model.c._version > version

    def test_tied_tensors_and_renaming_before_the_layout(self):
        model = torch.nn.ModuleDict(
            {"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)}
        )
        model["head"].weight = model["embed"].weight
        layout = Layout([("wte", "embed"), ("lm", "head")])
        for names in (["wte.weight"], ["lm.weight"], ["wte.weight", "lm.weight"]):
            load_weights(model, dict.fromkeys(names, numbered(5, 3)), layout=layout)
            assert torch.equal(model["embed"].weight, numbered(5, 3))
        load_weights(model, {"x.weight": numbered(5, 3) + 1}, layout=layout, rename=[(r"^x\.", "wte.")])

    def test_checksums_are_verified_once(self, tmp_path, monkeypatch):
        from burnt.record.formats import npz_file

        np.savez(tmp_path / "w.npz", **{name: tensor.numpy() for name, tensor in THEIRS.items()})
        verified = []
        verify = npz_file._NpzTensor.verify
        monkeypatch.setattr(
            npz_file._NpzTensor,
            "verify",
            lambda self, where: verified.append(self.member.filename) or verify(self, where),
        )
        loaded(tmp_path / "w.npz", OURS, LAYOUT)
        assert sorted(verified) == sorted(f"{name}.npy" for name in THEIRS)


class TestMessages:
    def test_a_missing_part_is_named_as_in_the_file(self):
        layout = Layout(
            [Join(("*.q_proj", "*.k_proj", "*.v_proj"), "layers.*.qkv"), ("*.ln", "layers.*.norm")],
            prefix="model",
        )
        model = Holder({"layers.0.qkv.weight": torch.zeros(6, 2), "layers.0.norm.weight": torch.zeros(2)})
        state = {"model.0.q_proj.weight": torch.ones(2, 2), "model.0.v_proj.weight": torch.ones(2, 2),
                 "model.other": torch.ones(1)}  # fmt: skip
        text = refused("does not fit", load_weights, model, state, layout=layout)
        assert text.splitlines()[3:] == [
            "  from      layers.0.qkv.weight: (6, 2) in the module, no 'model.0.k_proj.weight'"
            " in the state dict",
            "            layers.0.norm.weight: (2,) in the module, no 'model.0.ln.weight' in the state dict",
            "            other: in the state dict as 'model.other', not in the module",
            "  hint      nothing was changed; partial=True loads what fits by name",
        ]
        report = load_weights(
            model, {**state, "model.0.ln.weight": torch.ones(2)}, layout=layout, partial=True
        )
        assert report.absent == {"layers.0.qkv.weight": ("model.0.k_proj.weight",)}
        assert "missing     layers.0.qkv.weight: no 'model.0.k_proj.weight'" in str(report)

    def test_shapes_and_unexpected_tensors_are_named_as_in_the_file(self):
        layout = Layout([("ln", "norm"), ("wte", "embed")])
        model = Holder({"norm.weight": torch.zeros(2)})
        text = refused(
            "does not fit", load_weights, model, {"ln.weight": torch.ones(3), "wte.weight": torch.ones(9)},
            layout=layout,
        )  # fmt: skip
        assert "norm.weight: (2,) in the module, (3,) in the state dict as 'ln.weight'\n" in text
        assert "embed.weight: in the state dict as 'wte.weight', not in the module\n" in text

    def test_a_snapshot_that_lacks_a_part(self, tmp_path):
        from burnt.models import Llama, LlamaConfig

        small = LlamaConfig(vocab_size=7, d_model=8, d_ff=8, num_layers=1, num_heads=2, num_kv_heads=1)
        small.init().save_pretrained(tmp_path)
        tensors = dict(read_weights(tmp_path).tensors)
        del tensors["model.layers.0.self_attn.k_proj.weight"], tensors["model.norm.weight"]
        safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        text = refused("the weights do not fit", Llama.from_pretrained, tmp_path)
        name = "model.layers.0.self_attn.k_proj.weight"
        assert f"missing     layers.0.attention.in_proj_weight: no {name!r}" in text
        assert "missing     norm.weight: no 'model.norm.weight'" in text

    @pytest.mark.parametrize(
        ("step", "shape", "expected"),
        [
            (Split("a", ("b", "c")), (5, 2), "2 equal parts along axis 0"),
            (Split("a", ("b", "c"), sizes=(4, 2)), (5, 2), "parts of sizes 4, 2 along axis 0"),
            (Split("a", ("b", "c"), dim=1), (4,), "2 equal parts along axis 1"),
            (Split("a", ("b", "c"), groups=3), (4, 2), "2 equal parts along axis 0, each in 3 groups"),
            (Split("a", ("b", "c")), (), "2 equal parts along axis 0"),
        ],
    )
    def test_a_whole_that_cannot_be_split(self, tmp_path, step, shape, expected):
        path = tmp_path / "w.safetensors"
        safetensors.torch.save_file({"a": torch.ones(shape)}, path)
        text = refused(
            "a tensor cannot be split as the layout says",
            load_weights, Holder({"b": torch.zeros(2)}), path, layout=Layout([step]),
        )  # fmt: skip
        assert f"in        {path}: a\n" in text
        assert f"expected  {expected}\n" in text
        assert f"found     shape {shape}" in text

    @pytest.mark.parametrize(
        ("options", "a", "b"),
        [
            ({}, torch.ones(2, 3), torch.ones(2, 4)),
            ({}, torch.ones(2, 3), torch.ones(2, 3).double()),
            ({}, torch.ones(2, 3), torch.ones(2)),
            ({}, torch.ones(()), torch.ones(())),
            ({"dim": 1}, torch.ones(2), torch.ones(2)),
            ({"groups": 2}, torch.ones(2, 3), torch.ones(3, 3)),
        ],
    )
    def test_parts_that_cannot_be_joined(self, options, a, b):
        layout = Layout([Join(("a", "b"), "c", **options)])
        text = refused("tensors cannot be joined as the layout says", layout.read, {"a": a, "b": b})
        assert "in        a, b\n" in text
        assert f"{tuple(a.shape)} {a.dtype}, {tuple(b.shape)} {b.dtype}" in text

    def test_two_tensors_with_one_name(self):
        text = refused(
            "the layout gives two tensors one name",
            Layout([("a", "c"), ("b", "c")], prefix="p").read, {"p.a.w": numbered(1), "p.b.w": numbered(1)},
        )  # fmt: skip
        assert "in        c.w\n" in text
        assert "found     'p.a.w' and 'p.b.w'" in text

    @pytest.mark.parametrize(
        ("step", "expected"),
        [
            (("a.*", "b"), "the same stars in all names, in the same order"),
            (("**.a", "*.b"), "the same stars"),
            (Join(("a.*", "b"), "c.*"), "the same stars"),
            (("x**.a", "x**.b"), "between dots"),
            (("a.**", "b.**"), "between dots"),
            (Split("a", ("b",)), "two or more parts"),
            (Split("a", ("b", "c"), sizes=(1, 2, 3)), "sizes of 2 parts"),
            (Join(("a", "b"), "c", dim=-1), "dim from 0"),
            (Join(("a", "b"), "c", groups=0), "groups from 1"),
            (Rename("a", "b", transpose=(0, 2)), "the order of axes"),
        ],
    )
    def test_a_step_that_has_no_inverse(self, step, expected):
        text = refused("a step of a layout is wrong", Layout, [step])
        assert expected in text
        assert repr(step) in text

    def test_the_name_of_a_layout_that_does_not_exist(self):
        model = Holder({"a": torch.zeros(1)})
        text = refused("Holder has no layout 'brun'", load_weights, model, {"a": numbered(1)}, layout="brun")
        assert "expected  'burn'" in text
        assert "hint      did you mean 'burn'?" in text


class WithLayouts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 5)

    @property
    def layouts(self):
        split = Split("norm_and_more", ("norm.weight", "norm.bias"))
        return {
            "gpt": Layout([("wte", "embed"), ("ln", "norm")]),
            "timm": Layout([("tok", "embed"), split, ("fc", "head")]),
        }


class TestHints:
    def state(self, names):
        state = WithLayouts().state_dict()
        return {names.get(name.split(".")[0], name.split(".")[0]) + "." + name.split(".")[1]: tensor
                for name, tensor in state.items()}  # fmt: skip

    def test_the_layout_that_fits_is_named(self):
        for layout, names in (
            ("gpt", {"embed": "wte", "norm": "ln"}),
            ("timm", {"embed": "tok", "head": "fc"}),
        ):
            text = refused("does not fit", load_weights, WithLayouts(), self.state(names))
            assert f"nothing was changed; layout={layout!r} fits 5 of the model's 5 tensors" in text

    def test_another_layout_is_named_and_one_after_renaming(self):
        state = self.state({"embed": "wte", "norm": "ln"})
        named = "layout='gpt' fits 5 of the model's 5 tensors"
        assert named in refused("does not fit", load_weights, WithLayouts(), state, layout="timm")
        prefixed = {f"net.{name}": value for name, value in state.items()}
        options = {"rename": [(r"^net\.", "")]}
        assert named in refused("does not fit", load_weights, WithLayouts(), prefixed, **options)
        load_weights(WithLayouts(), prefixed, layout="gpt", **options)

    def test_no_layout_is_named_that_fits_no_better(self):
        for names, options in (
            ({"norm": "n"}, {}),
            ({"embed": "x"}, {"rename": [("x", "y")]}),
            ({"norm": "n"}, {"layout": "gpt"}),
        ):
            text = refused("does not fit", load_weights, WithLayouts(), self.state(names), **options)
            assert "layout=" not in text

    @pytest.mark.parametrize("layout", [[("a", "b")], 3])
    def test_what_is_no_layout(self, layout):
        text = refused("layout= is not a layout", load_weights, WithLayouts(), {}, layout=layout)
        assert "expected  a Layout, or one of 'gpt', 'timm', 'burn'" in text
        assert "hint      burnt.record.Layout([...]) takes a list of steps" in text

    def test_burn_is_named_where_every_tensor_would_fit(self):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        written = burnt.record.layouts.burn(model).write(model.state_dict())
        assert "layout='burn' fits 7 of the model's 7 tensors" in refused(
            "does not fit", load_weights, model, written
        )
        del written["1.gamma"]
        assert "layout=" not in refused("does not fit", load_weights, model, written)


class TestBurn:
    def test_linears_norms_and_attention(self):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict(
            {
                "linear": burnt.nn.Linear(3, 4),
                "out_proj": torch.nn.Linear(4, 2),
                "batch": torch.nn.BatchNorm2d(4),
                "rms": burnt.nn.RmsNorm(4),
                "group": torch.nn.GroupNorm(2, 4),
                "plain": torch.nn.LayerNorm(4, elementwise_affine=False),
                "conv": torch.nn.Conv2d(2, 3, 1),
                "embed": torch.nn.Embedding(5, 4),
                "grouped": burnt.nn.MultiHeadAttention(8, 4, num_kv_heads=2),
                "cross": burnt.nn.CrossAttention(8, 4, context_dim=6),
                "torch": torch.nn.MultiheadAttention(8, 2),
            }
        )
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        theirs = burnt.record.layouts.burn(model).write(state)
        expected = {
            "linear.weight": state["linear.weight"].T, "linear.bias": state["linear.bias"],
            "out_proj.weight": state["out_proj.weight"].T, "out_proj.bias": state["out_proj.bias"],
            "batch.gamma": state["batch.weight"], "batch.beta": state["batch.bias"],
            "batch.running_mean": state["batch.running_mean"],
            "batch.running_var": state["batch.running_var"],
            "rms.gamma": state["rms.weight"],
            "group.gamma": state["group.weight"], "group.beta": state["group.bias"],
            "conv.weight": state["conv.weight"], "conv.bias": state["conv.bias"],
            "embed.weight": state["embed.weight"],
        }  # fmt: skip
        parts = {"grouped": (8, 4, 4), "torch": (8, 8, 8), "cross": (8, 8, 8)}
        for name, sizes in parts.items():
            bounds = np.cumsum((0, *sizes))
            for i, part in enumerate(("query", "key", "value")):
                rows = slice(bounds[i], bounds[i + 1])
                packed = f"{name}.in_proj_weight"
                weight = state[packed][rows] if packed in state else state[f"{name}.{part[0]}_proj_weight"]
                expected[f"{name}.{part}.weight"] = weight.T
                expected[f"{name}.{part}.bias"] = state[f"{name}.in_proj_bias"][rows]
            expected[f"{name}.output.weight"] = state[f"{name}.out_proj.weight"].T
            expected[f"{name}.output.bias"] = state[f"{name}.out_proj.bias"]
        equal(dict(sorted(theirs.items())), dict(sorted(expected.items())))
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.zero_()
        load_weights(model, theirs, layout="burn")
        kept = model["batch"].num_batches_tracked
        equal(model.state_dict(), {**state, "batch.num_batches_tracked": kept})

    @pytest.mark.parametrize("bidirectional", [False, True])
    @pytest.mark.parametrize("kind", [burnt.nn.Lstm, burnt.nn.Gru])
    def test_recurrent_layers_have_two_linears_for_each_gate(self, kind, bidirectional):
        torch.manual_seed(0)
        model = kind(3, 4, bidirectional=bidirectional)
        x = torch.randn(2, 5, 3)
        expected = model(x)[0]
        theirs = burnt.record.layouts.burn(model).write(model.state_dict())
        runs = []
        for start in ("forward.", "reverse.") if bidirectional else ("",):

            def gate(name, x, h, side, start=start):
                linear = f"{start}{name}_gate.{side}_transform"
                return (x if side == "input" else h) @ theirs[f"{linear}.weight"] + theirs[f"{linear}.bias"]

            def both(name, x, h, gate=gate):
                return gate(name, x, h, "input") + gate(name, x, h, "hidden")

            h, c, outputs = torch.zeros(2, 4), torch.zeros(2, 4), []
            steps = x.unbind(1)
            for x_t in steps[::-1] if start == "reverse." else steps:
                if kind is burnt.nn.Lstm:
                    i, f, o = (both(name, x_t, h).sigmoid() for name in ("input", "forget", "output"))
                    c = f * c + i * both("cell", x_t, h).tanh()
                    h = o * c.tanh()
                else:
                    z, r = both("update", x_t, h).sigmoid(), both("reset", x_t, h).sigmoid()
                    n = (gate("new", x_t, h, "input") + r * gate("new", x_t, h, "hidden")).tanh()
                    h = (1 - z) * n + z * h
                outputs.append(h)
            runs.append(torch.stack(outputs[::-1] if start == "reverse." else outputs, 1))
        torch.testing.assert_close(torch.cat(runs, -1), expected)
        fresh = kind(3, 4, bidirectional=bidirectional)
        load_weights(fresh, theirs, layout="burn")
        equal(fresh.state_dict(), dict(model.state_dict()))

    def test_deeper_recurrent_layers_are_left_as_they_are(self):
        model = torch.nn.LSTM(3, 4, num_layers=2)
        equal(burnt.record.layouts.burn(model).write(model.state_dict()), dict(model.state_dict()))

    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("package", [torch.nn, burnt.nn])
    def test_layers_of_transformers(self, package, norm_first):
        model = torch.nn.ModuleDict(
            {
                "encoder": package.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first),
                "decoder": package.TransformerDecoderLayer(8, 2, 16, norm_first=norm_first),
            }
        )
        state = {name: torch.randn(tensor.shape) for name, tensor in model.state_dict().items()}
        theirs = burnt.record.layouts.burn(model).write(state)
        # Which norm Burn applies before, or after, which part.
        encoder, decoder = ((2, 1), (3, 1, 2)) if norm_first else ((1, 2), (1, 2, 3))
        for ours, burns in enumerate(encoder, 1):
            assert torch.equal(theirs[f"encoder.norm_{burns}.gamma"], state[f"encoder.norm{ours}.weight"])
        for ours, burns in enumerate(decoder, 1):
            assert torch.equal(theirs[f"decoder.norm_{burns}.beta"], state[f"decoder.norm{ours}.bias"])
        attentions = {
            "encoder": {"self_attn": "mha"},
            "decoder": {"self_attn": "self_attn", "multihead_attn": "cross_attn"},
        }
        for layer, names in attentions.items():
            for ours, burns in names.items():
                packed = state[f"{layer}.{ours}.in_proj_weight"]
                assert torch.equal(theirs[f"{layer}.{burns}.key.weight"], packed[8:16].T)
                out = state[f"{layer}.{ours}.out_proj.weight"]
                assert torch.equal(theirs[f"{layer}.{burns}.output.weight"], out.T)
            inner, outer = (theirs[f"{layer}.pwff.linear_{name}.weight"] for name in ("inner", "outer"))
            assert torch.equal(inner, state[f"{layer}.linear1.weight"].T)
            assert torch.equal(outer, state[f"{layer}.linear2.weight"].T)
        assert not any("norm1" in name or "linear1" in name or "_proj" in name for name in theirs)
        equal(
            dict(sorted(burnt.record.layouts.burn(model).read(theirs).items())), dict(sorted(state.items()))
        )

    def test_a_module_under_two_paths(self):
        linear = torch.nn.Linear(2, 3)
        model = torch.nn.ModuleDict({"a": linear, "b": torch.nn.Sequential(linear)})
        theirs = burnt.record.layouts.burn(model).write(model.state_dict())
        assert theirs["a.weight"].shape == theirs["b.0.weight"].shape == (2, 3)
        load_weights(model, theirs, layout="burn")

    def test_a_module_without_a_path(self):
        theirs = burnt.record.layouts.burn(torch.nn.Linear(2, 3)).write({"weight": numbered(3, 2)})
        equal(theirs, {"weight": numbered(3, 2).T})


class TestLibrary:
    def test_timm_to_hugging_faces_vit(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
        config = transformers.ViTConfig(image_size=8, patch_size=4, **sizes)
        model = transformers.ViTModel(config, add_pooling_layer=False)
        own = {name: torch.randn(tensor.shape) for name, tensor in model.state_dict().items()}
        # What timm's VisionTransformer calls the same tensors.
        timm = {
            "cls_token": own["embeddings.cls_token"],
            "pos_embed": own["embeddings.position_embeddings"],
            "patch_embed.proj.weight": own["embeddings.patch_embeddings.projection.weight"],
            "patch_embed.proj.bias": own["embeddings.patch_embeddings.projection.bias"],
            "norm.weight": own["layernorm.weight"],
            "norm.bias": own["layernorm.bias"],
        }
        for i in range(2):
            for kind in ("weight", "bias"):
                layer = {
                    name.split(f"layers.{i}.")[-1]: tensor
                    for name, tensor in own.items()
                    if f"layers.{i}." in name
                }
                timm[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(
                    [layer[f"attention.{x}_proj.{kind}"] for x in "qkv"]
                )
                for name, ours in (
                    ("attn.proj", "attention.o_proj"), ("norm1", "layernorm_before"),
                    ("norm2", "layernorm_after"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2"),
                ):  # fmt: skip
                    timm[f"blocks.{i}.{name}.{kind}"] = layer[f"{ours}.{kind}"]
        Record(burnt.record.layouts.timm_vit.read(timm)).save_folder(tmp_path / "vit")
        config.save_pretrained(tmp_path / "vit")
        again = transformers.ViTModel.from_pretrained(tmp_path / "vit", add_pooling_layer=False)
        equal(again.state_dict(), own)
        model.load_state_dict(own)
        model.save_pretrained(tmp_path / "saved")
        theirs = burnt.record.layouts.timm_vit.write(read_weights(tmp_path / "saved").tensors)
        equal(dict(sorted(theirs.items())), dict(sorted(timm.items())))

    def test_the_norms_of_tensorflow(self):
        x = numbered(2)
        both_ways(
            burnt.record.layouts.tensorflow_norms,
            {"a.LayerNorm.gamma": x, "a.LayerNorm.beta": x, "a.dense.kernel": x},
            {"a.LayerNorm.weight": x, "a.LayerNorm.bias": x, "a.dense.kernel": x},
        )


def test_layouts_can_be_pickled_and_compared():
    assert pickle.loads(pickle.dumps(LAYOUT)) == LAYOUT
    assert Layout([]) != LAYOUT
