"""A model of a table on its ways out of the run: rows with missing values, dates and unknown categories."""

from __future__ import annotations

import argparse
import datetime
import json
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
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.after.loading import RunFiles
from tests.export.browser import Browser, chromium
from tests.export.test_page import needs_chromium
from tests.export.toolchains import needs_clang
from tests.serve import serving

TRAIN = """\
rooms,area,joined,city,new,kind
2,51.5,2024-01-31T18:00,Kiel,true,flat
5,,2023-07-02,Bonn,false,house
3,80,,Kiel,true,flat
4,120.25,2019-12-24,Bonn,false,house
1,30,2021-05-05,Köln,true,"a ""tent"" b"
6,,2020-02-29,,false,house
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


class Net(burnt.Module):
    hidden: int

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.fill = nn.FillMissing(5)
        self.scale = nn.Standardize(5)
        self.embed = torch.nn.Embedding(4, 3)
        self.first, self.last = torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor, city: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(torch.cat([self.scale(self.fill(x)), self.embed(city)], 1)).relu())


def step(model: torch.nn.Module, batch: data.Batch) -> ClassificationOutput:
    logits = model(batch.numbers, batch.city)
    return ClassificationOutput(torch.nn.functional.cross_entropy(logits, batch.kind), logits, batch.kind)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on `TRAIN`, with `NEW` next to it."""
    folder = tmp_path_factory.mktemp("flats")
    (folder / "train.csv").write_text(TRAIN)
    (folder / "new.csv").write_text(NEW)
    rows = data.CsvDataset(
        folder / "train.csv", label="kind", categories=["city"], unknown=True, missing="nan",
        types={"joined": datetime.date},
        columns={"numbers": ["rooms", "area", "joined", "joined.month", "new"], "city": "city"},
    )  # fmt: skip
    model = Net.Config(hidden=6).init()
    model.fill.fit(rows, "numbers")
    model.scale.fit(model.fill(rows.column("numbers")))
    loader = data.Loader(rows, 3)
    SupervisedTraining(
        folder / "run", train=loader, valid=loader, duration="20 epochs", monitor="off", device="cpu"
    ).run(Learner(model, optim.AdamW(), 0.05, step))
    return folder / "run"


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
    args = argparse.Namespace(run=str(run), checkpoint="best", model=None, example=[])
    served = serve._load(str(run), args)
    assert isinstance(served, RunModel)
    with serving.client(served) as opened:
        yield opened


def test_the_values_of_the_layers_survive(run: Path) -> None:
    model = burnt.load(run)
    area = [51.5, 80, 120.25, 30]
    assert model.fill.fill_values[1] == np.float32(np.mean(area))
    assert model.scale.feature_std[4] == 0.5


class TestServer:
    def test_rows_are_answered_as_predict_does(self, client: TestClient, expected: torch.Tensor) -> None:
        answer = client.post("/v1/predict", json={"rows": ROWS}).json()
        np.testing.assert_allclose(answer["outputs"]["output"], expected, rtol=0, atol=1e-5)
        chances = expected.double().softmax(1)
        found = [[chance[name] for name in CLASSES] for chance in answer["probabilities"]]
        np.testing.assert_allclose(found, chances, rtol=0, atol=1e-5)
        assert answer["labels"] == [CLASSES[i] for i in expected.argmax(1)]

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
def browser(run: Path) -> Iterator[Browser]:
    page = run.parent / "flats.html"  # written from the folder that the run was started in
    assert main(["page", str(run), "-o", str(page)]) == 0
    with chromium() as opened:
        opened.open(page)
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


@needs_clang
@needs_chromium
def test_fields_are_encoded_and_answered_as_predict_does(
    run: Path, browser: Browser, expected: torch.Tensor
) -> None:
    rows = RunFiles.read(run).table().open(run.parent / "new.csv")
    cities = ["Bonn", "Kiel", "Köln"]
    for number, row in enumerate(ROWS):
        texts = {name: str(row.get(name) or "") for name in ("rooms", "area")}
        texts["joined"] = f"{row['joined']}T00:00" if "joined" in row else ""
        texts |= {"new": str(int(row["new"]))}
        texts["city"] = str(cities.index(row["city"]) if row["city"] in cities else 3)
        fill(browser, texts)
        given = browser.evaluate("[Array.from(model.inputs[0], String), Number(model.inputs[1][0])]")
        x = np.array([float(text) for text in given[0]], np.float32)
        np.testing.assert_array_equal(x, rows[number]["numbers"])
        assert given[1] == rows[number]["city"]
        found = browser.evaluate("Array.from(model.outputs[0])")
        np.testing.assert_allclose(found, expected[number], rtol=0, atol=1e-5)
        shown = browser.evaluate("outputs[0].probabilities(Array.from(model.outputs[0]))")
        np.testing.assert_allclose(shown, expected[number].double().softmax(0), rtol=0, atol=1e-5)
        assert browser.text("#class") == CLASSES[int(expected[number].argmax())]
        assert browser.text("#problem") == ""
    assert browser.errors == []


@needs_clang
@needs_chromium
def test_fields_say_what_they_take(browser: Browser) -> None:
    browser.evaluate("location.reload()")
    browser.wait_until_idle()
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
