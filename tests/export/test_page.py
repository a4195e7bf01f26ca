import errno
import importlib.util
import json
import struct
import sys
import zlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from burnt.errors import InputValueError, UnsupportedError
from burnt.export import page, write_page
from burnt.export.wasm import OnnxRuntimeWeb
from burnt.inspect.signature import Signature, TensorInfo
from burnt.onnx.comparison import rounded_copy
from tests.export import browser as browser_module
from tests.export.browser import chromium, find_chromium
from tests.export.test_onnxruntime_web import PACKAGE, save_package
from tests.export.toolchains import needs_clang
from tests.fixtures import Patch

DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits" / "train.py"

needs_chromium = pytest.mark.skipif(find_chromium() is None, reason=f"no Chromium: {browser_module.INSTALL}")


@pytest.fixture(scope="module")
def example():
    """The module of the digits example."""
    spec = importlib.util.spec_from_file_location("digits_example", DIGITS)
    module = importlib.util.module_from_spec(spec)
    with Patch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


def signature(*inputs, outputs=(("output", (1, 10), "float32"),)):
    return Signature(
        tuple(TensorInfo(name, shape, dtype, 0, limits) for name, shape, dtype, limits in inputs),
        tuple(TensorInfo(name, shape, dtype, 0) for name, shape, dtype in outputs),
    )


