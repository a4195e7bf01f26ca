"""A model of a table on its ways out of the run: rows with missing values, dates and unknown categories."""

from __future__ import annotations

import argparse
import csv
import ctypes
import datetime
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from starlette.testclient import TestClient

import burnt
from burnt import data, nn, optim
from burnt.cli import main, serve
from burnt.serve import RunModel, wire
from burnt.train import ClassificationOutput, Learner, StepOutput, SupervisedTraining
from burnt.train.after.loading import RunFiles
from tests.cli.commands import ROOT
from tests.export.browser import Browser, chromium
from tests.export.test_page import needs_chromium
from tests.export.toolchains import needs_clang
from tests.serve import serving

TRAIN = """\
rooms,area,joined,city,new,kind,big,flat,old,far
2,51.5,2024-01-31T18:00,Kiel,true,flat,flat,1.0,0,0
5,,2023-07-02,Bonn,false,house,house,0,0.0,1
3,80,,Kiel,true,flat,flat,1,0,1
4,120.25,2019-12-24,Bonn,false,house,house,0,1,1
1,30,2021-05-05,Köln,true,"a ""tent"" b",flat,0,0,0
6,,2020-02-29,,false,house,house,0,1,1
"""
NEW = """\
city,new,area,joined,rooms
Rome,true,,2024-02-29,2
Bonn,false,75.5,,3
,true,,,1
Köln,false,200,1969-07-20,9
"""
ROWS: list[dict[str, Any]] = [
    {"city": "Rome", "new": True, "area": None, "joined": "2024-02-29", "rooms": 2},
    {"city": "Bonn", "new": False, "area": 75.5, "rooms": 3},
    {"new": True, "rooms": 1, "city": None},
    {"city": "Köln", "new": False, "area": 200, "joined": "1969-07-20", "rooms": 9},
]
JSON, TENSORS = {"content-type": wire.JSON}, {"content-type": wire.SAFETENSORS}
CLASSES = ['a "tent" b', "flat", "house"]
ARGUMENTS = argparse.Namespace(checkpoint="best", model=None, example=[])


class Net(burnt.Module):
    hidden: int
    kind: str

    def __init__(self, hidden: int, kind: str) -> None:
        super().__init__()
        self.hidden, self.kind = hidden, kind
        self.fill = nn.FillMissing(5)
        self.scale = nn.Standardize(5)
        self.embed = torch.nn.Embedding(4, 3)
        self.first = torch.nn.Linear(8, hidden)
        self.last = torch.nn.Linear(hidden, 1 if kind in ("logit", "probability") else 3)

    def forward(self, x: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.scale(self.fill(x)), self.embed(city)], 1)
        scores: torch.Tensor = self.last(self.first(x).relu())
        scores = scores.sigmoid() if self.kind == "probability" else scores
        return scores.squeeze(1) if self.last.out_features == 1 else scores


def step(model: Net, batch: data.Batch) -> ClassificationOutput | StepOutput:
    scores, losses = model(batch.numbers, batch.city), torch.nn.functional
    if model.kind == "classes":
        return ClassificationOutput(losses.cross_entropy(scores, batch.kind), scores, batch.kind)
    if model.kind == "labels":
        targets = batch.labels
        return StepOutput(losses.binary_cross_entropy_with_logits(scores, targets), scores, targets)
    loss = (
        losses.binary_cross_entropy
        if model.kind == "probability"
        else losses.binary_cross_entropy_with_logits
    )
    return StepOutput(loss(scores, batch.big.float()), scores, batch.big)


