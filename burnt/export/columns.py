"""The columns of a table as the fields of a page, and as documentation and names in a C header."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from burnt.data.description import ColumnDescription, TableDescription
from burnt.data.files.dates import Date
from burnt.data.files.schema import UNKNOWN, Categories
from burnt.export.c_source import CSource, c_name
from burnt.inspect.signature import Column


def form(table: TableDescription, inputs: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a page, and for each input the field and the part of a date of its numbers."""
    numbers = {name: table.numbers(name) or () for name in inputs}
    wanted = {number.name for row in numbers.values() for number in row}
    names = list(table.columns)
    return {
        "fields": [_field(table, name, f"{name}.hour" in wanted) for name in names],
        "numbers": [
            [[names.index(source := table.source(n.name)), n.name[len(source) + 1 :]] for n in row]
            for row in numbers.values()
        ],
    }


def _field(table: TableDescription, name: str, has_hours: bool) -> dict[str, Any]:
    """Return a field; `missing` is the text that stands for an empty one, or null for NaN."""
    column = table.columns[name]
    field: dict[str, Any] = {"name": name, "kind": column.kind, "isRequired": table.is_required(name)}
    options, filled = _options(column), None
    if not isinstance(table.missing, str) and name in table.missing:
        filled = table.missing[name]
    if options is not None:
        found = None if filled is None else Categories(options).find(filled)
        other = "other" if found is not None else "other, or missing"
        shown = [other if option == UNKNOWN else str(option) for option in options]
        return {**field, "options": shown, "start": 0, "missing": found}
    low, high = column.range or (0.0, 0.0)
    moments: list[str] | list[float]
    if column.kind == "date":
        has_time = has_hours or low % 1 != 0 or high % 1 != 0 or "%H" in (column.format or "")
        moments = [_moment(days, has_time) for days in (low, high, (low + high) / 2 // 1)]
        days = None if filled is None else Date(column.format).number(filled)
        text = None if days is None else _moment(days, has_time=True)
    else:
        is_whole = not column.kind.startswith("float")
        middle = int((low + high) / 2) if is_whole else float(f"{(low + high) / 2:.3g}")
        has_time, moments, text = False, [low, high, middle], filled
    hint = None if column.range is None else moments[:2]
    return {**field, "hasTime": has_time, "range": hint, "start": moments[2], "missing": text}


def _options(column: ColumnDescription) -> list[Any] | None:
    return [False, True] if column.kind == "bool" else column.categories


def _moment(days: float, has_time: bool) -> str:
    """Return the text that a browser's field has for days since 1970-01-01."""
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(days)
    return moment.isoformat(timespec="minutes") if has_time else moment.date().isoformat()


def header_columns(source: CSource, table: TableDescription | None, classes: Sequence[str] | None) -> str:
    """Return comments on the numbers of each input, and tables of the names of categories and classes."""
    texts: dict[str, Sequence[Any]] = {}
    lines = []
    for parameter, info in zip(source.inputs, source.signature.inputs, strict=True):
        for position, number in enumerate(info.columns if table is not None else ()):
            assert table is not None
            index = "[0]" if len(info.shape) == 1 else f"[0][{position}]"
            column = table.columns[table.source(number.name)]
            array = _array_name(source.name, number.name, texts)
            if column.categories is not None:
                texts[array] = column.categories
            lines.append(f"{parameter.name}{index}: {number.name}, {_meaning(number, column, array)}")
    if classes:
        texts[_array_name(source.name, "classes", texts)] = classes
    comment = "\n * ".join(line.replace("*/", "* /") for line in lines)
    comment = f"/* What the inputs are:\n * {comment}\n */\n" if lines else ""
    return _ascii(comment) + "".join(_names(array, values) for array, values in texts.items())


def _meaning(number: Column, column: ColumnDescription, array: str) -> str:
    if column.categories is not None:
        text = f"an index into {array}"
        if column.categories[-1:] == [UNKNOWN]:
            text += f"; {len(column.categories) - 1} is any other value, and a missing one"
        return text
    if number.is_whole and column.kind == "date":
        text = "this part of the date" + (", Monday is 0" if number.name.endswith(".weekday") else "")
    elif column.kind == "date":
        text = "days since 1970-01-01 in UTC, with the time as a fraction: 2024-01-31 is 19753"
    elif column.kind == "bool":
        text = "0 for false, 1 for true"
    else:
        text = "a whole number" if number.is_whole else "a number"
    if number.range is not None and column.kind != "bool":
        text += f"; {number.range[0]:.9g} to {number.range[1]:.9g} in training"
    return text + ("; NAN if missing" if number.may_be_nan else "")


def _array_name(function: str, name: str, taken: Mapping[str, Any]) -> str:
    array = base = c_name(f"{function}_{name}")
    while array in taken:
        array = f"{base}_{len(taken)}"
    return array


def _names(array: str, values: Sequence[Any]) -> str:
    texts = ",\n    ".join(f'"{_escaped(str(value))}"' for value in values)
    return f"static const char *const {array}[{len(values)}] = {{\n    {texts}\n}};\n"


def _escaped(text: str) -> str:
    """Return the characters of a C string, in ASCII."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\?')  # ?? would start a trigraph
    # Octal escapes end after three digits, hexadecimal ones do not.
    return "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode())


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()
