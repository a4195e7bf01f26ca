"""Names of classes and categories: a number has to mean in all data what it means in the training data."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from burnt import data, optim
from burnt.data.dataset import category_names, check_same_names, class_names
from burnt.errors import DataError
from burnt.train import Learner, StepOutput, SupervisedTraining
from burnt.train.after.loading import RunFiles


def table(folder: Path, *cells: str, name: str = "rows.csv", **options) -> data.CsvDataset:
    (folder / name).write_text("a,city,kind\n" + "".join(f"1,{city},{kind}\n" for city, kind in cells))
    return data.CsvDataset(folder / name, label="kind", **({"categories": ["city"]} | options))


def test_names_come_from_the_dataset_below(tmp_path):
    rows = table(tmp_path, "ox", "py", "oy")
    part, _ = data.split(rows, 2)
    views = part, data.map(rows, dict), data.concat(part, rows), data.windows(rows, 2)
    for source in (rows, *views, data.Loader(part, 1)):
        assert class_names(source) == ["x", "y"]
        assert category_names(source) == {"city": ["o", "p"], "kind": ["x", "y"]}
    assert (class_names([1]), category_names([1])) == (None, {})
    rows.categories = ["o", "p"]  # of a dataset that is not burnt's
    assert category_names(rows) == {}


@pytest.mark.parametrize(
    ("cells", "what", "expected", "found"),
    [
        (["oy", "pz"], "classes", "0 is 'x', of x, y, z", "0 is 'y', of y, z"),
        (["px", "py"], "column 'city'", "0 is 'o', of o, p", "0 is 'p', of p"),
    ],
)
def test_other_numbers_are_refused(tmp_path, cells, what, expected, found):
    train = table(tmp_path, "ox", "py", "oz")
    valid = table(tmp_path, *cells, name="valid.csv")
    with pytest.raises(DataError) as caught:
        SupervisedTraining(
            tmp_path / "run",
            train=data.Loader(train, 1),
            valid=data.Loader(valid, 1),
            duration="1 step",
            monitor="off",
        ).run(learner())
    assert str(caught.value) == (
        f"a number means another name than in the training data\n  in        valid, {what}\n"
        f"  expected  {expected}\n  found     {found}\n"
        "  hint      pass on the names: categories=train.categories of tables, classes=train.classes of "
        "folders"
    )
    assert not (tmp_path / "run").exists()
    again = table(tmp_path, *cells, name="valid.csv", categories=train.categories)
    check_same_names(again, "valid", train.classes, train.categories)


def test_names_at_the_end_may_be_missing_or_new(tmp_path):
    train = table(tmp_path, "ox", "py")
    for cells in (["ox"], ["ox", "py", "qz"]):
        check_same_names(table(tmp_path, *cells), "valid", train.classes, train.categories)


def test_a_run_keeps_the_names(tmp_path):
    train = table(tmp_path, "ox", "py")
    train.categories["user"] = list(map(str, range(1001)))  # ids
    SupervisedTraining(tmp_path / "run", train=data.Loader(train, 2), duration="1 step", monitor="off").run(
        learner()
    )
    files = RunFiles.read(tmp_path / "run")
    assert (files.classes, files.categories) == (["x", "y"], {"city": ["o", "p"], "kind": ["x", "y"]})


def learner() -> Learner:
    def step(model, batch):
        return StepOutput(F.cross_entropy(model(batch.a[:, None].float()), batch.kind), targets=batch.kind)

    return Learner(torch.nn.Linear(1, 3), optim.Sgd(), 0.1, step=step)