def train(folder: Path, kind: str) -> Path:
    """Train a model with a class, several labels or one score for each row; return the run's folder."""
    numbers = {"numbers": ["rooms", "area", "joined", "joined.month", "new"], "city": "city"}
    label = {"classes": "kind", "labels": None}.get(kind, "big")
    # The table of "logit" fills in values itself: its model sees no NaN.
    given = {"rooms": 4, "area": 80.5, "joined": "2022-02-03T06:00"}
    missing = given if kind == "logit" else "nan"
    rows = data.CsvDataset(
        folder / "train.csv", label=label, categories=["city"], unknown=True, missing=missing,
        types={"joined": datetime.date},
        columns=numbers | ({"labels": ["flat", "old", "far"]} if label is None else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = Net.Config(hidden=6, kind=kind).init()
    model.fill.fit(rows, "numbers")
    model.scale.fit(model.fill(rows.column("numbers")))
    loader = data.Loader(rows, 3)
    if label is None:
        loader.classes = CLASSES
    SupervisedTraining(
        folder / kind, train=loader, valid=loader, duration="20 epochs", monitor="off", device="cpu"
    ).run(Learner(model, optim.AdamW(), 0.05, step))
    return folder / kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of runs on `TRAIN`, with `NEW` next to them."""
    folder = tmp_path_factory.mktemp("flats")
    (folder / "train.csv").write_text(TRAIN)
    (folder / "new.csv").write_text(NEW)
    return {kind: train(folder, kind) for kind in ("classes", "labels", "logit", "probability")}


@pytest.fixture(scope="module")
def run(runs: dict[str, Path]) -> Path:
    """The folder of the classifier."""
    return runs["classes"]


@pytest.fixture(scope="module")
def expected(run: Path) -> torch.Tensor:
    """The logits of `NEW`, of `burnt.predict`."""
    rows = RunFiles.read(run).table().open(run.parent / "new.csv")
    logits = burnt.predict(burnt.load(run), rows)
    assert len(logits) == 4
    assert logits.isfinite().all()
    return logits


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[TestClient]:
    served = serve._load(str(run), ARGUMENTS)
    assert isinstance(served, RunModel)
    with serving.client(served) as opened:
        yield opened


def test_the_values_of_the_layers_survive(run: Path) -> None:
    model = burnt.load(run)
    area = [51.5, 80, 120.25, 30]
    assert model.fill.fill_values[1] == np.float32(np.mean(area))
    assert model.scale.feature_std[4] == 0.5


class TestServer:
    def test_tensors_take_nan_where_values_may_be_missing(
        self, run: Path, client: TestClient, expected: torch.Tensor
    ) -> None:
        rows = RunFiles.read(run).table().open(run.parent / "new.csv")
        x, city = rows.column("numbers").numpy(), rows.column("city").numpy()
        nulls = [[None if cell != cell else cell for cell in row] for row in x.tolist()]
        for body, headers in (
            (json.dumps({"inputs": {"x": nulls, "city": city.tolist()}}).encode(), JSON),
            (safetensors.numpy.save({"x": x, "city": city}), TENSORS | {"accept": wire.JSON}),
        ):
            answer = client.post("/v1/predict", content=body, headers=headers).json()
            np.testing.assert_allclose(answer["outputs"]["output"], expected, rtol=0, atol=1e-5)
        infinite = safetensors.numpy.save({"x": x - np.float32(np.inf), "city": city})
        error = client.post("/v1/predict", content=infinite, headers=TENSORS).json()["error"]
        assert (error["where"], error["expected"]) == ("x[0, 0]", "finite numbers within float32, or NaN")

    def test_the_schema_describes_the_columns(self, client: TestClient) -> None:
        schema = client.get("/v1/schema").json()
        assert schema["classes"] == CLASSES
        assert schema["columns"] == {
            "rooms": {"kind": "float32", "range": [1, 6], "required": False},
            "area": {"kind": "float32", "range": [30, 120.25], "required": False},
            "joined": {"kind": "date", "range": [18254, 19753.75], "required": False},
            "new": {"kind": "bool", "range": [0, 1], "required": True},
            "city": {
                "kind": "category", "categories": ["Bonn", "Kiel", "Köln", "<unknown>"], "required": False
            },
        }  # fmt: skip
        assert schema["inputs"][0]["may_be_nan"] is True
        assert "may_be_nan" not in schema["inputs"][1]

    @pytest.mark.parametrize(
        ("row", "where", "expected", "found"),
        [
            ({"rooms": 1, "new": True, "ciy": "Bonn"}, "row 1", "rooms, area, joined, new, city", "'ciy'"),
            ({"rooms": "1", "new": True}, "row 1, column 'rooms'", "a number", "1"),
            ({"rooms": 1}, "row 1, column 'new'", "true or false", "nothing"),
            (
                {"joined": "1.2.2024", "new": True},
                "row 1, column 'joined'", "a date such as 2024-01-31", "1.2.2024",
            ),
            ({"rooms": 1e300, "new": True}, "row 1, column 'rooms'", "a number that fits float32", "1e+300"),
        ],
    )  # fmt: skip
    def test_a_bad_row_is_named(
        self, client: TestClient, row: dict[str, Any], where: str, expected: str, found: str
    ) -> None:
        answer = client.post("/v1/predict", json={"rows": [ROWS[0], row]})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["where"].removeprefix("the request, "), error["expected"], error["found"]) == (
            where, expected, found
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            ('{"rows": []}', 400, "there are no rows"),
            ('{"rows": [{}], "inputs": {}}', 400, "neither inputs nor rows, or both"),
            ("{}", 400, "neither inputs nor rows, or both"),
            ('{"rows": [{"city": ["Bonn"]}]}', 400, "got `array` - at `$.rows[0]"),
            ('{"rows": [' + ",".join(['{"new": true}'] * 9) + "]}", 413, "at most 8"),
            ('{"rows": [' + ",".join(["{}"] * 1000) + "]}", 400, "more names or strings than a request"),
            ('{"rows": [{"city": "' + '", "city": "' * 1000 + '"}]}', 400, "more names or strings"),
        ],
    )
    def test_other_bodies_are_refused(self, client: TestClient, body: str, status: int, message: str) -> None:
        answer = client.post("/v1/predict", content=body, headers=JSON)
        assert (answer.status_code, message in answer.text) == (status, True), answer.text

    def test_a_model_without_columns_takes_no_rows(self) -> None:
        with serving.client(serving.Fake()) as http:
            error = http.post("/v1/predict", json={"rows": [{"x": 1}]}).json()["error"]
        assert error["message"] == "the model takes no rows"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


def fill(browser: Browser, texts: Mapping[str, str]) -> None:
    """Fill the fields as a user does."""
    browser.evaluate(
        f"""(() => {{ const texts = {json.dumps(texts)};
        for (const label of document.querySelectorAll(".fields label")) {{
            const field = label.querySelector("input, select");
            field.value = texts[label.firstChild.textContent];
            field.dispatchEvent(new Event("input"));
        }} }})()"""
    )
    browser.wait_until_idle()


def answers_of_page(browser: Browser) -> list[dict[str, Any]]:
    """What the page shows for each of `ROWS`: inputs, output, probabilities and class."""
    cities = ["Bonn", "Kiel", "Köln"]
    answers = []
    for row in ROWS:
        texts = {name: str(row.get(name) or "") for name in ("rooms", "area")}
        texts["joined"] = f"{row['joined']}T00:00" if "joined" in row else ""
        texts |= {"new": str(int(row["new"]))}
        texts["city"] = str(cities.index(row["city"]) if row["city"] in cities else 3)
        fill(browser, texts)
        answers.append(
            {
                "x": [float(text) for text in browser.evaluate("Array.from(model.inputs[0], String)")],
                "city": browser.evaluate("Number(model.inputs[1][0])"),
                "output": browser.evaluate("Array.from(model.outputs[0])"),
                "shares": browser.evaluate("outputs[0].probabilities(Array.from(model.outputs[0]))"),
                "class": browser.text("#class"),
            }
        )
        assert browser.text("#problem") == ""
    assert browser.errors == []
    return answers


@needs_clang
@needs_chromium
@pytest.mark.parametrize(
    "kind", ["classes", "labels", "logit", pytest.param("probability", marks=pytest.mark.full)]
)
def test_command_python_server_page_and_c_agree(
    runs: dict[str, Path], browser: Browser, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # where the code of the runs is found
    folder = runs[kind]
    classes = CLASSES[1:] if kind in ("logit", "probability") else CLASSES
    rows = RunFiles.read(folder).table().open(folder.parent / "new.csv")
    logits = burnt.predict(burnt.load(folder), rows)
    assert logits.isfinite().all()
    if kind == "classes":
        shares = logits.double().softmax(1).numpy()
        labels: list[Any] = [classes[i] for i in shares.argmax(1)]
    elif kind == "labels":
        shares = logits.double().sigmoid().numpy()
        labels = [[name for name, share in zip(classes, row, strict=True) if share >= 0.5] for row in shares]
    else:
        second = (logits if kind == "probability" else logits.double().sigmoid()).numpy()
        shares = np.stack([1 - second, second], 1)
        labels = [classes[i] for i in shares.argmax(1)]

    out = tmp_path / "out.csv"
    assert main(["predict", str(folder), "--data", str(folder.parent / "new.csv"), "-o", str(out)]) == 0
    cells = list(csv.DictReader(out.read_text().splitlines()))
    found = [[float(row[f"probability_{name}"]) for name in classes] for row in cells]
    np.testing.assert_allclose(found, shares, rtol=0, atol=1e-5)
    shown = [json.loads(row["prediction"]) if kind == "labels" else row["prediction"] for row in cells]
    assert shown == labels

    with serving.client(serve._load(str(folder), ARGUMENTS)) as http:
        answer = http.post("/v1/predict", json={"rows": ROWS}).json()
        one = http.post("/v1/predict", json={"rows": ROWS[:1]}).json()  # whatever else is in the batch
    np.testing.assert_allclose(answer["outputs"]["output"], logits, rtol=0, atol=1e-5)
    found = [[item[name] for name in classes] for item in (*answer["probabilities"], *one["probabilities"])]
    np.testing.assert_allclose(found, [*shares, shares[0]], rtol=0, atol=1e-5)
    assert answer["labels"] == labels

    page = tmp_path / "page.html"
    assert main(["page", str(folder), "-o", str(page)]) == 0
    browser.open(page)
    answers = answers_of_page(browser)
    np.testing.assert_array_equal([a["x"] for a in answers], rows.column("numbers").numpy())
    assert [a["city"] for a in answers] == rows.column("city").tolist()
    np.testing.assert_allclose(
        [a["output"] for a in answers], logits.reshape(len(rows), -1), rtol=0, atol=1e-5
    )
    np.testing.assert_allclose([a["shares"] for a in answers], shares, rtol=0, atol=1e-5)
    texts = [", ".join(label) or "none" if kind == "labels" else label for label in labels]
    assert [a["class"] for a in answers] == texts

    if kind != "classes":
        return
    source = tmp_path / "c"
    assert main(["c", str(folder), "-o", str(source), "--name", "flats"]) == 0
    library = source / "flats.so"
    subprocess.run(["cc", "-shared", "-fPIC", source / "flats.c", "-o", library, "-lm"], check=True)
    for number, expected in enumerate(logits.reshape(len(rows), -1)):
        x, city = rows[number]["numbers"].numpy(), np.array([rows[number]["city"]])
        output = np.empty(len(expected), np.float32)
        ctypes.CDLL(str(library)).flats(
            *(array.ctypes.data_as(ctypes.c_void_p) for array in (x, city, output))
        )
        np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@needs_clang
@needs_chromium
def test_fields_say_what_they_take(
    run: Path, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["page", str(run), "-o", str(tmp_path / "page.html")]) == 0
    browser.open(tmp_path / "page.html")
    labels = browser.evaluate('[...document.querySelectorAll(".fields label")].map(l => l.innerText)')
    assert labels[:3] == [
        "rooms\n1 to 6, or empty",
        "area\n30 to 120.25, or empty",
        "joined\n2019-12-24 to 2024-01-31, or empty",
    ]
    assert labels[4].split("\n")[-4:] == ["Bonn", "Kiel", "Köln", "other, or missing"]
    fields = 'document.querySelectorAll(".fields input, .fields select")'
    values = browser.evaluate(f"[...{fields}].map(f => f.value)")
    assert values == ["3.5", "75.1", "2022-01-11T00:00", "0", "0"]


@pytest.fixture(scope="module")
def firmware(run: Path) -> Path:
    """The folder that `burnt c` writes; it compares the C with the model if there is a compiler."""
    folder = run.parent / "c"
    assert main(["c", str(run), "-o", str(folder), "--name", "flats"]) == 0
    return folder


def test_the_header_says_what_the_numbers_are(firmware: Path) -> None:
    header = (firmware / "flats.h").read_text()
    assert (
        """
/* What the inputs are:
 * x[0][0]: rooms, a number; 1 to 6 in training; NAN if missing
 * x[0][1]: area, a number; 30 to 120.25 in training; NAN if missing
 * x[0][2]: joined, days since 1970-01-01 in UTC, with the time as a fraction: 2024-01-31 is 19753; 18254 to \
19753.75 in training; NAN if missing
 * x[0][3]: joined.month, this part of the date; 1 to 12 in training; NAN if missing
 * x[0][4]: new, 0 for false, 1 for true
 * city[0]: city, an index into flats_city; 3 is any other value, and a missing one
 */
static const char *const flats_city[4] = {
    "Bonn",
    "Kiel",
    "K\\303\\266ln",
    "<unknown>"
};
static const char *const flats_classes[3] = {
    "a \\042tent\\042 b",
    "flat",
    "house"
};
void flats(const float x[1][5], const int64_t city[1], float output[1][3]);
"""
        in header
    )
    assert "NAN" in (firmware / "test_flats.c").read_text()
