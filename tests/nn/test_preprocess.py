"""FillMissing and Standardize next to scikit-learn, and that what they learn goes with the model."""

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

import burnt
from burnt import Module, data, nn, onnx
from burnt.errors import InputRuntimeError, InputValueError, ShapeError
from burnt.export.c_source import c_source
from burnt.train.updates.precision import cast_parameters


def table(n: int = 101) -> np.ndarray:
    random = np.random.default_rng(0)
    values = random.normal(size=(n, 4)) * [1, 1e-3, 50, 1] + [0, 5, 19_000, 0]
    values[random.random(values.shape) < 0.2] = np.nan
    values[:, 3] = 0.1
    return values


@pytest.mark.parametrize("by", ["mean", "median"])
def test_values_are_those_of_scikit_learn(by):
    values = table()
    fill = nn.FillMissing(4, by, dtype=torch.float64).fit(values)
    filled = SimpleImputer(strategy=by).fit_transform(values)
    np.testing.assert_allclose(fill(torch.from_numpy(values)), filled, rtol=1e-12)
    scale = nn.Standardize(4, dtype=torch.float64).fit(values)
    expected = StandardScaler().fit(values)
    np.testing.assert_allclose(scale(torch.from_numpy(values)), expected.transform(values), atol=1e-9)
    again = nn.Standardize(4, dtype=torch.float64).fit(fill(torch.from_numpy(values)))
    np.testing.assert_allclose(again.feature_std, StandardScaler().fit(filled).scale_, rtol=1e-9)
    assert again.feature_std[3] == 1  # of a constant that float64 does not hold


def test_data_of_every_kind_gives_the_same(tmp_path):
    values = torch.from_numpy(table(9)).float()
    path = tmp_path / "rows.csv"
    rows = ["" if cell != cell else repr(cell) for row in values.tolist() for cell in row]
    path.write_text("a,b,c,d\n" + "\n".join(",".join(rows[i : i + 4]) for i in range(0, 36, 4)))
    csv = data.CsvDataset(path, columns={"x": ["a", "b", "c", "d"]}, missing="nan")
    expected = nn.FillMissing(4).fit(values).fill_values
    part, _ = data.split(csv, 8, shuffle=False)
    for source in (csv, data.Loader(csv, 4, shuffle=True), data.TensorDataset(x=values)):
        assert torch.equal(nn.FillMissing(4).fit(source, "x").fill_values, expected)
    batches = data.as_loader([{"x": part} for part in values.split(4)], "train")
    assert torch.equal(nn.FillMissing(4).fit(batches, "x").fill_values, expected)
    assert torch.equal(
        nn.FillMissing(4).fit(part, "x").fill_values, nn.FillMissing(4).fit(values[:8]).fill_values
    )
    one = nn.Standardize(1).fit(data.TensorDataset(x=values[:, 2]), "x")
    assert torch.equal(one.feature_mean, nn.Standardize(4).fit(values).feature_mean[2:3])
    counts = nn.Standardize(2).fit(torch.tensor([[1, 5], [3, 5]]))
    assert counts(torch.tensor([[3, 4]])).tolist() == [[1.0, -1.0]]
    assert nn.FillMissing(2, [7.0, 8.0])(torch.tensor([[3, 4]])).dtype == torch.float32


class Net(Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.fill, self.scale = nn.FillMissing(4, "median"), nn.Standardize(4)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(self.scale(self.fill(x)))


def fitted() -> tuple[Net, torch.Tensor]:
    values = torch.from_numpy(table()).float()
    net = Net.Config(outputs=2).init()
    net.fill.fit(values)
    net.scale.fit(values)
    return net, values[:5]


def test_what_they_learn_goes_with_the_model(tmp_path):
    net, x = fitted()
    expected = net(x)
    assert expected.isfinite().all()
    net.save(tmp_path / "net.safetensors")
    assert torch.equal(Net.load(tmp_path / "net.safetensors")(x), expected)
    # Days since 1970 have 5 digits, of which bfloat16 keeps 2.
    net.save(tmp_path / "small.safetensors", dtype=torch.bfloat16)
    loaded = Net.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded.scale.feature_mean, net.scale.feature_mean)
    assert torch.equal(loaded.fill.fill_values, net.fill.fill_values)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    assert torch.equal(torch.func.vmap(net)(x), expected)
    cast_parameters("bfloat16 whole", net)
    assert net.scale.feature_mean.dtype == torch.float32


def test_exported_files_have_them(tmp_path):
    import onnxruntime

    net, x = fitted()
    net.eval()
    onnx.export(net, x, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(found, net(x).detach(), atol=1e-5)
    assert "isnan" in c_source(net, x[:1]).text  # which tests/export compiles


def test_messages():
    for layer in (nn.FillMissing(4), nn.Standardize(4)):
        with pytest.raises(InputRuntimeError, match="is not fitted"):
            layer(torch.zeros(2, 4))
        with pytest.raises(ShapeError, match=r"\(\.\.\., 4\)"):
            layer(torch.zeros(2, 3))
        with pytest.raises(ShapeError, match=r"\(n, 4\)"):
            layer.fit(torch.zeros(2, 3))
        with pytest.raises(ShapeError):
            layer.fit(torch.zeros(0, 4))
        for source in ([{"x": 1}], data.TensorDataset(x=torch.zeros(3, 4))):
            with pytest.raises(InputValueError, match="cannot read this data"):
                layer.fit(source)
        for value, what in ((torch.nan, "no values"), (torch.inf, "infinite values")):
            values = torch.zeros(3, 4)
            values[:, 2] = value
            with pytest.raises(InputValueError, match=f"a feature has {what}\n.*feature 2"):
                layer.fit(values)
    with pytest.raises(InputValueError, match="'mean' or 'median'"):
        nn.FillMissing(4, 0.0).fit(torch.zeros(3, 4))
    with pytest.raises(InputValueError, match="'mean', 'median' or a number"):
        nn.FillMissing(4, "mode")
    with pytest.raises(InputValueError, match="both or none"):
        nn.Standardize(4, mean=0.0)
    with pytest.raises(ShapeError, match="a value for each feature"):
        nn.FillMissing(4, [1.0, 2.0])
    unfitted = nn.Standardize(4)
    assert burnt.check(unfitted, torch.zeros(2, 4)).outputs.shape == (2, 4)  # of shapes, which need no values
