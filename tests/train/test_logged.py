"""Scalars, images, tables and histograms that steps log."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image as pillow
from torch import nn
from torch.nn import functional as F

import burnt
from burnt import optim
from burnt.data import Batch, Loader, Part, TensorDataset
from burnt.errors import MetricError
from burnt.store.reader import text_of
from burnt.train import Histogram, Image, Learner, RunReader, StepOutput, SupervisedTraining, Table
from burnt.train.logged import StepLog


def loader(count: int) -> Loader:
    x = torch.arange(float(count))[:, None]
    return Loader(TensorDataset(x=x, y=x), batch_size=1)


class Logging(nn.Module):
    """Logs its input from the forward pass."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        burnt.log(input=x.mean())
        return x * self.weight


def step(model: nn.Module, batch: Batch) -> StepOutput:
    outputs = model(batch.x)
    x = float(batch.x)
    log = {
        "number": x,
        "pixels": Image(torch.full((1, 2, 2), x / 255)),
        "words": Table(["x"], [[x]]),
        "spread": Histogram(torch.tensor([0.0, x]), bins=2),
    }
    return StepOutput(F.mse_loss(outputs, batch.y), outputs, batch.y, log=log)


def train(folder, step=step, **settings):
    settings = {"duration": "1 epoch", "log_every": 4, "monitor": "off", **settings}
    training = SupervisedTraining(folder, train=loader(10), valid=loader(3), **settings)
    training.run(Learner(Logging(), optim.Sgd(), 0.0, step=step))
    return RunReader(folder)


def rows(reader, name, split):
    points = reader.points(name, split)
    return list(zip(points.steps, points.values, strict=True))


def test_what_is_logged_has_names(tmp_path):
    def wrong(model, batch):
        output = plain_step(model, batch)
        output.log = ["x"]
        return output

    with pytest.raises(MetricError, match="these values cannot be logged"):
        train(tmp_path / "run", wrong, check=False)


def plain_step(model: nn.Module, batch: Batch) -> StepOutput:
    return StepOutput(model(batch.x).square().mean(), targets=batch.y)


