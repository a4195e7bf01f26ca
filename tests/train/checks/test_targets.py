"""Losses that get values which they do not take are found before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import burnt
from burnt import nn, optim
from burnt.data import Batch, CsvDataset, Loader, TensorDataset, split
from burnt.errors import BurntError, DataError
from burnt.inspect.meta import run_isolated
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.train.checks.first_batches import Findings, dry_run
from burnt.train.checks.targets import TargetChecks
from tests.train.cases import refused

THIRDS = torch.arange(48) % 3
ONE_LARGE = torch.cat([THIRDS[:-1], torch.tensor([3])])
MASKED = torch.where(THIRDS == 1, 255, THIRDS)
X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Loss = Callable[[Tensor, Tensor], Tensor]


def columns(y: Tensor) -> Tensor:
    """The labels as targets of three outputs."""
    return y[:, None].float().expand(-1, 3)


def ctc(outputs: Tensor, y: Tensor) -> Tensor:
    labels = torch.stack([y, y], 1)
    log_probs = outputs.log_softmax(1).expand(5, -1, -1)
    return F.ctc_loss(log_probs, labels, (5,) * len(y), (2,) * len(y))


def burnt_ctc(outputs: Tensor, y: Tensor) -> Tensor:
    length = torch.ones_like(y)
    return nn.Ctc()(outputs.log_softmax(1)[None], y[:, None], length, length)


def shifted_in_place(outputs: Tensor, y: Tensor) -> Tensor:
    y = y.clone()
    y[1:].sub_(1)
    y[0] -= 1
    return F.cross_entropy(outputs, y)


def masked_in_place(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y.float().masked_fill_(y == 255, -100).to(outputs.device, torch.int64))


def unknown_in_place(outputs: Tensor, y: Tensor) -> Tensor:
    """Labels that depend on the model: nothing is known of them."""
    y = y.clone()
    y.mul_(0).add_(outputs.detach().argmax(1))
    return F.cross_entropy(outputs, y)


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, label_smoothing=0.1, ignore_index=255)


LABELS: dict[str, tuple[Loss, Tensor]] = {
    "right": (F.cross_entropy, THIRDS),
    "from 1": (F.cross_entropy, THIRDS + 1),
    "from 1, shifted": (lambda o, y: F.cross_entropy(o, y - 1), THIRDS + 1),
    "one of the last": (F.cross_entropy, ONE_LARGE),
    "negative": (F.cross_entropy, THIRDS - 1),
    "ignored": (F.cross_entropy, torch.where(THIRDS == 1, -100, THIRDS)),
    "negative next to ignored": (
        F.cross_entropy,
        torch.where(THIRDS == 1, -100, THIRDS) - (THIRDS == 0).int(),
    ),
    "large next to ignored": (smoothed, torch.cat([MASKED[:-1], torch.tensor([3])])),
    "255 ignored": (smoothed, MASKED),
    "255 not ignored": (F.cross_entropy, MASKED),
    "255 masked": (masked_in_place, MASKED),
    "shifted in place": (shifted_in_place, THIRDS + 1),
    "not shifted enough": (shifted_in_place, THIRDS + 2),
    "unknown": (unknown_in_place, THIRDS + 1),
    "probabilities": (lambda o, y: F.cross_entropy(o, F.one_hot(y, 3).float()), THIRDS),
    "one_hot": (lambda o, y: (o - F.one_hot(y, 3)).square().mean(), ONE_LARGE),
    "nll": (lambda o, y: F.nll_loss(o.log_softmax(1), y), ONE_LARGE),
    "multi margin": (F.multi_margin_loss, ONE_LARGE),
    "gather": (lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).mean(), ONE_LARGE),
    "uint8": (lambda o, y: F.cross_entropy(o, y.to(torch.uint8).long()), ONE_LARGE),
    "burnt's": (nn.CrossEntropy(), ONE_LARGE),
    "burnt's focal": (nn.Focal(), ONE_LARGE),
    "burnt's nll": (lambda o, y: nn.Nll()(o.log_softmax(1), y), THIRDS - 1),
    "burnt's ctc": (burnt_ctc, ONE_LARGE),
    "ctc": (ctc, THIRDS),
    "table": (lambda o, y: F.embedding(y, o[:4]).square().mean(), THIRDS + 2),
    "burnt's binary": (lambda o, y: nn.BinaryCrossEntropyWithLogits()(o, columns(y)), MASKED),
    "burnt's hinge": (lambda o, y: nn.HingeEmbedding()(o, columns(y)), THIRDS.clamp(max=1)),
}


def training(folder: Path, loss: Loss, y: Tensor, **settings: Any) -> tuple[SupervisedTraining, Learner]:
    def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
        outputs = model(batch.x)
        return StepOutput(loss(outputs, batch.y), outputs, batch.y)

    options = {
        "train": Loader(TensorDataset(x=X, y=y), 16),
        "duration": "1 epoch",
        "monitor": "off",
        **settings,
    }
    return SupervisedTraining(folder, **options), Learner(torch.nn.Linear(6, 3), optim.Sgd(), 0.1, step=step)


def check(folder: Path, loss: Loss, y: Tensor, **settings: Any) -> Findings:
    def main() -> None:
        supervised, learner = training(folder, loss, y, **settings)
        supervised.run(learner)

    return dry_run(main)


def fails(loss: Loss, y: Tensor) -> bool:
    """Whether the loss of all items fails with values."""
    try:
        loss(torch.randn(48, 3), y)
    except (IndexError, RuntimeError, ValueError):
        return True
    return False


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", LABELS)
def test_the_check_fails_where_the_loss_of_all_items_would(tmp_path: Path, name: str) -> None:
    loss, y = LABELS[name]
    if not fails(loss, y):
        warnings = check(tmp_path, loss, y).warnings
        assert not [text for text in warnings if "not checked: the backward pass" not in text]
        return
    with pytest.raises(DataError if "burnt" not in name else BurntError, match="in the training step"):
        check(tmp_path, loss, y)
    supervised, learner = training(tmp_path / "run", loss, y)
    with pytest.raises(BurntError, match="in the training step"):
        supervised.run(learner)
    assert not (tmp_path / "run").exists()


TARGETS: dict[str, tuple[Loss, Tensor, str | None]] = {
    "binary": (lambda o, y: F.binary_cross_entropy_with_logits(o, columns(y)), THIRDS, "0 to 2"),
    "mask": (lambda o, y: F.binary_cross_entropy(o.sigmoid(), columns(y)), MASKED, "target / 255"),
    "resized": (
        lambda o, y: F.binary_cross_entropy_with_logits(o, columns(y) * 1.1 - 0.05),
        THIRDS % 2,
        None,
    ),
    "soft": (lambda o, y: F.binary_cross_entropy_with_logits(o, columns(y) * 0.8 + 0.1), THIRDS % 2, None),
    "hinge": (lambda o, y: F.hinge_embedding_loss(o, columns(y)), THIRDS % 2, "2 * target - 1"),
    "cosine": (lambda o, y: F.cosine_embedding_loss(o, o + 1, y), THIRDS % 2, "target is not 1 or -1"),
    "signs": (lambda o, y: F.soft_margin_loss(o, 2 * columns(y) - 1), THIRDS % 2, None),
    "left out": (lambda o, y: F.margin_ranking_loss(o[:, 0], o[:, 1], y - 1), THIRDS, None),
    "counts": (lambda o, y: F.poisson_nll_loss(o, columns(y)), THIRDS - 1, "at least 0"),
    "burnt's counts": (lambda o, y: nn.PoissonNll()(o, columns(y)), THIRDS - 1, "at least 0"),
    "kl": (lambda o, y: F.kl_div(o.log_softmax(1), columns(y).log_softmax(1)), THIRDS, "log_target=True"),
    "ctc of 2 axes": (ctc, ONE_LARGE, "0 to 2"),
}


@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", TARGETS)
def test_targets_for_which_torch_computes_something_else(tmp_path: Path, name: str) -> None:
    loss, y, words = TARGETS[name]
    if words is None:
        assert check(tmp_path, loss, y).warnings == []
        return
    with refused(BurntError, "in the training step", words):
        check(tmp_path, loss, y)


def binary(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy(outputs[:, 0], y.clamp(max=1).float())


def written(outputs: Tensor) -> Tensor:
    outputs[:] = outputs.log_softmax(1)
    return outputs


INPUTS: dict[str, tuple[Loss, str | None]] = {
    "logits": (
        lambda o, y: F.nll_loss(o, y),
        "nll_loss in the training step gets the output of a linear layer",
    ),
    "softmax and nll": (
        lambda o, y: F.nll_loss(o.softmax(1), y),
        "gets the output of softmax, but it takes log",
    ),
    "softmax": (
        lambda o, y: F.cross_entropy(o.softmax(1), y),
        "computes log_softmax itself: pass the logits",
    ),
    "burnt's softmax": (
        lambda o, y: nn.CrossEntropy()(nn.Softmax(1)(o).float(), y),
        "gets the output of softmax",
    ),
    "sigmoid": (
        lambda o, y: F.binary_cross_entropy_with_logits(o.sigmoid()[:, 0], y.clamp(max=1).float()),
        "gets the output of sigmoid, but it computes the sigmoid itself",
    ),
    "no sigmoid": (
        lambda o, y: F.binary_cross_entropy(o[:, 0], y.clamp(max=1).float()),
        "it takes probabilities: torch.sigmoid(logits)",
    ),
    "log of softmax in place": (lambda o, y: F.nll_loss(F.softmax(o, 1).clone().log_(), y), None),
    "log_softmax and cross_entropy": (lambda o, y: F.cross_entropy(o.log_softmax(1), y), None),
    "sigmoid in place": (lambda o, y: binary(o.sigmoid_(), y), None),
    "clamp in place": (lambda o, y: binary(o.clamp_(0, 1), y), None),
    "hardsigmoid in place": (lambda o, y: binary(F.hardsigmoid(o, inplace=True), y), None),
    "softmax in place": (lambda o, y: F.cross_entropy(o.sigmoid_(), y), "gets the output of sigmoid"),
    "squeezed in place": (lambda o, y: F.nll_loss(o.unsqueeze_(0).squeeze_(0), y), "a linear layer"),
    "written": (lambda o, y: F.nll_loss(written(o), y), None),
    "log_softmax": (lambda o, y: F.nll_loss(F.log_softmax(o, 1), y), None),
    "by hand": (lambda o, y: F.nll_loss(o - o.logsumexp(1, keepdim=True), y), None),
    "log of softmax": (lambda o, y: F.nll_loss((o.softmax(1) + 1e-9).log(), y), None),
    "temperature": (lambda o, y: F.cross_entropy(o / 2, y, label_smoothing=0.1), None),
    "softmax as a weight": (lambda o, y: F.cross_entropy(o * o.softmax(1), y), None),
    "probability": (lambda o, y: F.binary_cross_entropy(o.sigmoid()[:, 0], y.clamp(max=1).float()), None),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", INPUTS)
def test_what_a_loss_computes_itself_or_misses_is_a_warning(tmp_path: Path, name: str) -> None:
    loss, words = INPUTS[name]
    warnings = check(tmp_path, loss, THIRDS).warnings
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]


@pytest.mark.full
def test_labels_of_any_batch_and_of_a_validation_set_are_looked_at(tmp_path: Path) -> None:
    first, second = split(TensorDataset(x=X, y=ONE_LARGE), 0.75, 0.25)
    right = Loader(TensorDataset(x=X, y=THIRDS), 16)
    large = Loader(second if 3 in second.column("y") else first, 4, shuffle=True)
    with pytest.raises(DataError, match=r"(?s)cross_entropy in the training step.*labels from 0 to 3"):
        check(tmp_path, F.cross_entropy, THIRDS, train=large)
    with pytest.raises(DataError, match="cross_entropy in the validation step of valid"):
        check(tmp_path, F.cross_entropy, THIRDS, train=right, valid=large)
    left_out = Loader(TensorDataset(x=X, y=ONE_LARGE), 8, sampler=range(47))
    assert check(tmp_path, F.cross_entropy, THIRDS, train=left_out).warnings == []
    one = Loader(TensorDataset(x=X, y=THIRDS + 1), 1)
    with pytest.raises(DataError, match="a label is not a class"):
        check(tmp_path, F.cross_entropy, THIRDS, train=one)
    shifted = Loader(
        TensorDataset(x=X, y=THIRDS + 1), 8, transform=lambda batch, _: batch.replace(y=batch.y - 1)
    )
    assert check(tmp_path, F.cross_entropy, THIRDS, train=shifted).warnings == []


def test_indices_of_a_layer_are_looked_at(tmp_path: Path) -> None:
    for layer in (torch.nn.Embedding(5, 6), nn.Embedding(5, 6)):
        for largest in (4, 5):
            words = torch.randint(0, largest, (48, 2), generator=torch.Generator().manual_seed(1))
            words[-1, 1] = largest
            model = torch.nn.Sequential(layer, torch.nn.Flatten(), torch.nn.Linear(12, 3))
            supervised, _ = training(tmp_path, F.cross_entropy, THIRDS)
            supervised.train = Loader(TensorDataset(x=words, y=THIRDS), 16)

            def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
                outputs = model(batch.x)
                return StepOutput(F.cross_entropy(outputs, batch.y), outputs, batch.y)

            learner = Learner(model, optim.Sgd(), 0.1, step=step)
            if largest == 4:
                supervised.check_only(learner)
            else:
                with pytest.raises(DataError, match=r"(?s)embedding in the training step.*0 to 4"):
                    supervised.check_only(learner)


def test_the_batch_is_not_changed_by_a_step_that_changes_its_own() -> None:
    batch = Batch(y=torch.zeros(4, dtype=torch.int64))
    values = TargetChecks(batch)

    def step(model: torch.nn.Module, batch: Batch) -> StepOutput:
        batch.y.add_(7)
        return StepOutput(F.cross_entropy(batch.y.float()[:, None].expand(-1, 3), batch.y))

    def check() -> None:
        burnt.check(torch.nn.Identity(), batch, call=values.recorded(step), backward=False)
        assert not batch.y.any()
        values.check_values("the step", lambda text: None)

    with pytest.raises(DataError, match="labels from 7 to 7"):
        run_isolated(check)


class Named(TensorDataset):
    """A dataset with an attribute that has the name of a method."""

    def __init__(self) -> None:
        super().__init__(x=X, y=ONE_LARGE)
        self.column = "y"  # type: ignore[assignment, method-assign]


def test_only_columns_in_memory_are_looked_through(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="labels from 0 to 3"):
        check(tmp_path, F.cross_entropy, THIRDS, train=Loader(Named(), 8))

    class Files:
        """As a dataset of files: each item that is read is noted."""

        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            self.read.append(index)
            return {"x": X[index], "y": ONE_LARGE[index]}

        def column(self, name: str) -> Tensor:
            raise AssertionError("the whole column is read")

    files = Files()
    assert check(tmp_path, F.cross_entropy, THIRDS, train=Loader(files, 8)).warnings == []
    assert set(files.read) == set(range(8))


def test_a_transform_may_put_a_number_first(tmp_path: Path) -> None:
    def numbered(batch: Batch, generator: torch.Generator) -> Batch:
        return Batch(scale=torch.tensor(2.0), x=batch.x, y=batch.y)

    right = Loader(TensorDataset(x=X, y=THIRDS), 16, transform=numbered)
    assert not [w for w in check(tmp_path, F.cross_entropy, THIRDS, train=right).warnings if "not" not in w]
    large = Loader(TensorDataset(x=X, y=ONE_LARGE), 16, transform=numbered)
    with pytest.raises(BurntError):
        check(tmp_path, F.cross_entropy, THIRDS, train=large)


def test_columns_of_a_table_are_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y,text\n" + "".join(f"0.5,{y},a\n" for y in ONE_LARGE.tolist()))
    table = CsvDataset(path, columns={"x": ["x"] * 6, "y": "y", "text": "text"})
    for data in (table, split(table, 0.5, 0.5, shuffle=False)[1]):
        with pytest.raises(DataError, match="labels from 0 to 3"):
            check(tmp_path / "run", F.cross_entropy, THIRDS, train=Loader(data, 8))
