"""JSON that somebody else wrote."""

from __future__ import annotations

import json
import re
from typing import Any

_DEEPEST = 200
# A string is one token, whatever brackets it holds; one without an end is for json to complain of.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, but for what is nested more than 200 deep.

    Python's own parser goes as deep as the process's recursion limit lets it, which libraries raise: beyond
    the stack of its thread the process ends. Too deep is a JSONDecodeError; bytes in another encoding than
    UTF-8, UTF-16 or UTF-32 are a UnicodeDecodeError.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if isinstance(text, str) and text.count("[") + text.count("{") > _DEEPEST:
        depth = 0
        for token in _TOKENS.finditer(text):
            first = token[0][0]
            depth += (first in "[{") - (first in "]}")
            if depth > _DEEPEST:
                raise json.JSONDecodeError(f"nested more than {_DEEPEST} deep", text, token.start())
    try:
        return json.loads(text)
    except RecursionError as error:  # the process is at its limit already
        raise json.JSONDecodeError(str(error), "", 0) from None