@pytest.mark.parametrize("settings", [{"accumulate": 2}, {"checkpoint_activations": "inner"}])
def test_one_artefact_of_a_name_in_a_step(tmp_path, settings):
    class Telling(nn.Linear):
        def forward(self, x):
            burnt.log(caption=f"{float(x):g}")
            return super().forward(x)

    model = nn.Sequential()
    model.add_module("inner", Telling(1, 1))

    class Twice:
        def on_step(self, event):
            for word in "ab":
                burnt.log(called=word)

    training = SupervisedTraining(
        tmp_path, train=loader(8), duration="1 epoch", log_every=2, monitor="off", check=False,
        callbacks=[Twice()], **settings,
    )  # fmt: skip
    training.run(Learner(model, optim.Sgd(), 0.0, step=plain_step))
    steps = [2, 4] if "accumulate" in settings else [2, 4, 6, 8]
    reader = RunReader(tmp_path)
    first = {a.step: text_of(a.data) for a in reader.artefacts("table", "caption")}
    batches = settings.get("accumulate", 1)
    assert [a.step for a in reader.artefacts("table", "caption")] == steps
    assert first == {step: f"{(step - 1) * batches}" for step in steps}
    assert len(reader.artefacts("table", "called")) == 2 * (8 // batches)


def test_texts_are_recorded(tmp_path):
    def telling(model, batch):
        output = step(model, batch)
        burnt.log(caption=f"item\t{float(batch.x):g}\nis 5 \u00b5m")
        return output

    reader = train(tmp_path / "run", telling)
    caption = {a.step: text_of(a.data) for a in reader.artefacts("table", "caption")}
    assert caption == {step: f"item\t{step - 1}\nis 5 \u00b5m" for step in (4, 8)}
    (valid,) = reader.artefacts("table", "valid/caption")
    assert text_of(valid.data).startswith("item\t0")
    assert all(text_of(a.data) is None for a in reader.artefacts() if "caption" not in a.name)


def test_scalars_are_means_between_readings_and_artefacts_are_recorded_with_them(tmp_path):
    reader = train(tmp_path / "run")
    # Steps 1 to 4 have the inputs 0 to 3.
    for name in ("input", "number"):
        assert rows(reader, name, "train") == [(4, 1.5), (8, 5.5), (10, 8.5)]
        assert rows(reader, name, "valid") == [(10, 1.0)]
    found = {}
    for artefact in reader.artefacts():
        found.setdefault(artefact.name, {})[artefact.step] = artefact.data
    assert all(sorted(found[name]) == [4, 8] for name in ("pixels", "words", "spread"))
    # In a validation, those of the first batch.
    assert found["valid/words"][10]["rows"] == [[0.0]]
    assert found["words"][8]["rows"] == [[7.0]]
    assert found["spread"][8] == {"counts": [1.0, 1.0], "edges": [0.0, 3.5, 7.0]}
    with pillow.open(io.BytesIO(found["pixels"][8])) as image:
        assert np.asarray(image).tolist() == [[7, 7], [7, 7]]


def test_a_log_of_a_callback_between_steps_is_recorded(tmp_path):
    class Callback:
        def on_epoch(self, event):
            burnt.log({"after epoch": Table(["a"], [[1]])})

    reader = train(tmp_path / "run", callbacks=[Callback()])
    assert [a.step for a in reader.artefacts() if a.name == "after epoch"] == [10]


class Peers:
    """One of three ranks, the others of which logged `others`."""

    def __init__(self, rank, count, total, others):
        self.rank, self.part, self.others = rank, Part(None, count, total), others

    def every(self, value):
        return [*self.others, value]


def test_ranks_weigh_what_steps_log_by_their_items_and_others_count_alike():
    is_stepping = True
    peers = Peers(2, 1, 4, [{"x": [(6.0, 0.75)], "rare": [(3.0, 0.75)]}, {}])
    log = StepLog(None, ["loss"], lambda: (1, True, is_stepping), peers)
    log.add({"x": torch.tensor(2.0), "text": "of another rank than 0"})
    assert log.read() == {"x": 6.5, "rare": 4.0}  # 0.75 * 8 + 0.25 * 2
    peers.part, peers.others = Part(None, 0, 4), []
    log.add({"x": float("nan")})  # without items
    assert log.read() == {}
    with log.validating("valid") as means:
        log.add({"x": float("nan")})
    assert means == {}
    is_stepping = False
    peers.others = [{"x": [(5.0, 1)]}]
    log.add({"x": 2.0})
    assert log.read() == {"x": 3.5}
    with pytest.raises(MetricError, match="this name cannot be logged"):
        log.add({"loss": 1.0})


def test_a_checkpoint_has_the_values_of_all_ranks_with_which_rank_0_goes_on():
    def logs(rank, others):
        return StepLog(None, [], lambda: (1, True, True), Peers(rank, 1 + rank, 4, others))

    first, second = logs(0, []), logs(1, [])
    first.add({"x": 4.0})
    second.add({"x": 8.0, "only here": 1.0})
    with second.validating("valid"):  # where a command may save a checkpoint
        second.add({"x": 100.0})
        state = logs(0, [first.state(), second.state()]).state()
    state = json.loads(json.dumps(state))
    assert state == {"x": [[4.0, 0.25], [8.0, 0.5]], "only here": [[1.0, 0.5]]}
    restored = logs(0, [])
    restored.load_state(state)
    assert restored.read() == {"x": 5.0 / 0.75, "only here": 1.0}
    restored = logs(1, [])
    restored.load_state(state)
    assert restored.read() == {}
    alone = StepLog(None, [], lambda: (1, True, True))
    alone.load_state({**state, "x": [1.0, 2.0]})  # as one process saves them
    assert alone.state() == {"x": [1.0, 2.0], "only here": [[1.0, 0.5]]}
    assert alone.read() == {"x": 1.5, "only here": 1.0}


def test_outside_of_a_training_nothing_happens(tmp_path):
    burnt.log(x=1.0)
    burnt.log({"x": object()})  # not even checked


@pytest.mark.parametrize(
    ("value", "found", "hint"),
    [
        (torch.zeros(2, 3), "a Tensor of shape (2, 3)", "log(**{'x': value.mean()})"),
        (np.zeros(4), "a ndarray of shape (4,)", "burnt.train.Histogram(value)"),
        (["text"], "a list", None),
        (torch.tensor(1j), "a Tensor of shape ()", "value.mean()"),
    ],
)
def test_what_cannot_be_logged(tmp_path, value, found, hint):
    def wrong(model, batch):
        output = step(model, batch)
        output.log = {"x": value}
        return output

    with pytest.raises(MetricError) as caught:
        train(tmp_path / "run", wrong)
    assert caught.value.what == "'x' cannot be logged"
    assert caught.value.found == found
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize("name", ["loss", "learning_rate", "", 3])
def test_names_that_are_taken(tmp_path, name):
    def wrong(model, batch):
        return StepOutput(model(batch.x).mean(), None, batch.y, log={name: 1.0})

    with pytest.raises(MetricError, match="this name cannot be logged"):
        train(tmp_path / "run", wrong)


def test_a_scalar_may_be_nan_and_any_kind_of_number(tmp_path):
    quarter = torch.tensor(0.25, dtype=torch.bfloat16)
    values = [float("inf"), torch.tensor([2]), np.float32(0.5), True, quarter]

    def kinds(model, batch):
        return StepOutput(
            model(batch.x).mean(), None, batch.y, log={f"x{i}": v for i, v in enumerate(values)}
        )

    reader = train(tmp_path / "run", kinds)
    assert [rows(reader, f"x{i}", "train")[0][1] for i in range(5)] == [float("inf"), 2.0, 0.5, 1.0, 0.25]


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (3, 5, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_png(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    expected = pixels[None] if len(shape) == 2 else pixels
    if len(shape) == 4:
        expected = torch.cat(list(pixels), dim=-1)
    given = pixels if dtype == torch.uint8 else (pixels.float() / 255).to(dtype)
    if dtype == torch.bfloat16:
        expected = given.float().mul(255).round().to(torch.uint8)
        expected = expected[None] if len(shape) == 2 else expected
        expected = torch.cat(list(expected), dim=-1) if len(shape) == 4 else expected
    with pillow.open(io.BytesIO(Image(given).png())) as image:
        found = torch.from_numpy(np.array(image))
    found = found[None] if found.dim() == 2 else found.permute(2, 0, 1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image(torch.zeros(5, 4, 3)), "channels come first"),
        (lambda: Image(torch.zeros(2, 5, 4)), r"found     shape \(2, 5, 4\)"),
        (lambda: Image(torch.zeros(3, 0, 4)), r"shape \(3, 0, 4\)"),
        (lambda: Image(torch.zeros(3, 4, 4, dtype=torch.int64)), "uint8, or floating-point"),
        (lambda: Table(["a", "b"], [[1, 2], [3]]), "a row does not fit"),
        (lambda: Histogram(torch.zeros(3), bins=0), "needs bins"),
        (lambda: Histogram(torch.zeros(3, dtype=torch.complex64)), "real numbers"),
    ],
)
def test_invalid_artefacts_are_refused(make, message):
    with pytest.raises(MetricError, match=message):
        make()


def test_a_histogram_counts_finite_values():
    assert Histogram(torch.tensor([float("nan"), float("inf"), 1.0])).counts()[0].count(1.0) == 1
    assert sum(Histogram(torch.tensor([])).counts()[0]) == 0


def test_an_image_is_a_copy():
    pixels = torch.zeros(1, 2, 2)
    image = Image(pixels)
    pixels.fill_(1.0)
    assert image.png() == Image(torch.zeros(1, 2, 2)).png()


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: burnt.log("error", 0.1), "'error'"),
        (lambda: burnt.log("error", 0.1, prog_bar=True), "'error', prog_bar="),
        (lambda: burnt.log(error=0.1, on_epoch=True), "error=, on_epoch="),
        (lambda: burnt.log(0.1), "0.1"),
    ],
)
def test_the_options_of_other_loggers_are_refused(call, found):
    with pytest.raises(MetricError, match="log takes names and their values, and no options") as caught:
        call()
    assert caught.value.found == found
