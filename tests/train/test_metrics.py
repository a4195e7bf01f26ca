"""Metrics, compared with scikit-learn, over all batches and by intervals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from burnt.errors import MetricError
from burnt.store import RunReader, RunWriter
from burnt.train import ClassificationOutput, StepOutput
from burnt.train.metrics import (
    Accuracy,
    CalibrationCurve,
    ConfusionMatrix,
    Loss,
    Metric,
    Perplexity,
    PrecisionRecallCurve,
    RocCurve,
    TokensPerSecond,
    TopKAccuracy,
    intervals,
    read,
)
from burnt.train.metrics.base import metric_from_dict, metric_to_dict
from tests.train.cases import refused


def outputs(sizes, classes=4, seed=0, shape=(), axis=-1) -> list[ClassificationOutput]:
    generator = torch.Generator().manual_seed(seed)
    result = []
    for size in sizes:
        logits = torch.randn(size, *shape, classes, generator=generator).movedim(-1, axis)
        targets = torch.randint(classes, (size, *shape), generator=generator)
        result.append(ClassificationOutput(torch.rand((), generator=generator), logits, targets))
    return result


def fed(metric: Metric, batches) -> Metric:
    for batch in batches:
        metric.update(batch)
    return metric


def both(batches, axis=-1) -> tuple[np.ndarray, np.ndarray]:
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    guesses = torch.cat([batch.outputs.argmax(axis).flatten() for batch in batches])
    return targets.numpy(), guesses.numpy()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(2, 6), st.integers(0, 1000))
def test_as_scikit_learn(sizes, classes, seed):
    batches = outputs(sizes, classes, seed)
    targets, guesses = both(batches)
    assert fed(Accuracy(), batches).compute() == pytest.approx(sk.accuracy_score(targets, guesses))
    confusion = fed(ConfusionMatrix(classes), batches)
    labels = list(range(classes))
    assert confusion.matrix().tolist() == sk.confusion_matrix(targets, guesses, labels=labels).tolist()
    expected = sk.precision_recall_fscore_support(targets, guesses, labels=labels, zero_division=np.nan)
    for i, (name, *values) in enumerate(confusion.per_class()):
        assert name == str(i)
        for mine, other in zip(values, (column[i] for column in expected), strict=True):
            assert mine == pytest.approx(other, nan_ok=True)


@pytest.mark.parametrize(("shape", "axis"), [((), -1), ((5,), -1), ((5,), 1), ((5, 3), 1), ((5, 3), -1)])
@pytest.mark.parametrize("ignore_index", [None, 2, -100])
def test_axes_and_ignored_targets(shape, axis, ignore_index):
    batches = outputs([6, 2], classes=4, shape=shape, axis=axis)
    if ignore_index == -100:
        for batch in batches:
            batch.targets.view(-1)[::3] = -100
    targets, guesses = both(batches, axis)
    kept = np.ones_like(targets, dtype=bool) if ignore_index is None else targets != ignore_index
    accuracy = fed(Accuracy(ignore_index=ignore_index), batches)
    assert accuracy.compute() == pytest.approx(sk.accuracy_score(targets[kept], guesses[kept]))
    confusion = fed(ConfusionMatrix(4, ignore_index=ignore_index), batches)
    expected = sk.confusion_matrix(targets[kept], guesses[kept], labels=range(4))
    assert confusion.matrix().tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
@pytest.mark.parametrize("ignore_index", [None, -100, 300, 5])
def test_labels_of_narrow_dtypes_are_counted_as_int64(dtype, ignore_index):
    # 100 * 200 does not fit into int8, uint8 or int16; 156 in uint8 is -100 modulo 256, and 44 is 300.
    classes = 200
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(min(classes, torch.iinfo(dtype).max + 1), (400,), generator=generator)
    logits = torch.randn(400, classes, generator=generator) + 4 * torch.nn.functional.one_hot(labels, classes)
    batches = [ClassificationOutput(torch.tensor(0.0), logits, labels.to(dtype))]
    kept = labels != (-1 if ignore_index is None else ignore_index)
    guesses = logits.argmax(-1)
    accuracy = fed(Accuracy(ignore_index=ignore_index), batches).compute()
    assert accuracy == pytest.approx(sk.accuracy_score(labels[kept], guesses[kept]))
    confusion = fed(ConfusionMatrix(classes, ignore_index=ignore_index), batches).matrix()
    assert (
        confusion.numpy() == sk.confusion_matrix(labels[kept], guesses[kept], labels=range(classes))
    ).all()


def test_accuracy_of_labels_that_are_floats():
    # As binary cross entropy wants them.
    x, targets = torch.tensor([-2.0, 3.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    batch = StepOutput(torch.tensor(0.0), torch.stack([-x, x], -1), targets)
    assert fed(Accuracy(), [batch]).compute() == pytest.approx(2 / 3)


def test_nothing_that_counts_is_nan():
    batch = ClassificationOutput(torch.tensor(0.0), torch.zeros(3, 2), torch.full((3,), -100))
    assert math.isnan(fed(Accuracy(ignore_index=-100), [batch]).compute())
    assert fed(ConfusionMatrix(2, ignore_index=-100), [batch]).matrix().sum() == 0
    assert all(math.isnan(value) for value in ConfusionMatrix(2).per_class()[0][1:4])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.data())
def test_intervals_add_up_to_the_whole(sizes, data):
    batches = outputs(sizes)
    cut = data.draw(st.integers(1, len(sizes) - 1))
    metrics = [Loss(), Accuracy(), Accuracy(ignore_index=1, name="some"), ConfusionMatrix(4)]
    whole, parts = [], []
    before = None
    for stretch in (batches[:cut], batches[cut:]):
        for metric in metrics:
            fed(metric, stretch)
        now = read(metrics)
        parts.append(intervals(metrics, now, before))
        alone = [fed(metric.fresh(), stretch) for metric in metrics]
        assert parts[-1] == pytest.approx({m.name: m.compute() for m in alone if m.scalar}, nan_ok=True)
        before = now
        whole.append(sum(batch.count for batch in stretch))
    total = intervals(metrics, before, None)
    assert total.keys() == {"loss", "accuracy", "some"}
    for name in ("loss", "accuracy"):
        mean = sum(n * part[name] for n, part in zip(whole, parts, strict=True)) / sum(whole)
        assert total[name] == pytest.approx(mean)
    assert intervals(metrics, now, now) == {}


@pytest.mark.parametrize(
    ("arguments", "expected", "found", "hint"),
    [
        ({"total": 1.5, "count": 2}, "a tensor as total", "float", "torch.tensor(total)"),
        (
            {"count": torch.tensor(2)},
            "an int as count",
            "Tensor",
            "self.add(torch.stack([a, b]), len(outputs))",
        ),
        ({"count": np.int64(2)}, "an int as count", "int64", "int(count)"),
        ({"count": 2, "weight": torch.tensor(2)}, "an int as weight", "Tensor", "total[0] / total[1]"),
    ],
)
def test_what_a_metric_cannot_add(arguments, expected, found, hint):
    with pytest.raises(MetricError, match="errors cannot add this") as caught:
        Loss("errors").add(**{"total": torch.tensor(1.5), **arguments})
    assert (caught.value.expected, caught.value.found) == (expected, found)
    assert caught.value.where == "Loss.update"
    assert hint in caught.value.hint


def test_loss_is_a_mean_over_items():
    batches = [
        StepOutput(torch.tensor(1.0), count=3),
        StepOutput(torch.tensor(5.0), targets=torch.zeros(1, 7)),
    ]
    assert fed(Loss(), batches).compute() == 2.0
    # In float64, so that a long epoch loses nothing.
    many = fed(Loss(), [StepOutput(torch.tensor(0.1), count=1)] * 10_000)
    assert many.compute() == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_fresh_and_reset_forget_and_are_apart():
    metric = fed(Accuracy(name="mine"), outputs([5]))
    twin = metric.fresh()
    assert (twin.name, twin.count, twin.total) == ("mine", 0, None)
    fed(twin, outputs([2]))
    assert (metric.count, twin.count) == (5, 2)
    metric.reset()
    assert metric.count == 0
    assert repr(metric) == "Accuracy('mine')"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Accuracy().compute(), ["accuracy has no batches yet"]),
        (lambda: ConfusionMatrix(2).compute(), ["confusion is not a single number"]),
        (lambda: ConfusionMatrix(3, ["a", "b"]), ["each class needs one name", "3 names", "2"]),
        (
            lambda: Accuracy().update(StepOutput(torch.tensor(0.0))),
            [
                "accuracy needs logits and targets",
                "ClassificationOutput(",
                "outputs: NoneType, targets: NoneType",
            ],
        ),
        (
            lambda: Accuracy().update(StepOutput(torch.tensor(0.0), torch.zeros(3, 1), torch.zeros(3))),
            [
                "accuracy cannot find the class axis of the outputs",
                "outputs (3, 1), targets (3,)",
                "BinaryAccuracy()",
            ],
        ),
        (
            lambda: Accuracy().update(StepOutput(torch.tensor(0.0), torch.zeros(3, 4), torch.zeros(2))),
            ["accuracy cannot find the class axis of the outputs", "outputs (3, 4), targets (2,)"],
        ),
        (
            lambda: ConfusionMatrix(2).update(
                StepOutput(torch.tensor(0.0), torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64))
            ),
            ["confusion was built for another number of classes", "2 classes", "4 logits"],
        ),
        (
            lambda: ConfusionMatrix(4).update(StepOutput(torch.tensor(0.0), torch.eye(4), torch.zeros(4))),
            ["confusion needs integer labels", "torch.float32", "targets.long()"],
        ),
    ],
)
def test_messages(act, words):
    with refused(MetricError, *words):
        act()


def test_the_confusion_matrix_writes_its_tables(tmp_path):
    batches = outputs([6], classes=2)
    with RunWriter.create(tmp_path / "run") as writer:
        confusion = fed(ConfusionMatrix(2, ["cat", "dog"]), batches)
        confusion.record(writer, "valid", 7)
    with RunReader(tmp_path / "run") as run:
        tables = {table.name: table for table in run.artefacts("table")}
    matrix = tables["valid/confusion"]
    assert matrix.step == 7
    assert matrix.data["columns"] == ["target", "cat", "dog"]
    assert [row[1:] for row in matrix.data["rows"]] == confusion.matrix().tolist()
    assert tables["valid/confusion/classes"].data["columns"] == [
        "class",
        "precision",
        "recall",
        "f1",
        "count",
    ]


@pytest.mark.parametrize(
    ("module", "metric"), [("loss", Loss(name="cost")), ("confusion", ConfusionMatrix(2, ["a", "b"]))]
)
def test_metrics_of_older_runs_are_found_where_they_are_now(module, metric):
    document = metric_to_dict(metric) | {"module": f"burnt.train.metrics.{module}"}
    built = metric_from_dict(document)
    assert type(built) is type(metric)
    assert metric_to_dict(built) == metric_to_dict(metric)
    with pytest.raises(MetricError, match="cannot be built"):
        metric_from_dict(document | {"class": "read"})


# StepOutput


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 1),
        ({"outputs": torch.zeros(8, 10)}, 8),
        ({"targets": torch.zeros(5)}, 5),
        ({"outputs": torch.zeros(8, 10), "targets": torch.zeros(5)}, 5),
        ({"outputs": torch.zeros(8, 10), "targets": {"boxes": []}}, 8),
        ({"outputs": {"logits": 1}, "targets": torch.zeros(5)}, 5),
        ({"outputs": torch.tensor(1.0)}, 1),
        ({"targets": torch.zeros(5), "count": 3}, 3),
    ],
)
def test_the_count_of_a_step(fields, count):
    assert StepOutput(torch.tensor(0.0), **fields).count == count


def test_printing_an_output_shows_shapes():
    output = ClassificationOutput(torch.tensor(0.5), torch.zeros(8, 10), {"boxes": []})
    assert repr(output) == "ClassificationOutput(loss: (), outputs: (8, 10), targets: dict, count=8)"
    assert (
        repr(StepOutput(torch.tensor(0.5))) == "StepOutput(loss: (), outputs: None, targets: None, count=1)"
    )


def scored(seed, shape, num_classes=None):
    """Batches of logits and labels, the last one smaller, and all of them for scikit-learn."""
    generator = torch.Generator().manual_seed(seed)
    if num_classes is None:
        labels = torch.randint(2, shape, generator=generator)
        logits = torch.randn(shape, generator=generator) + 1.5 * labels
    else:
        labels = torch.randint(num_classes, shape, generator=generator)
        logits = torch.randn(*shape, num_classes, generator=generator)
        logits += 1.5 * torch.nn.functional.one_hot(labels, num_classes)
    parts = zip(logits.split(32), labels.split(32), strict=True)
    batches = [ClassificationOutput(torch.tensor(0.0), *part) for part in parts]
    return batches, (logits.numpy(), labels.numpy())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_is_that_of_scikit_learn(k):
    batches, (logits, labels) = scored(0, (77,), 5)
    expected = sk.top_k_accuracy_score(labels, logits, k=k, labels=range(5))
    assert fed(TopKAccuracy(k), batches).compute() == pytest.approx(expected)
    padded = ClassificationOutput(torch.tensor(0.0), torch.rand(9, 5), torch.full((9,), -1))
    assert fed(TopKAccuracy(k, -1), [padded, *batches]).compute() == pytest.approx(expected)
    # With classes in the second axis.
    maps = ClassificationOutput(torch.tensor(0.0), torch.tensor(logits).T[None], torch.tensor(labels)[None])
    assert fed(TopKAccuracy(k), [maps]).compute() == pytest.approx(expected)


def test_top_k_of_all_classes_is_refused():
    with pytest.raises(MetricError, match="top5_accuracy is 1 for any model") as caught:
        fed(TopKAccuracy(), scored(0, (8,), 5)[0])
    assert caught.value.expected == "k below the 5 classes of the outputs"
    with pytest.raises(MetricError, match="needs a number of classes"):
        TopKAccuracy(0)


@pytest.mark.parametrize("axis", [-1, 1])
def test_perplexity_is_the_exponential_of_the_mean_of_all_tokens(axis):
    generator = torch.Generator().manual_seed(1)
    total = count = 0
    batches = []
    for size in (4, 4, 1):
        logits = torch.randn(size, 6, 11, generator=generator)
        tokens = torch.randint(11, (size, 6), generator=generator)
        tokens[:, 4:] = -100 if size == 4 else tokens[:, 4:]
        logs = torch.nn.functional.log_softmax(logits.double(), -1)
        for row, token in zip(logs.flatten(0, 1), tokens.flatten().tolist(), strict=True):
            total, count = (total - row[token].item(), count + 1) if token >= 0 else (total, count)
        batches.append(StepOutput(torch.tensor(0.0), logits.movedim(-1, axis), tokens))
    assert fed(Perplexity(), batches).compute() == pytest.approx(math.exp(total / count), rel=1e-6)
    huge = StepOutput(torch.tensor(0.0), torch.tensor([[[0.0, 1e6]]]), torch.tensor([[0]]))
    assert fed(Perplexity(), [huge]).compute() == math.inf
    with pytest.raises(MetricError, match="needs logits of tokens"):
        fed(Perplexity(), [StepOutput(torch.tensor(0.0), torch.zeros(2, 3), torch.zeros(2, 3))])


def test_tokens_are_counted_per_second_of_training():
    tokens = StepOutput(torch.tensor(0.0), None, torch.tensor([[1, 2, -100], [3, -100, -100]]))
    metric = fed(TokensPerSecond(), [tokens, tokens])
    assert intervals([metric], read([metric]), None, seconds=0.5) == {"tokens_per_second": 12.0}
    assert intervals([metric], read([metric]), None) == {}


def test_curves_are_those_of_scikit_learn():
    batches, (logits, labels) = scored(2, (400,))
    (roc,), (recall,) = fed(RocCurve(), batches).lines(), fed(PrecisionRecallCurve(), batches).lines()
    assert np.trapezoid(roc.ys, roc.xs) == pytest.approx(sk.roc_auc_score(labels, logits), abs=2e-3)
    # Each point is one of scikit-learn's, up to the bins of the thresholds.
    precision, expected, _ = sk.precision_recall_curve(labels, logits)
    for x, y in zip(recall.xs[1:], recall.ys[1:], strict=True):
        near = precision[np.abs(expected - x) < 1e-9]
        assert len(near) == 0 or np.abs(near - y).min() < 0.02
    batches, (logits, labels) = scored(3, (400,), 3)
    lines = fed(RocCurve(classes=["a", "b", "c"]), batches).lines()
    shares = torch.tensor(logits).softmax(1).numpy()
    for number, line in enumerate(lines):
        wanted = sk.roc_auc_score(labels == number, shares[:, number])
        assert line.name == "abc"[number]
        assert np.trapezoid(line.ys, line.xs) == pytest.approx(wanted, abs=2e-3)


def test_calibration_is_how_often_the_predicted_class_is_right():
    batches, (logits, labels) = scored(4, (600,), 3)
    shares = torch.tensor(logits).softmax(1).numpy()
    (line,) = fed(CalibrationCurve(), batches).lines()
    best = shares.max(1)
    bins = [(best >= low / 10) & (best < (low + 1) / 10) for low in range(10)]
    expected = [(shares.argmax(1) == labels)[one].mean() for one in bins if one.any()]
    means = [best[one].mean() for one in bins if one.any()]
    assert line.xs == pytest.approx(means, abs=1e-3)
    assert line.ys == pytest.approx(expected, abs=0.02)  # bins of the thousand are not cut at tenths


def test_a_curve_is_written_as_a_table(tmp_path):
    batches, _ = scored(2, (50,))
    curve = fed(RocCurve(), batches)
    with RunWriter.create(tmp_path / "run") as writer:
        curve.record(writer, "valid", 3)
    with RunReader(tmp_path / "run") as reader:
        (name,) = reader.artefact_names()
        table = reader.artefact(name.id).data
    assert name.name == "valid/roc"
    assert table["columns"] == ["curve", "false positive rate", "true positive rate"]
    assert table["rows"][0] == ["all", 0.0, 0.0]
    assert table["rows"][-1] == ["all", 1.0, 1.0]
    assert str(curve).splitlines()[0] == "true positive rate"


def test_a_confusion_matrix_finds_number_and_names_of_the_classes():
    batches, (logits, labels) = scored(5, (60,), 3)
    confusion = ConfusionMatrix()
    confusion.data_classes = ["cat", "dog", "hen"]  # as a training sets them
    fed(confusion, batches)
    assert confusion.matrix().tolist() == sk.confusion_matrix(labels, logits.argmax(1)).tolist()
    assert [row[0] for row in confusion.per_class()] == ["cat", "dog", "hen"]
    assert str(confusion).splitlines()[-1].split()[0] == "hen"
    assert str(ConfusionMatrix()) != ""  # without any batch