def png(pixels):
    """Return a PNG of ``uint8[height, width, 3]``."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def close(found, expected):
    expected = expected.detach().flatten()
    limit = 1e-4 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=limit)


class TestDescription:
    @pytest.mark.parametrize(
        ("shape", "dtype", "is_image"),
        [
            ((1, 1, 28, 28), "float32", True),
            ((1, 3, 224, 32), "uint8", True),
            ((1, 2, 28, 28), "float32", False),
            ((1, 1, 28, 28), "int64", False),
            ((1, 1, 2, 28), "float32", False),
            ((2, 1, 28, 28), "float32", False),
            ((1, 28, 28), "float32", False),
        ],
    )
    def test_images(self, shape, dtype, is_image):
        described = page.description(signature(("x", shape, dtype, None)), None, None, False)
        assert described["inputs"][0].get("isImage", False) == is_image

    @pytest.mark.parametrize(
        ("dtype", "limits", "expected"),
        [
            ("float32", (-2.1, 2.6), (-2.1, 2.6)),
            ("float32", None, (0, 1)),
            ("float32", (0.0, 0.0), (0, 1)),  # an example of zeros
            ("uint8", None, (0, 255)),
            ("uint8", (0, 16), (0, 16)),
        ],
    )
    def test_black_and_white(self, dtype, limits, expected):
        described = page.description(signature(("x", (1, 1, 8, 8), dtype, limits)), None, None, False)
        assert described["inputs"][0]["range"] == expected

    @pytest.mark.parametrize(
        ("outputs", "expected"),
        [
            ([("output", (1, 10), "float32")], True),
            ([("output", (1, 1), "float32")], False),
            ([("output", (1, 10), "int64")], False),
            ([("output", (1, 10, 2), "float32")], False),
            ([("a", (1, 10), "float32"), ("b", (1, 10), "float32")], False),
        ],
    )
    def test_classifiers(self, outputs, expected):
        given = signature(("x", (1, 4), "float32", None), outputs=outputs)
        assert page.description(given, None, None, False)["isClassifier"] == expected
        assert not page.description(given, None, None, True)["isClassifier"]

    def test_names_of_fields_run_through_the_inputs_that_have_fields(self):
        given = signature(
            ("a", (1, 2), "float32", (0.0, 5.0)),
            ("image", (1, 1, 8, 8), "float32", None),
            ("b", (1,), "int64", (2, 5)),
        )
        a, _, b = page.description(given, None, ["x", "y", "z"], False)["inputs"]
        assert (a["fields"], b["fields"]) == (["x", "y"], ["z"])
        assert (a["start"], b["start"]) == (2.5, 3)

    @pytest.mark.parametrize(
        ("classes", "fields", "table", "message"),
        [
            (["a", "b"], None, False, "classes= has one name for each class"),
            (["a"] * 10, None, True, "classes= has one name for each class"),
            (None, ["a"] * 3, False, "fields= has one name for each number in the inputs"),
        ],
    )
    def test_refuses_another_number_of_names(self, classes, fields, table, message):
        with pytest.raises(InputValueError, match=message):
            page.description(signature(("x", (1, 4), "float32", None)), classes, fields, table)

    def test_refuses_a_dtype_without_an_array(self):
        with pytest.raises(UnsupportedError, match="no array for the dtype") as caught:
            page.description(signature(("x", (1, 4), "float16", None)), None, None, False)
        assert (caught.value.where, caught.value.found) == ("x", "float16")


def train_digits(example):
    """Return the network of the example, small and briefly trained, with the images of its test set."""
    splits = example.load_splits()
    columns = splits["train"].columns
    model = example.DigitsConfig(hidden=12, dropout=0.0).init()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        part = slice(step * 128 % 1024, step * 128 % 1024 + 128)
        loss = F.cross_entropy(model(columns["images"][part]), columns["labels"][part].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), splits["test"].columns


@pytest.fixture(scope="module")
def digits(example, tmp_path_factory):
    torch.manual_seed(0)
    model, test = train_digits(example)
    file = tmp_path_factory.mktemp("digits") / "digits.html"
    return write_page(model, test["images"][:64], file, title="digits"), model, test


@pytest.fixture
def opened(browser, digits):
    browser.open(digits[0].path)
    return browser


def draw(browser, image):
    """Draw the bright pixels of ``[8, 8]`` as strokes between neighbours."""
    left, top, size = browser.evaluate(
        "(r => [r.left, r.top, r.width])(document.querySelector('canvas').getBoundingClientRect())"
    )
    bright = {(y, x) for y, x in (image > 0.55).nonzero().tolist()}
    for y, x in sorted(bright):
        for neighbour in ((y, x + 1), (y + 1, x - 1), (y + 1, x), (y + 1, x + 1)):
            if neighbour in bright:
                ends = [(y, x), neighbour]
                browser.drag([(left + (x + 0.5) * size / 8, top + (y + 0.5) * size / 8) for y, x in ends])


@needs_clang
@needs_chromium
class TestDigits:
    def test_logits_equal_eager_on_50_images(self, opened, digits):
        _, model, test = digits
        images = test["images"][:50]
        found = opened.evaluate(
            f"""(async () => {{
              const results = [];
              for (const image of {json.dumps(images.flatten(1).tolist())}) {{
                model.inputs[0].set(image);
                await model.run();
                results.push([...model.outputs[0]]);
              }}
              return results;
            }})()"""
        )
        close([value for logits in found for value in logits], model(images))

    def test_nothing_is_requested_and_nothing_fails(self, opened, digits):
        assert opened.requests == [digits[0].path.as_uri()]
        assert opened.errors == []
        text = digits[0].path.read_text()
        assert "http:" not in text
        assert "https:" not in text
        opened.evaluate("fetch('http://127.0.0.1:9/').catch(() => 'refused')")
        opened.wait(lambda: opened.evaluate("1") and "Content Security Policy" in " ".join(opened.errors))

    @pytest.mark.full
    def test_drawn_digits_are_recognized(self, opened, digits):
        _, model, test = digits
        right = model(test["images"]).argmax(1) == test["labels"]
        recognized = 0
        for label in (0, 2, 3, 4, 7):
            image = test["images"][right & (test["labels"] == label)][0, 0]
            opened.evaluate("inputs[0].clear()")
            draw(opened, image)
            seen = torch.tensor(opened.evaluate("[...model.inputs[0]]"))
            assert torch.corrcoef(torch.stack([seen, image.flatten()]))[0, 1] > 0.7
            recognized += opened.text("#class") == str(label)
        assert recognized >= 4

    def test_an_opened_image_is_what_the_model_sees(self, opened, digits, tmp_path):
        image = digits[2]["images"][0, 0]
        (tmp_path / "digit.png").write_bytes(png((image * 255).round().byte()[..., None].expand(-1, -1, 3)))
        opened.choose_file("input[type=file]", tmp_path / "digit.png")
        opened.wait(lambda: max(opened.evaluate("[...model.inputs[0]]")) > 0)
        opened.wait_until_idle()
        seen = torch.tensor(opened.evaluate("[...model.inputs[0]]"))
        torch.testing.assert_close(seen, image.flatten(), rtol=0, atol=1 / 255)
        assert opened.text("#class") == str(int(digits[2]["labels"][0]))

        opened.evaluate("document.querySelector('input[type=checkbox]').click()")
        opened.wait_until_idle()
        inverted = torch.tensor(opened.evaluate("[...model.inputs[0]]"))
        torch.testing.assert_close(inverted, 1 - seen)
        close(opened.evaluate("[...model.outputs[0]]"), digits[1](inverted.view(1, 1, 8, 8)))

    def test_a_dropped_file_that_is_no_image_is_named_until_the_next_input(self, opened):
        opened.evaluate(
            """(() => {
              const dataTransfer = new DataTransfer();
              dataTransfer.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
              document.querySelector("canvas").dispatchEvent(new DragEvent("drop", { dataTransfer }));
            })()"""
        )
        opened.wait(lambda: opened.text("#problem"))
        assert opened.text("#problem") == "notes.txt is not an image that this browser can read."
        opened.evaluate("document.querySelector('button').click()")
        opened.wait_until_idle()
        assert opened.text("#problem") == ""

    def test_bars_and_latency(self, opened, digits):
        _, model, _ = digits
        shares = [float(share.removesuffix(" %")) for share in opened.text(".rows").splitlines()[1::2]]
        expected = 100 * model(torch.zeros(1, 1, 8, 8)).softmax(1)[0]
        torch.testing.assert_close(torch.tensor(shares), expected.detach(), rtol=0, atol=0.06)
        assert opened.text("#class") == str(int(expected.argmax()))
        assert " ms for this answer." in opened.text("#latency")


@pytest.mark.full
@needs_clang
@needs_chromium
def test_sizes_of_the_digits_page(browser, example, tmp_path):
    model, image = example.DigitsConfig(hidden=32).init().eval(), torch.rand(2, 1, 8, 8)
    sizes = {
        weights: write_page(model, image, tmp_path / f"{weights}.html", weights=weights).size
        for weights in ("float32", "float16")
    }
    assert sizes["float32"] < 600_000
    assert sizes["float16"] < 300_000
    browser.open(tmp_path / "float16.html")
    seen = torch.tensor(browser.evaluate("[...model.inputs[0]]")).view(1, 1, 8, 8)
    close(browser.evaluate("[...model.outputs[0]]"), rounded_copy(model, torch.float16)(seen))


def enter(browser, field, text):
    """Type a text into a field, an expression of JavaScript; return the problem that is shown then."""
    browser.evaluate(
        f"""(() => {{
          const field = {field};
          field.value = {json.dumps(text)};
          field.dispatchEvent(new Event("input"));
        }})()"""
    )
    browser.wait_until_idle()
    return browser.text("#problem")


HOSTILE = "</script><script>hacked = 1</script> {{code}} \"quoted\" & 'single' <!--"


@needs_clang
@needs_chromium
def test_names_are_shown_as_they_are_and_numbers_checked(browser, tmp_path):
    model = nn.Linear(3, 2)
    fields = [HOSTILE, "width", "height"]
    written = write_page(
        model,
        torch.tensor([[1.0, 2.0, 5.0]]),
        tmp_path / "names.html",
        title=HOSTILE,
        classes=[HOSTILE, HOSTILE],
        fields=fields,
    )
    browser.open(written.path)
    assert browser.errors == []
    assert browser.evaluate("typeof hacked") == "undefined"
    assert browser.evaluate("document.title") == HOSTILE
    assert browser.text("h1") == HOSTILE
    assert browser.text("#class") == HOSTILE
    assert (
        browser.evaluate("[...document.querySelectorAll('label')].map(label => label.innerText.trim())")
        == fields
    )
    close(browser.evaluate("[...model.outputs[0]]"), model(torch.tensor([[3.0, 3.0, 3.0]])))

    for text, message in [("", "needs numbers"), ("1e39", "needs numbers"), ("-1.5", "")]:
        problem = enter(browser, "document.querySelectorAll('input')[1]", text)
        assert message in problem
        assert (problem == "") == (message == "")
        assert browser.evaluate("document.querySelectorAll('[aria-invalid=true]').length") == bool(message)
    close(browser.evaluate("[...model.outputs[0]]"), model(torch.tensor([[3.0, -1.5, 3.0]])))


class Mixture(nn.Module):
    """Tokens, a mask and a shift in one dict, and a scale; three outputs of two dtypes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 2)

    def forward(self, batch, scale):
        hidden = (self.embedding(batch["tokens"]).mean(1) + batch["shift"].float()) * batch["keep"]
        return hidden.mean(1, keepdim=True), batch["tokens"].sum(1), scale.log()


