"""Artefacts: PNG files, matrices, histograms and images as text, and the panes that show them."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnt.monitor.app import MonitorApp
from burnt.monitor.artefacts import render
from burnt.monitor.artefacts.render import (
    Image,
    Lines,
    PngError,
    decode,
    draw_class_scores,
    draw_confusion_matrix,
    draw_curves,
    draw_histogram,
    draw_image,
    draw_text,
    fit,
    is_class_scores,
    is_confusion_matrix,
    is_curves,
)
from burnt.monitor.artefacts.widgets import Picture, Slider
from burnt.monitor.data.runs import RunView
from burnt.monitor.screens.panes import artefacts
from burnt.monitor.screens.panes.artefacts import ArtefactsPane
from burnt.monitor.screens.panes.tables import table_rows
from burnt.monitor.ui.dialogs import TextScreen
from burnt.monitor.ui.table import Table
from burnt.store import RunReader, RunWriter
from tests.monitor.driving import opened, press, text_of


def text(lines: Lines) -> str:
    return "\n".join("".join(ink.text for ink in line).rstrip() for line in lines)


# --- PNG files


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, rows: list[bytes], depth: int, kind: int, *extra: bytes, interlaced: int = 0
) -> bytes:
    """A file of rows that begin with their filter."""
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    body = chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(extra) + body + chunk(b"IEND", b"")


def test_depths_palettes_and_transparency() -> None:
    assert decode(png(4, 1, [b"\0\x1b"], 2, 0)).rgb[::3] == bytes([0, 85, 170, 255])
    palette = chunk(b"PLTE", bytes([10, 20, 30, 40, 50, 60]))
    hidden = chunk(b"tRNS", b"\0")
    assert decode(png(2, 1, [b"\0\x10"], 4, 3, palette, hidden)).rgb == bytes([40, 50, 60, 128, 128, 128])
    assert decode(png(2, 1, [b"\0\x05\x06\x07\xff\x05\x06\x07\x00"], 8, 6)).rgb == bytes(
        [5, 6, 7] + [128] * 3
    )


GOOD = png(1, 1, [b"\0\x05"], 8, 0)


@pytest.mark.parametrize("data", [b"", b"GIF89a" + bytes(20), GOOD[:40], GOOD[:8], GOOD[:-30] + bytes(30)])
def test_damaged_files_are_reported(data: bytes) -> None:
    with pytest.raises(PngError, match="the PNG file is damaged"):
        decode(data)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PngError, match=r"pip install 'burnt\[tui\]'"):
        decode(GOOD)


def test_images_fit() -> None:
    small = Image(2, 1, bytes([0, 0, 0, 255, 255, 255]))
    grown = fit(small, 7, 9)
    assert (grown.width, grown.height) == (6, 3), "by a whole number"
    assert grown.rgb == (bytes([0] * 9) + bytes([255] * 9)) * 3
    large = Image(100, 50, bytes(i % 2 * 200 for i in range(5000) for _ in range(3)))
    shrunk = fit(large, 10, 99)
    assert (shrunk.width, shrunk.height) == (10, 5)
    assert set(shrunk.rgb) == {100}, "the mean of what falls together"
    assert fit(large, 0, 5).rgb == b""
    tall = fit(Image(1, 1000, bytes(3000)), 10, 10)
    assert (tall.width, tall.height) == (1, 10)


def test_images_are_half_blocks_or_characters() -> None:
    picture = Image(1, 2, bytes([255, 0, 0, 0, 0, 255]))
    assert draw_image(picture, 1, 1)[0][0] == ("▀", "#ff0000", 0.0, "#0000ff", False)
    grey = Image(3, 1, bytes([0] * 3 + [128] * 3 + [255] * 3))
    assert text(draw_image(grey, 3, 1, colors=False)).strip() == "+@"
    assert len(draw_image(grey, 3, 1, colors=False)[0][0].text) == 3


# --- matrices and classes


def matrix(counts: list[list[float]], names: list[str] | None = None) -> dict[str, Any]:
    names = names or [str(i) for i in range(len(counts))]
    return {
        "columns": ["target", *names],
        "rows": [[name, *row] for name, row in zip(names, counts, strict=True)],
    }


def test_a_confusion_matrix_has_numbers_margins_and_the_worst() -> None:
    table = matrix([[8, 2, 0], [1, 9, 0], [0, 4, 0]], ["cat", "dog", "hamster"])
    assert is_confusion_matrix(table)
    assert text(draw_confusion_matrix(table, 60)).splitlines() == [
        "         predicted",
        "   true      cat     dog hamster  recall",
        "    cat        8       2       .  0.8000",
        "    dog        1       9       .  0.9000",
        "hamster        .       4       .  0.0000",
        "  prec.   0.8889  0.6000       -  0.7083",
        "",
        "most confused",
        "  hamster predicted as dog  4 of 4",
        "  cat predicted as dog  2 of 10",
        "  dog predicted as cat  1 of 10",
    ]  # fmt: skip


def test_shades_tell_the_share_and_are_characters_without_colours() -> None:
    table = matrix([[1, 3], [0, 4]])
    shades = [
        ink.shade
        for line in draw_confusion_matrix(table, 60)[2:4]
        if line
        for ink in line
        if ink.text.strip() in ("1", "3", ".", "4")
    ]
    assert shades == [0.25, 0.75, 0.0, 0.0, 1.0], "and the name of the first class, which is not a share"
    plain = draw_confusion_matrix(table, 60, colors=False)
    assert "▓" in text(plain[2:3])
    assert "█" in text(plain[3:4])


@pytest.mark.parametrize("size", [1, 2, 10, 40, 300])
@pytest.mark.parametrize("width", [20, 30, 55, 120])
def test_any_number_of_classes_fits_any_width(size: int, width: int) -> None:
    table = matrix([[float(i == j) * 50 + (i * j) % 3 for j in range(size)] for i in range(size)])
    drawn = draw_confusion_matrix(table, width)
    assert all(sum(len(ink.text) for ink in line) <= width for line in drawn[: drawn.index([])])
    if width > 40:
        assert (size * 2 > width) == ("classes per cell" in text(drawn))
    assert any(ink.shade > 0.3 for line in drawn for ink in line)


def test_ten_classes_show_their_numbers_in_a_narrow_terminal() -> None:
    assert "137" in text(
        draw_confusion_matrix(matrix([[137 if i == j else 1 for j in range(10)] for i in range(10)]), 51)
    )


def test_nothing_counted_and_nothing_confused() -> None:
    assert "no samples counted" in text(draw_confusion_matrix(matrix([[0, 0], [0, 0]]), 60))
    assert "no confusions" in text(draw_confusion_matrix(matrix([[1, 0], [0, 1]]), 60))
    assert not is_confusion_matrix({"columns": ["target", "a"], "rows": [["b", 1]]})
    assert not is_confusion_matrix({"columns": ["target", "a"], "rows": [["a", "x"]]})
    assert not is_confusion_matrix({})


def test_classes_have_bars_and_numbers() -> None:
    table = {
        "columns": ["class", "precision", "recall", "f1", "count"],
        "rows": [["cat", 1.0, 0.5, 0.6667, 12], ["dog", "NaN", 0.0, "NaN", 0]],
    }
    assert is_class_scores(table)
    wide = text(draw_class_scores(table, 100)).splitlines()
    assert wide[0].split() == ["class", "precision", "recall", "F1", "count"]
    assert wide[1].count("█") == 18 + 9 + 12
    assert [word for word in wide[1].split() if word[0].isdigit()] == ["1.0000", "0.5000", "0.6667", "12"]
    assert wide[2].split().count("-") == 2
    narrow = text(draw_class_scores(table, 45)).splitlines()
    assert "█" not in narrow[1]
    assert max(map(len, narrow)) <= 45


def test_curves_are_drawn_by_name() -> None:
    rows = [
        [name, x / 10, min(1.0, x / 10 * slope)]
        for name, slope in (("cat", 1), ("dog", 3))
        for x in range(11)
    ]
    table = {"columns": ["curve", "recall", "precision"], "rows": rows}
    assert is_curves(table)
    lines = text(draw_curves(table, 60, 20)).splitlines()
    assert lines[0] == "precision"
    assert [line.split()[-1] for line in lines[1:3]] == ["cat", "dog"]
    assert lines[-1].endswith("recall")
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 60
    assert not is_curves({"columns": ["curve", "x", "y"], "rows": []})


def test_texts_are_wrapped_at_words_and_keep_their_lines() -> None:
    caption = "Once upon a time\n\n\tthere was\x1b a \u732b\u732b\u732b\u732b\u732b\u732b"
    assert text(draw_text(caption, 11)).splitlines() == [
        "Once upon a", "time", "", "    there", "was\\x1b a", "\u732b\u732b\u732b\u732b\u732b", "\u732b"
    ]  # fmt: skip
    assert draw_text("", 11) == []


# --- histograms


def test_a_histogram_stands_where_its_values_are() -> None:
    data = {"counts": [0, 4, 8, 4], "edges": [0.0, 1.0, 2.0, 3.0, 4.0]}
    lines = text(draw_histogram([(10, data)], 0, 47, 12)).splitlines()
    assert lines[0].startswith("     8 ")
    assert lines[0][7:].count("█") == 10
    assert "16 values, 4 bins, mean about 2.5" in lines[-1]
    top, bottom = lines[0][7:], lines[8][7:]
    assert top.index("█") == 20
    assert bottom.index("█") == 10
    assert lines[-2].split() == ["0", "2", "4"]


def test_histograms_of_several_steps_lie_below_each_other() -> None:
    data = [(step, {"counts": [1, 1], "edges": [step, step + 1.0, step + 2.0]}) for step in range(5)]
    lines = text(draw_histogram(data, 3, 60, 20, colors=False)).splitlines()
    steps = [line for line in lines if line[:6].strip().isdigit() and "█" in line[7:]][-5:]
    assert [int(line[:6]) for line in steps] == [0, 1, 2, 3, 4]
    starts = [line[7:].index("█") for line in steps]
    assert starts == sorted(set(starts))
    assert [line for line in lines if "▸" in line] == [steps[3]]


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=8), st.floats(-1e300, 1e300), st.floats(0, 1e300),
    st.integers(1, 90), st.integers(1, 30), st.integers(1, 4),
)  # fmt: skip
def test_any_histogram_fits(
    counts: list[float], low: float, width_of_bin: float, width: int, height: int, steps: int
) -> None:
    data = {"counts": counts, "edges": [low + width_of_bin * i / len(counts) for i in range(len(counts) + 1)]}
    lines = draw_histogram([(i, data) for i in range(steps)], steps - 1, width, height)
    assert len(lines) <= height
    if width >= 30:
        assert max(len(line) for line in text(lines).splitlines()) <= max(width, 60)


def test_histograms_of_nothing() -> None:
    assert "no finite values" in text(draw_histogram([(1, {"counts": [], "edges": ["NaN"]})], 0, 40, 10))
    assert "0 values" in text(draw_histogram([(1, {"counts": [0], "edges": [0, 1]})], 0, 40, 10))


# --- other tables


def test_tables_set_numbers_to_the_right() -> None:
    table = {"columns": ["layer", "n", "note"], "rows": [["conv", 12000, None], ["head", "NaN", [1, 2]]]}
    columns, rows = table_rows(table)
    assert [column.align_right for column in columns] == [False, True, False]
    assert [cell[0][0] for cell in rows[0][1]] == ["conv", "12,000", "-"]
    assert [cell[0][0] for cell in rows[1][1]] == ["head", "NaN", "[1, 2]"]
    assert table_rows({"columns": ["a"], "rows": []})[1] == []


# --- the panes


def record(folder: Path) -> None:
    with RunWriter.create(folder) as run:
        for step in (10, 20, 30):
            run.log(step, 1, {"loss": 1.0 / step})
            counts = [[step, 1], [2, step]]
            run.record_table(
                "valid/confusion", ["target", "a", "b"], [["a", *counts[0]], ["b", *counts[1]]], step
            )
            run.record_histogram("weights", [1, step], [0, 1, 2], step)
            run.record_image("samples", png(2, 2, [b"\0\xff\x00", b"\0\x00\xff"], 8, 0), step)
        run.record_table("notes", ["what", "n"], [["x", 1]])
        run.record_table("model", ["path", "output shape"], [["conv", None]])
        run.record_table(
            "kernels", ["op", "key", "candidate", "chosen by"], [["softmax", "k", "burnt", "measured"]]
        )
        run.record_table(
            "plans", ["function", "fell back", "signatures"], [["f", None, 1], ["g", "no sort", 2]]
        )
        run.record_image("broken", b"\x89PNG\r\n\x1a\n" + bytes(9))
        run.record_table("odd", [], [])


def drawn(app: MonitorApp) -> str:
    pane = app.screen.query_one(ArtefactsPane)
    if pane.has_class("table"):
        return text_of(pane.query_one("#table", Table))
    return text_of(pane.query_one(Picture))


async def test_artefacts_are_listed_drawn_and_moved_through(tmp_path: Path) -> None:
    record(tmp_path / "run")
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9")
        pane = app.screen.query_one(ArtefactsPane)
        names = pane.query_one("#names", Table)
        assert [key[1] for key in names.row_keys] == [  # type: ignore[index]
            "notes", "odd", "valid/confusion", "broken", "samples", "weights",
        ]  # fmt: skip
        assert "what" in drawn(app)
        await press(app, pilot, "down")
        assert "unknown format" in drawn(app) or "empty" in drawn(app)
        await press(app, pilot, "down")
        assert "30   1  0.9677" in drawn(app).replace("    ", " ").replace("  30", "30") or "0.9677" in drawn(
            app
        )
        slider = pane.query_one(Slider)
        assert slider.render().plain.startswith("step 30")
        assert "3 of 3" in slider.render().plain
        await press(app, pilot, "left")
        assert "0.9524" in drawn(app)
        assert slider.render().plain.startswith("step 20")
        await press(app, pilot, "left", "left")
        assert "1 of 3" in slider.render().plain
        await press(app, pilot, "shift+right")
        assert "3 of 3" in slider.render().plain
        await pilot.click(Slider, offset=(slider._bar[0] + 1, 0))
        await app.wait_until_idle(30)
        assert "1 of 3" in slider.render().plain
        await press(app, pilot, "down")
        assert "the PNG file is damaged" in drawn(app)
        await press(app, pilot, "down")
        assert "▀" in drawn(app)
        assert "2 x 2 pixels" in drawn(app)
        await press(app, pilot, "down")
        assert "31 values, 2 bins" in drawn(app)
        assert "one line each" in drawn(app)


async def test_new_ones_are_followed_unless_an_older_one_is_viewed(tmp_path: Path) -> None:
    run = RunWriter.create(tmp_path / "run")
    for step in (1, 2):
        run.record_histogram("weights", [step], [0, 1], step)
    run.flush()
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9")
        slider = app.screen.query_one(Slider)
        assert "2 of 2" in slider.render().plain
        run.record_histogram("weights", [3], [0, 1], 3)
        run.flush()
        await app.wait_until_idle(30)
        assert "3 of 3" in slider.render().plain
        await press(app, pilot, "left")
        run.record_histogram("weights", [4], [0, 1], 4)
        run.flush()
        await app.wait_until_idle(30)
        assert "2 of 4" in slider.render().plain
        await press(app, pilot, "right", "right")
        assert "4 of 4" in slider.render().plain
        run.record_histogram("weights", [5], [0, 1], 5)
        run.flush()
        await app.wait_until_idle(30)
        assert "5 of 5" in slider.render().plain, "at the end it follows again"
    run.close("finished")


async def test_nothing_recorded_is_said(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run").close("finished")
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9")
        assert "No artefacts have been recorded." in text_of(app.screen.query_one("#names", Table))
        await press(app, pilot, "right_square_bracket")
        assert "No kernel has been chosen." in text_of(app.screen.query_one("#kernels", Table))


async def test_kernels_and_plans_and_what_fell_back(tmp_path: Path) -> None:
    record(tmp_path / "run")
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "8")
        assert text_of(app.screen.query_one("ModelPane Table")).splitlines()[1].split() == ["conv", "-"]
        await press(app, pilot, "9", "right_square_bracket")
        assert "softmax" in text_of(app.screen.query_one("#kernels", Table))
        plans = app.screen.query_one("#plans", Table)
        assert "no sort" in text_of(plans)
        assert "1 of them fell back" in str(app.screen.query_one("#plans-facts").render())


async def test_kernels_are_distinguished_by_their_arguments(tmp_path: Path) -> None:
    keys = [f"7d07|cpu Some One, 1 threads|training|x=float32 4d row {n}x8|eps=float" for n in (16, 32)]
    with RunWriter.create(tmp_path / "run") as run:
        run.record_table(
            "kernels",
            ["op", "key", "candidate", "chosen by"],
            [["softmax", key, "burnt", "measured"] for key in keys],
        )
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "K")
        first, second = text_of(app.screen.query_one("#kernels", Table)).splitlines()[1:3]
        assert "training  x=float32 4d row 16x8  eps=float" in first
        assert "training  x=float32 4d row 32x8  eps=float" in second
        assert "2, on cpu Some One, 1 threads" in str(app.screen.query_one("#kernels-facts").render())
        app.screen.query_one("#kernels", Table).focus()
        await press(app, pilot, "down", "enter")
        assert keys[1] in "".join(str(part.render()) for part in app.screen.query("Static"))


async def test_without_colours_nothing_is_coloured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "run")
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9", "down", "down")
        picture = app.screen.query_one(Picture)
        assert "█" in drawn(app)
        for y in range(picture.size.height):
            for segment in picture.render_line(y):
                style = segment.style
                assert style is None or style.color is None or style.color.is_default


# --- reading


def test_names_are_read_without_data_and_superseded_ones_are_gone(tmp_path: Path) -> None:
    record(tmp_path / "run")
    with RunReader(tmp_path / "run") as reader:
        names = reader.artefact_names()
        assert [name[1:4] for name in names[:3]] == [
            ("table", "valid/confusion", 10), ("histogram", "weights", 10), ("image", "samples", 10),
        ]  # fmt: skip
        for name, artefact in zip(names, reader.artefacts(), strict=True):
            assert tuple(name) == tuple(artefact)[:-1]
            assert reader.artefact(name.id) == artefact
        assert reader.artefact(10**9) is None
    with RunWriter.create(tmp_path / "run", resume=True, resumed_from_step=15) as run:
        run.log(16, 1, {"loss": 1.0})
    with RunReader(tmp_path / "run") as reader:
        steps = [name.step for name in reader.artefact_names() if name.name == "samples"]
        assert steps == [10]
        gone = next(name for name in names if name.step == 30)
        assert reader.artefact(gone.id) is None


def test_what_is_confused_most_is_found_in_a_large_matrix_and_drawn_once() -> None:
    n = 60
    counts = [[(i * 7 + j * 13) % 50 for j in range(n)] for i in range(n)]
    table = {
        "columns": ["target", *map(str, range(n))],
        "rows": [[str(i), *row] for i, row in enumerate(counts)],
    }
    expected = sorted((-counts[i][j], i, j) for i in range(n) for j in range(n) if i != j)
    text = ["".join(ink.text for ink in line) for line in render.draw_confusion_matrix(table, 100)]
    at = text.index("most confused") + 1
    for line, (count, i, j) in zip(text[at:], expected, strict=False):
        assert f"{i} predicted as {j} " in f"{line} "
        assert f"  {-count} of {sum(counts[i])}" in line


def test_remembered_artefacts_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "_CACHE_BYTES", 64 * 10)
    with RunWriter.create(tmp_path / "run") as run:
        for step in range(5):
            run.record_table("t", ["a"], [[step]] * 3, step=step)
    view = RunView(run.folder)
    view.refresh()
    pane = artefacts.ArtefactsPane(view)
    with view.reading() as reader:
        names = reader.artefact_names()
    for name in names:
        assert pane._load_data(name)["rows"][0] == [name.step]
    assert [size for _, size in pane._data_cache.values()] == [64 * 4] * 2


@pytest.mark.full
async def test_many_names_are_filtered_and_many_steps_are_jumped_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunWriter.create(tmp_path / "run")
    for layer in range(1, 121):
        run.record_table(f"norms/layer{layer}", ["x"], [[layer]], 1)
    for step in range(1, 101):
        run.record_histogram("grads/layer7", [1.0, float(step)], [0.0, 1.0, 2.0], step)
    run.flush()
    reads = []
    artefact_names = RunReader.artefact_names

    def counted(self: RunReader, *, after: int = 0) -> Any:
        names = artefact_names(self, after=after)
        reads.append(len(names))
        return names

    monkeypatch.setattr(RunReader, "artefact_names", counted)
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9")
        names = app.screen.query_one("#names", Table)
        assert [key[1] for key in names.row_keys][:12:10] == ["norms/layer1", "norms/layer11"]  # as numbers
        await press(app, pilot, "slash", *"grads", "enter")
        assert [key[1] for key in names.row_keys] == ["grads/layer7"]
        slider = app.screen.query_one(Slider)
        for key, shown in (("comma", 90), ("comma", 80), ("left", 79), ("full_stop", 89), ("shift+left", 1)):
            await press(app, pilot, key)
            assert f"step {shown} " in str(slider.render())
        await press(app, pilot, "slash", "x", "x", "x")
        assert "No artefact matches the filter." in text_of(names)
        run.record_table("norms/layer121", ["x"], [[1]], 2)
        run.flush()
        await press(app, pilot, "escape")
        assert len(names.row_keys) == 122
        assert sorted(set(reads), reverse=True)[:2] == [220, 1]  # only what is new is read again
    run.close("finished")


async def test_artefacts_of_validations_are_beside_those_of_steps(tmp_path: Path) -> None:
    long = "weights/" + "encoder." * 5
    with RunWriter.create(tmp_path / "run") as run:
        for split in ("train", "valid", "shifted"):
            run.log(1, 1, {"loss": 1.0}, split)
        for name in ("zoo", "valid/zoo", f"{long}10", f"{long}9", f"shifted/{long}9", "grad/valid"):
            run.record_table(name, ["x"], [[1]], 1)
    async with opened(tmp_path / "run", (80, 24)) as (app, pilot):
        await press(app, pilot, "9")
        names = app.screen.query_one("#names", Table)
        expected = ["grad/valid", f"{long}9", f"shifted/{long}9", f"{long}10", "zoo", "valid/zoo"]
        assert [key[1] for key in names.row_keys] == expected  # type: ignore[index]
        shown = text_of(names).splitlines()
        assert shown[2].split()[0].startswith("…")
        assert shown[2].split()[0].endswith("encoder.9")
        assert shown[4].split()[0].endswith("encoder.10")


async def test_a_long_text_in_a_table_is_shown_in_full(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(60))
    with RunWriter.create(tmp_path / "run") as run:
        run.record_table("samples", ["prompt", "score"], [["a", 1.5], [text, 2.5]], 1)
        run.record_table("text", ["text"], [[text]], 1)
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "9", "tab", "down", "enter")
        assert isinstance(app.screen, TextScreen)

        def shown() -> set[str]:
            return set(" ".join(strip.text for strip in app.screen._compositor.render_strips()).split())

        assert {*text.split(), "score:", "2.5"} <= shown()
        await press(app, pilot, "escape", "shift+tab", "down")
        assert set(text.split()) <= shown()  # a text alone is drawn


@pytest.mark.full
async def test_numbers_are_in_order_and_filtered(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run") as run:
        run.log(1, 1, {"norm/layer10": 1.0, "norm/layer9": 1.0, "loss": 1.0})
        run.log(1, 1, {"loss": 1.0}, "shifted")
    async with opened(tmp_path / "run", (120, 36)) as (app, pilot):
        await press(app, pilot, "2")
        table = app.screen.query_one("NumbersPane Table", Table)
        rows = [line.split()[:2] for line in text_of(table).splitlines()[1:5]]
        assert rows == [
            ["loss", "train"],
            ["loss", "shifted"],
            ["norm/layer9", "train"],
            ["norm/layer10", "train"],
        ]
        await press(app, pilot, "slash", *"shifted")
        assert len(table.row_keys) == 1
