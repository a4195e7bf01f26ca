"""JSON that others wrote is read as `json.loads` reads it, but never deeper than the stack is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from burnt._files import parse_json


@pytest.mark.parametrize(
    "text",
    [
        "null",
        ' {"a": [1, 2.5, true, "b"], "c": {}} ',
        json.dumps({f"layer.{i}": {"shape": [i, [i]]} for i in range(300)}),
        json.dumps(["[" * 1000, '"[{' * 300, "\\" * 3, '\\"' + "{" * 400]),
        "[" * 200 + "]" * 200,
        "[" * 100 + '{"]": ' * 100 + "0" + "}" * 100 + "]" * 100,
        '{"a": "' + "é[" * 300 + '"}',
    ],
)
@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_reads_what_json_reads(text: str, encoding: str | None) -> None:
    assert parse_json(text if encoding is None else text.encode(encoding)) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message", "at"),
    [
        ("[" * 60_000, "nested more than 200 deep", 200),
        ('{"a":' * 201 + "0" + "}" * 201, "nested more than 200 deep", 1000),
        ('["' + "]" * 300 + '", ' + "[" * 300, "nested more than 200 deep", 504),
        ('["' + "[" * 300, "Unterminated string", 1),
        ("[" * 150 + "{", "Expecting property name", 151),
        ("[1,", "Expecting value", 3),
        ("", "Expecting value", 0),
    ],
)
def test_what_is_none_is_named(text: str, message: str, at: int) -> None:
    with pytest.raises(json.JSONDecodeError, match=message) as caught:
        parse_json(text)
    assert caught.value.pos == at


def test_a_raised_recursion_limit_does_not_end_the_process() -> None:
    code = """
import sys
from burnt._files import parse_json
sys.setrecursionlimit(10**9)
parse_json("[" * 10**6)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 1, done
    assert done.stderr.splitlines()[-1].startswith("json.decoder.JSONDecodeError: nested more than 200 deep")


def test_a_stack_that_is_used_up_is_an_error_of_the_same_class() -> None:
    def at_the_limit(depth: int = 0) -> None:
        try:
            at_the_limit(depth + 1)
        except RecursionError:
            if depth % 10 == 0:
                parse_json("[" * 150 + "]" * 150)
            raise

    with pytest.raises((json.JSONDecodeError, RecursionError)) as caught:
        at_the_limit()
    assert isinstance(caught.value, json.JSONDecodeError), "there was room enough"


def test_neither_text_nor_bytes() -> None:
    with pytest.raises(TypeError):
        parse_json(None)  # type: ignore[arg-type]