@pytest.mark.full
@needs_clang
@needs_chromium
def test_several_inputs_and_tables(browser, tmp_path):
    model = Mixture()
    batch = {
        "tokens": torch.arange(140).view(2, 70) % 20,
        "keep": torch.tensor([[True, False]] * 2),
        "shift": torch.tensor([[3, 250]] * 2, dtype=torch.uint8),
    }
    written = write_page(model, (batch, torch.tensor([[1.0], [3.0]])), tmp_path / "mixture.html")
    browser.open(written.path)

    def field(i, kind="input"):
        return f"document.querySelector('.part:nth-child({i}) {kind}')"

    tokens, keep, shift, scale = field(1, "textarea"), field(2), field(3), field(4)
    assert enter(browser, tokens, "1 2 3") == "batch.tokens needs 70 numbers, not 3."
    assert enter(browser, shift, "7") == "batch.tokens needs 70 numbers, not 3."  # still wrong
    assert enter(browser, tokens, ", ".join(["1.5"] * 70)).startswith("batch.tokens needs whole numbers")
    assert enter(browser, tokens, ", ".join(["7"] * 69) + ",\n8 ") == ""
    assert enter(browser, keep, "2") == "batch.keep needs whole numbers from 0 to 1."
    assert enter(browser, keep, "1") == ""
    assert enter(browser, shift, "256") == "batch.shift needs whole numbers from 0 to 255."
    assert enter(browser, shift, "200") == ""

    typed = {
        "tokens": torch.tensor([[7] * 69 + [8]]),
        "keep": torch.tensor([[True, browser.evaluate("model.inputs[1][1]") == 1]]),
        "shift": torch.tensor([[200, browser.evaluate("model.inputs[2][1]")]], dtype=torch.uint8),
    }
    expected, _, _ = model(typed, torch.tensor([[2.0]]))
    names = browser.evaluate("[...document.querySelectorAll('#outputs th')].map(cell => cell.innerText)")
    cells = browser.evaluate("[...document.querySelectorAll('#outputs td')].map(cell => cell.innerText)")
    assert names == ["output.0", "output.1", "output.2"]
    close([float(cells[0])], expected)
    assert cells[1] == str(69 * 7 + 8)
    close([float(cells[2])], torch.tensor([2.0]).log())
    assert enter(browser, scale, "-1") == "The model returned NaN, which is not a number."
    assert enter(browser, scale, "1") == ""


