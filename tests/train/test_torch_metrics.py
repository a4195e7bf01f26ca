"""Metrics by torchmetrics, compared with scikit-learn, over uneven epochs and resumed ones too."""

import math

import pytest
import torch
import torchmetrics
from scipy import stats
from sklearn import metrics as sk

import burnt
from burnt import nn, optim
from burnt.data import Loader, TensorDataset
from burnt.errors import MetricError, UnsupportedError
from burnt.store import RunReader
from burnt.train import ClassificationOutput, EarlyStopping, KeepBest, Learner, StepOutput, metrics
from burnt.train.metrics import AUROC, F1, EpochMetric, Metric, TorchMetric, intervals, read
from burnt.train.metrics.base import metric_from_dict, metric_to_dict
from tests.train.cases import AtStep, refused, supervised

pytestmark = pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef`:UserWarning")
SIZES = (8, 8, 3)  # the last batch is smaller


def batches(kind: str, shape: tuple[int, ...] = (), seed: int = 0) -> list[StepOutput]:
    draw = torch.Generator().manual_seed(seed)
    outputs = []
    for n in SIZES:
        if kind == "multiclass":
            logits = torch.randn(n, 4, *shape, generator=draw)
            targets = torch.randint(4, (n, *shape), generator=draw)
        elif kind == "binary":
            logits, targets = torch.randn(n, 1, generator=draw), torch.randint(2, (n,), generator=draw)
        else:
            logits = torch.randn(n, 5, generator=draw)
            targets = torch.randint(2, (n, 5), generator=draw).float()
        outputs.append(ClassificationOutput(torch.tensor(0.0), logits, targets))
    return outputs


def fed(metric: Metric, outputs: list[StepOutput]) -> Metric:
    for output in outputs:
        metric.update(output)
    return metric


def probabilities(kind: str, logits: torch.Tensor) -> torch.Tensor:
    if kind == "multiclass":
        return logits.movedim(1, -1).flatten(0, -2).softmax(1)
    return logits.squeeze(1).sigmoid() if kind == "binary" else logits.sigmoid()


SCORES = {
    "F1": sk.f1_score,
    "Precision": sk.precision_score,
    "Recall": sk.recall_score,
    "IoU": sk.jaccard_score,
}


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel"])
def test_classifiers_are_as_in_scikit_learn(kind):
    outputs = batches(kind, (3,))
    logits, targets = torch.cat([o.outputs for o in outputs]), torch.cat([o.targets for o in outputs])
    p, y = probabilities(kind, logits).numpy(), targets.flatten(0, 1 if kind == "multiclass" else 0).numpy()
    classes = p.argmax(1) if kind == "multiclass" else (p > 0.5).astype(int)
    for name, expected in SCORES.items():
        for average in ("macro", "micro", "weighted"):
            mine = fed(getattr(metrics, name)(average), outputs)
            theirs = expected(y, classes, average="binary" if kind == "binary" else average)
            assert mine.compute() == pytest.approx(theirs, abs=1e-6), (name, average)
            assert not mine.whole_epoch
        by_class = fed(getattr(metrics, name)(None), outputs).compute()
        if kind != "binary":
            assert [*by_class.values()] == pytest.approx(expected(y, classes, average=None), abs=1e-6)
    fbeta = fed(metrics.FBeta("macro", beta=2.0), outputs).compute()
    average = "binary" if kind == "binary" else "macro"
    assert fbeta == pytest.approx(sk.fbeta_score(y, classes, beta=2, average=average), abs=1e-6)
    assert fed(metrics.Dice(), outputs).compute() == fed(F1(), outputs).compute()
    more = {"multi_class": "ovr"} if kind == "multiclass" else {}
    assert fed(AUROC(), outputs).compute() == pytest.approx(sk.roc_auc_score(y, p, **more), abs=1e-6)
    precision = fed(metrics.AveragePrecision(), outputs).compute()
    assert precision == pytest.approx(sk.average_precision_score(y, p), abs=1e-6)
    mcc = fed(metrics.MCC(), outputs).compute()
    assert mcc == pytest.approx(sk.matthews_corrcoef(y.flatten(), classes.flatten()), abs=1e-6)
    if kind == "binary":
        accuracy = fed(metrics.BinaryAccuracy(), outputs).compute()
        assert accuracy == pytest.approx(sk.accuracy_score(y, classes))
    if kind == "multilabel":
        accuracy = fed(metrics.MultilabelAccuracy(), outputs).compute()
        assert accuracy == pytest.approx((y == classes).mean())


def test_two_logits_as_a_binary_task():
    logits, labels = torch.randn(40, 2), torch.randint(2, (40,))
    output = ClassificationOutput(torch.tensor(0.0), logits, labels)
    assert fed(F1(task="binary"), [output]).compute() == pytest.approx(sk.f1_score(labels, logits.argmax(1)))
    p = ClassificationOutput(torch.tensor(0.0), logits.softmax(1), labels)
    auroc = fed(AUROC(task="binary", probabilities=True), [p]).compute()
    assert auroc == pytest.approx(sk.roc_auc_score(labels, logits.softmax(1)[:, 1]))


def test_logits_within_0_and_1_are_logits_still():
    # torchmetrics would take them for probabilities, and 0.2 for class 0.
    output = StepOutput(torch.tensor(0.0), torch.tensor([0.2, 0.9, 0.4]), torch.tensor([1, 1, 0]))
    assert fed(metrics.BinaryAccuracy(), [output]).compute() == pytest.approx(2 / 3)
    assert fed(metrics.BinaryAccuracy(probabilities=True), [output]).compute() == pytest.approx(2 / 3)
    assert fed(metrics.Recall(), [output]).compute() == 1.0
    assert fed(metrics.Recall(probabilities=True), [output]).compute() == 0.5


def test_calibration_error():
    outputs = batches("multiclass")
    p = probabilities("multiclass", torch.cat([o.outputs for o in outputs])).double()
    y = torch.cat([o.targets for o in outputs])
    confidence, hit, expected = p.max(1).values, p.argmax(1) == y, 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = abs(confidence[inside].mean() - hit[inside].double().mean())
            expected += float(gap * inside.double().mean())
    assert fed(metrics.CalibrationError(), outputs).compute() == pytest.approx(expected, abs=1e-6)


def test_padding_is_left_out():
    outputs = batches("multiclass", (6,))
    for output in outputs:
        output.targets[:, 4:] = -100
    kept = torch.cat([o.targets[:, :4].flatten() for o in outputs])
    guesses = torch.cat([o.outputs.argmax(1)[:, :4].flatten() for o in outputs])
    f1 = fed(F1(ignore_index=-100), outputs).compute()
    assert f1 == pytest.approx(sk.f1_score(kept, guesses, average="macro"))


def test_numbers_texts_and_images():
    draw = torch.Generator().manual_seed(0)
    outputs = [
        StepOutput(torch.tensor(0.0), torch.randn(n, 1, generator=draw) + 5, torch.randn(n, generator=draw))
        for n in SIZES
    ]
    x, y = torch.cat([o.outputs[:, 0] for o in outputs]), torch.cat([o.targets for o in outputs])
    assert fed(metrics.R2(), outputs).compute() == pytest.approx(sk.r2_score(y, x), rel=1e-5)
    assert fed(metrics.MAE(), outputs).compute() == pytest.approx(sk.mean_absolute_error(y, x))
    rmse = fed(metrics.RMSE(), outputs).compute()
    assert rmse == pytest.approx(sk.root_mean_squared_error(y, x))
    several = [StepOutput(torch.tensor(0.0), torch.randn(n, 3), torch.randn(n, 3)) for n in SIZES]
    x3, y3 = torch.cat([o.outputs for o in several]), torch.cat([o.targets for o in several])
    assert fed(metrics.R2(), several).compute() == pytest.approx(sk.r2_score(y3, x3), rel=1e-5)
    columns = [StepOutput(o.loss, o.outputs[:, 1:], o.targets[:, 1:]) for o in several]  # not contiguous
    for shortcut, expected in (
        (metrics.MAE, sk.mean_absolute_error),
        (metrics.RMSE, sk.root_mean_squared_error),
    ):
        value = expected(y3[:, 1:].flatten(), x3[:, 1:].flatten())
        assert fed(shortcut(), columns).compute() == pytest.approx(value)
    one = StepOutput(torch.tensor(0.0), torch.ones(1), torch.ones(1))
    assert math.isnan(fed(metrics.R2(), [one]).compute())
    texts = [
        StepOutput(torch.tensor(0.0), ["the cat sat"], ["the cat sat down"], count=1),
        StepOutput(torch.tensor(0.0), ["a", "bb"], ["a", "cb"], count=2),
    ]
    assert fed(metrics.WER(), texts).compute() == pytest.approx(2 / 6)
    assert fed(metrics.CER(), texts).compute() == pytest.approx(6 / 19)
    images = [
        StepOutput(torch.tensor(0.0), torch.rand(n, 3, 16, 16), torch.rand(n, 3, 16, 16)) for n in (2, 1)
    ]
    difference = torch.cat([(o.outputs - o.targets).flatten() for o in images])
    psnr = fed(metrics.PSNR(), images).compute()
    assert psnr == pytest.approx(10 * math.log10(1 / difference.square().mean()), rel=1e-5)
    theirs = torchmetrics.image.StructuralSimilarityIndexMeasure(data_range=1.0)
    ssim = float(theirs(torch.cat([o.outputs for o in images]), torch.cat([o.targets for o in images])))
    assert fed(metrics.SSIM(), images).compute() == pytest.approx(ssim, rel=1e-5)


def test_sums_that_grow_with_the_outputs_are_restored():
    metric, other = metrics.R2(), metrics.R2()
    output = StepOutput(torch.tensor(0.0), torch.randn(8, 3), torch.randn(8, 3))
    fed(metric, [output])
    other.total, other.count = metric.total, metric.count
    other.load_state(metric.state())
    assert other.compute() == metric.compute()


# In trainings


class Rank(EpochMetric):
    """A user's metric of a whole epoch."""

    name = "rank"
    higher_is_better = True

    def update(self, output):
        self.keep(output.outputs[:, 1], output.targets)

    def compute(self):
        scores, targets = self.kept()
        return float(stats.spearmanr(scores, targets).statistic)


def step(model, batch):
    logits = model(batch.x)
    return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.y), logits, batch.y)


CLASSES = ["cat", "dog", "owl"]


def training(folder, **more):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(69, 6, generator=draw), torch.randint(3, (69,), generator=draw)
    loader, valid = TensorDataset(x=x, y=y), TensorDataset(x=x[:23], y=y[:23])
    loader.classes = valid.classes = CLASSES
    torch.manual_seed(0)
    learner = Learner(nn.Linear(6, 3), optim.AdamW(), 1e-2, step)
    settings = {
        "train": Loader(loader, 8),
        "valid": Loader(valid, 8),
        "duration": "2 epochs",
        "log_every": 2,
        "metrics": [
            F1(),
            F1(average=None, name="by_class"),
            AUROC(),
            metrics.CalibrationError(),
            torchmetrics.classification.MulticlassCohenKappa(3),
            TorchMetric(
                torchmetrics.SpearmanCorrCoef(), lambda o: (o.outputs[:, 1], o.targets.float()), "spearman"
            ),
            Rank(),
        ],
        "check": True,
    }
    return supervised(folder, settings, **more), learner


def test_an_epoch_is_as_in_scikit_learn_also_after_a_resume_inside_it(tmp_path):
    straight, learner = training(tmp_path / "straight")
    result = straight.run(learner)
    resumed, learner = training(tmp_path / "resumed", duration="13 steps")
    resumed.run(learner)
    resumed, learner = training(tmp_path / "resumed", resume=True)
    again = resumed.run(learner)
    assert again.values == result.values
    with torch.no_grad():
        (valid,) = Loader(straight.valid["valid"].dataset, 23).epoch(0)
        logits, labels = result.model(valid.x), valid.y
    p, classes = logits.softmax(1), logits.argmax(1)
    values = {key.partition("/")[2]: v for key, v in result.values.items() if key.startswith("valid/")}
    assert values["f1"] == pytest.approx(sk.f1_score(labels, classes, average="macro"), abs=1e-6)
    by_class = [values[f"by_class/{name}"] for name in CLASSES]
    assert by_class == pytest.approx(sk.f1_score(labels, classes, average=None), abs=1e-6)
    assert values["auroc"] == pytest.approx(sk.roc_auc_score(labels, p, multi_class="ovr"), abs=1e-6)
    assert values["cohen_kappa"] == pytest.approx(sk.cohen_kappa_score(labels, classes), abs=1e-6)
    spearman = stats.spearmanr(logits[:, 1], labels).statistic
    assert values["spearman"] == pytest.approx(spearman, abs=1e-6)
    assert values["rank"] == pytest.approx(spearman, abs=1e-6)
    # The second epoch of the training itself, step by step.
    seen: list[StepOutput] = []
    again_loop, learner = training(
        tmp_path / "loop", callbacks=[Seen(seen), AtStep({9: lambda _: seen.clear()})]
    )
    again_loop.run(learner)
    logits, labels = torch.cat([o.outputs for o in seen]), torch.cat([o.targets for o in seen])
    assert len(labels) == 69
    auroc = sk.roc_auc_score(labels, logits.softmax(1), multi_class="ovr")
    assert result.values["train/auroc"] == pytest.approx(auroc, abs=1e-6)
    f1 = sk.f1_score(labels, logits.argmax(1), average="macro")
    assert result.values["train/f1"] == pytest.approx(f1, abs=1e-6)


class Seen:
    """Collects the outputs of steps."""

    def __init__(self, seen):
        self.seen = seen

    def on_step(self, event):
        self.seen.append(StepOutput(event.output.loss, event.output.outputs.detach(), event.output.targets))


def test_sums_have_intervals_and_other_states_have_not():
    f1, auroc = F1(), AUROC()
    fed(f1, batches("multiclass")), fed(auroc, batches("multiclass"))
    first = read([f1, auroc])
    later = batches("multiclass", seed=1)
    fed(f1, later), fed(auroc, later)
    assert intervals([f1, auroc], read([f1, auroc]), first) == {"f1": fed(F1(), later).compute()}
    assert intervals([f1, auroc], read([f1, auroc]), None).keys() == {"f1", "auroc"}


@pytest.mark.parametrize(
    "metric",
    [
        F1(None, ignore_index=-100, classes=("a", "b"), name="by_class"),
        metrics.RocCurve(classes=("a", "b")),
        metrics.FBeta(beta=2.0),
        metrics.BinaryAccuracy(threshold=0.3),
        metrics.PSNR(data_range=255.0),
        TorchMetric(torchmetrics.classification.MulticlassF1Score(3, average="micro")),
    ],
)
def test_metrics_are_built_again_from_a_runs_config(metric):
    document = metric_to_dict(metric)
    assert metric_to_dict(metric_from_dict(document)) == document


def logging_step(model, batch):
    burnt.log({"item": batch.x[:, 0].mean(), "rate": len(batch.x)})
    return step(model, batch)


def test_stopping_by_one_of_several_values_and_by_what_an_epoch_logged(tmp_path, capsys):
    more = {"metrics": [F1(None)], "checkpoints": [KeepBest("f1/cat")], "monitor": "plain"}
    by_class, learner = training(tmp_path / "run", **more)
    best = by_class.run(learner).best
    values = [event.data["values"]["f1/cat"] for event in RunReader(tmp_path / "run").events("epoch")]
    assert by_class.monitored[0].key == "valid/f1/cat"
    assert best is not None
    assert len(values) == 2
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = next(line for line in lines if line[:1] == ["f1/cat"] and "at" in line)
    assert row[1] == f"{values[1]:.4f}"
    assert row[3] == f"{best.values['valid/f1/cat']:.4f}"
    several, learner = training(
        tmp_path / "several", metrics=[F1(None)], stopping=EarlyStopping("f1", "9 epochs")
    )
    with refused(MetricError, "monitors a value that is not logged", "f1/cat, f1/dog, f1/owl"):
        several.run(learner)
    for name, more in {"straight": {}, "resumed": {"duration": "13 steps"}}.items():
        logged, learner = training(
            tmp_path / name, checkpoints=[KeepBest("train/rate", higher_is_better=True)], **more
        )
        learner.step = logging_step
        logged.run(learner)
    logged, learner = training(
        tmp_path / "resumed", checkpoints=[KeepBest("train/rate", higher_is_better=True)], resume=True
    )
    learner.step = logging_step
    # Nine steps: readings of two steps, and of the last one.
    assert logged.run(learner).values["train/rate"] == pytest.approx(69 / 9)
    (_, event) = RunReader(tmp_path / "straight").events("epoch")
    assert event.data["values"]["rate"] == pytest.approx(69 / 9)


class Counts(Metric):
    """As torchmetrics' are written: it never adds."""

    name = "counts"
    higher_is_better = True

    def update(self, output):
        self.correct = (output.outputs.argmax(1) == output.targets).sum()


class Unsaved(Rank):
    """Its state is nothing that a checkpoint can have."""

    def state(self):
        return {"count": self.count, "seen": {1, 2}}


@pytest.mark.parametrize("check", [True, False])
def test_a_metric_that_adds_nothing_is_refused(tmp_path, check):
    words = ["counts has added nothing for its first batch", "self.add(sums", "EpochMetric"]
    started, learner = training(tmp_path / "run", metrics=[Counts()], check=check)
    with refused(MetricError, *words):
        started.run(learner)
    with refused(MetricError, *words):
        burnt.train.evaluate(learner, started.valid["valid"], [Counts()])
    with refused(MetricError, "the state of rank cannot be saved", "seen: set"):
        burnt.train.evaluate(learner, started.valid["valid"], [Unsaved()])


def output(outputs, targets, **more) -> StepOutput:
    return StepOutput(torch.tensor(0.0), torch.tensor(outputs), torch.tensor(targets), **more)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: F1("mean"), ["F1 cannot be built", "'macro'", "got mean"]),
        (lambda: metrics.MCC("micro"), ["MCC cannot be built", "average"]),
        (
            lambda: F1(threshold=0.3).update(output([[0.1, 3.0]], [1])),
            ["F1 cannot be built", "MulticlassF1Score", "threshold"],
        ),
        (lambda: F1(treshold=0.3), ["F1 cannot be built", "treshold"]),
        (lambda: metrics.PSNR(range=3), ["PSNR cannot be built", "range"]),
        (lambda: F1(task="multi"), ["F1 cannot be built", "'multiclass'"]),
        (
            lambda: F1().update(output([[0.1, 0.9]], [[0.5, 0.5]])),
            ["f1 cannot count these targets", "0 and 1", "MixUp"],
        ),
        (lambda: F1().update(output([[0.1, 3.0]], [7])), ["classes from 0 to 1", "7 in targets (1,)"]),
        (lambda: F1().update(output([[0.1, 0.9]], [1])), ["needs logits", "probabilities=True"]),
        (
            lambda: AUROC(probabilities=True).update(output([[0.1, 3.0]], [1])),
            ["told that the outputs are probabilities", "values from 0.1 to 3"],
        ),
        (lambda: F1().update(output([0, 1], [0, 1])), ["not classes", "torch.int64"]),
        (
            lambda: F1().update(output([[0.1, 0.2, 0.3]], [[1, 0]])),
            ["f1 does not fit", "outputs (1, 3)", "targets (1, 2)"],
        ),
        (
            lambda: F1(task="binary").update(output([[0.1, 0.2, 0.3]], [1])),
            ["as a binary task", "outputs (1, 3)"],
        ),
        (
            lambda: F1().update(StepOutput(torch.tensor(0.0), {"a": 1}, torch.tensor([1]))),
            ["f1 needs logits and targets", "dict"],
        ),
        (lambda: metrics.MAE().update(output([[1.0, 2.0]], [1.0])), ["mae does not fit", "(1, 2)"]),
        (lambda: metrics.WER().update(output([1.0], [1.0])), ["wer does not fit", "lists of texts"]),
        (lambda: TorchMetric(3), ["TorchMetric takes a metric of torchmetrics", "int"]),
        (lambda: TorchMetric(torchmetrics.MeanMetric), ["the class MeanMetric"]),
        (
            lambda: TorchMetric(torchmetrics.MetricCollection([torchmetrics.MeanMetric()])),
            ["MetricCollection", "each metric by its own TorchMetric"],
        ),
        (
            lambda: TorchMetric(torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())),
            ["MinMaxMetric keeps no state of its own"],
        ),
        (
            lambda: TorchMetric(torchmetrics.MeanAbsoluteError()).update(output([[1.0, 2.0]], [1.0])),
            ["mean_absolute_error cannot take a batch", "inputs=lambda output"],
        ),
        (
            lambda: fed(TorchMetric(torchmetrics.ROC(task="binary")), [output([0.5, 0.1], [1, 0])]).compute(),
            ["roc is not a number", "tuple"],
        ),
        (lambda: F1().compute(), ["f1 has no batches yet"]),
        (lambda: Rank().keep(torch.ones(2), torch.ones(3)), ["rank cannot keep this", "(2,), (3,)"]),
        (lambda: Rank().keep(torch.tensor(1.0)), ["rank cannot keep this", "[n, ...]"]),
    ],
)
def test_messages(act, words):
    with refused(MetricError, *words):
        act()


def test_without_torchmetrics_a_name_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("F1", "PSNR"):
        with refused(UnsupportedError, f"{name} needs torchmetrics", 'pip install "burnt[metrics]"'):
            getattr(metrics, name)()