class Colours(nn.Module):
    def forward(self, image):
        return image.mean((2, 3))


@pytest.mark.full
@needs_clang
@needs_chromium
def test_a_large_colour_image_in_the_range_of_the_example(browser, tmp_path):
    example = torch.linspace(-2.5, 2.5, 3 * 224 * 224).view(1, 3, 224, 224).repeat(2, 1, 1, 1)
    written = write_page(Colours(), example, tmp_path / "colours.html", table=True)
    browser.open(written.path)
    assert browser.evaluate("[inputs[0].canvas.width, inputs[0].canvas.height]") == [224, 224]
    close(browser.evaluate("[...model.outputs[0]]"), torch.full((3,), -2.5))
    pixels = torch.tensor([255, 0, 51], dtype=torch.uint8).expand(500, 400, 3)
    (tmp_path / "red.png").write_bytes(png(pixels))
    browser.choose_file("input[type=file]", tmp_path / "red.png")
    browser.wait(lambda: max(browser.evaluate("[...model.inputs[0]]")) > 0)
    browser.wait_until_idle()
    close(browser.evaluate("[...model.outputs[0]]"), torch.tensor([2.5, -2.5, -1.5]))


@needs_clang
@needs_chromium
@pytest.mark.full
def test_a_module_larger_than_what_chromium_compiles_at_once(browser, tmp_path):
    model = nn.Sequential(nn.Linear(8, 1500), nn.Linear(1500, 1500), nn.Linear(1500, 2))
    written = write_page(model, torch.rand(2, 8), tmp_path / "large.html")
    assert written.size > 8_000_000
    browser.open(written.path)
    inputs = torch.tensor([browser.evaluate("[...model.inputs[0]]")])
    close(browser.evaluate("[...model.outputs[0]]"), model(inputs))


class Outer(nn.Module):
    """An einsum that the C generator lacks."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x, unused):
        return self.head(torch.einsum("bi,bj->bij", x, x).flatten(1))


EXAMPLE = (torch.rand(2, 4), torch.zeros(2, 2))


@needs_chromium
@pytest.mark.full
@pytest.mark.parametrize("weights", ["float32", "float16"])
def test_onnxruntime_web_runs_what_c_lacks(browser, tmp_path, weights):
    try:
        OnnxRuntimeWeb.from_npm()
    except UnsupportedError as error:
        pytest.skip(str(error))
    model = Outer()
    written = write_page(model, EXAMPLE, tmp_path / "outer.html", weights=weights)
    assert written.runtime == "onnxruntime-web 1.30.0"
    assert written.size < 6_000_000
    browser.open(written.path)
    assert browser.errors == []
    assert [url.partition(":")[0] for url in browser.requests] == ["file", "blob"]
    inputs = [torch.tensor([values]) for values in browser.evaluate("model.inputs.map(input => [...input])")]
    shown = model if weights == "float32" else rounded_copy(model, torch.float16)
    close(browser.evaluate("[...model.outputs[0]]"), shown(*inputs))


def test_a_page_with_onnxruntime_web_says_why(tmp_path):
    save_package(tmp_path, PACKAGE)
    written = write_page(Outer(), EXAMPLE, tmp_path / "m.html", onnxruntime_web=tmp_path)
    assert written.runtime == "onnxruntime-web 9.9.9"
    assert written.reason is not None
    assert "Einsum" in written.reason
    text = written.path.read_text()
    assert "'wasm-unsafe-eval' blob:;" in text
    assert page._packed(b"wasm") in text


def test_refuses_unknown_weights(tmp_path):
    with pytest.raises(InputValueError, match="weights= is invalid"):
        write_page(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "m.html", weights="int8")


def test_a_missing_package_is_no_reason_for_onnxruntime_web(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="needs a further package") as caught:
        write_page(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "m.html")
    assert "pip install burnt[c]" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_fails_before_the_work(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_page(None, None, tmp_path / "nothing" / "m.html")


def test_a_full_disk_leaves_the_old_page(tmp_path, monkeypatch):
    def full(self, text, encoding):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    (tmp_path / "m.html").write_text("old")
    monkeypatch.setattr(page, "_compiled", lambda *_: (signature(("x", (1, 3), "float32", None)), b"code"))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_page(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "m.html")
    assert [file.name for file in tmp_path.iterdir()] == ["m.html"]
    assert (tmp_path / "m.html").read_bytes() == b"old"
