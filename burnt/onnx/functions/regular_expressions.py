"""Regular expressions that take linear time: an automaton follows all possible matches at once.

Python's ``re`` backtracks, which takes exponential time for some patterns, and a pattern comes from a file.
ONNX refers to the syntax of RE2, of which this has literals, classes, groups, alternatives, repetition,
anchors and word boundaries, and the flags ``i`` and ``s``. Thompson, 1968.
"""

from __future__ import annotations

import functools
import re
import string
import warnings
from collections.abc import Callable, Iterator

from burnt.errors import UnsupportedError

__all__ = ["WORD", "FullMatcher", "full_matcher"]

_MAX_STATES = 5_000
_MAX_DEPTH = 50
_MAX_CACHED = 1_000

_TOKEN = re.compile(
    r"\\x\{[0-9a-fA-F]{1,6}\}|\\x[0-9a-fA-F]{2}|\\."
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"
    r"|\(\?P?<\w+>|\(\?[a-z]*[:)]|\{[0-9]+(?:,[0-9]*)?\}|.",
    re.DOTALL,
)
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_ANCHORS = {"^": "start", "\\A": "start", "$": "end", "\\z": "end", "\\b": "boundary", "\\B": "inside"}
WORD = frozenset(string.ascii_letters + string.digits + "_")
"""The characters of words, between which and others is a boundary."""


@functools.lru_cache(64)
def full_matcher(pattern: str) -> FullMatcher:
    """Return a function that says whether a pattern matches the whole of a text.

    Args:
        pattern: in the syntax of RE2.

    Raises:
        UnsupportedError: it is invalid, has syntax that is not supported, or is too large.

    >>> matches = full_matcher(r"(a+)+|\\d{2,3}")
    >>> matches("a" * 1000), matches("a" * 1000 + "b"), matches("12"), matches("1")
    (True, False, True, False)
    """
    return FullMatcher(pattern)


class FullMatcher:
    """The automaton of a pattern: see `full_matcher`.

    A state has a test of the next character, or an anchor, or neither, and the states that follow. State 0
    accepts.
    """

    def __init__(self, pattern: str) -> None:
        parser = _Parser(pattern)
        self._start = parser.parse()
        self._tests, self._anchors, self._following = parser.tests, parser.anchors, parser.following
        self._cache: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}

    def __call__(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        states, before = frozenset({self._start}), "start"
        for char in text:
            key = (states, before, char)
            after = self._cache.get(key)
            if after is None:
                after = frozenset(self._step(states, before, char))
                if len(self._cache) >= _MAX_CACHED:
                    self._cache.clear()
                self._cache[key] = after
            if not after:
                return False
            states, before = after, "word" if char in WORD else "other"
        return 0 in self._reached(states, before, "")

    def _step(self, states: frozenset[int], before: str, char: str) -> Iterator[int]:
        """Yield the states after a character."""
        for state in self._reached(states, before, char):
            test = self._tests[state]
            if test is not None and test(char):
                yield from self._following[state]

    def _reached(self, states: frozenset[int], before: str, char: str) -> set[int]:
        """Return the states that are reached before the next character is read; it is empty at the end."""
        is_boundary = (before == "word") != (char in WORD)
        holds = {
            "": True,
            "start": before == "start",
            "end": not char,
            "boundary": is_boundary,
            "inside": not is_boundary,
        }
        found, stack = set(states), list(states)
        while stack:
            state = stack.pop()
            if self._tests[state] is None and holds[self._anchors[state]]:
                new = set(self._following[state]) - found
                found |= new
                stack += new
        return found


# A part of a pattern is a function from the state after it to its first state, so that it can be repeated.
_Part = Callable[[int], int]


class _Parser:
    """Parses a pattern into states."""

    def __init__(self, pattern: str) -> None:
        self.tests: list[Callable[[str], object] | None] = [None]
        self.anchors: list[str] = [""]
        self.following: list[tuple[int, ...]] = [()]
        self._pattern = pattern
        self._tokens = [str(token) for token in _TOKEN.findall(pattern)]
        self._position = 0
        self._size = 0

    def parse(self) -> int:
        """Return the first state."""
        part = self._alternatives("", 0)
        if self._position < len(self._tokens):
            raise self._error("a group that begins", ")")
        return part(0)

    def _add(self, *following: int, test: Callable[[str], object] | None = None, anchor: str = "") -> int:
        self._count()
        self.tests.append(test)
        self.anchors.append(anchor)
        self.following.append(following)
        return len(self.tests) - 1

    def _count(self) -> None:
        """Limit the states, and also the repetitions of nothing."""
        self._size += 1
        if self._size > _MAX_STATES:
            raise self._error(f"at most {_MAX_STATES:,} states, repetitions counted", "more")

    def _error(self, expected: str, found: str) -> UnsupportedError:
        return UnsupportedError(
            "a regular expression is not supported",
            where=repr(self._pattern[:80]),
            expected=expected,
            found=found[:80],
        )

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._position += 1
        return token

    def _alternatives(self, flags: str, depth: int) -> _Part:
        """Parse until the end of a group or of the pattern."""
        if depth > _MAX_DEPTH:
            raise self._error(f"groups nested at most {_MAX_DEPTH} deep", "(" * 8)
        options: list[list[_Part]] = [[]]
        while self._peek() not in ("", ")"):
            token = self._take()
            if token == "|":
                options.append([])
            elif match := re.fullmatch(r"\(\?([is]*)\)", token):
                flags += match[1]
            else:
                options[-1].append(self._repeated(self._single(token, flags, depth)))
        sequences = [functools.partial(self._sequence, parts) for parts in options]
        if len(sequences) == 1:
            return sequences[0]
        return lambda after: self._add(*[part(after) for part in sequences])

    def _sequence(self, parts: list[_Part], after: int) -> int:
        for part in reversed(parts):
            after = part(after)
        return after

    def _single(self, token: str, flags: str, depth: int) -> _Part:
        match = re.fullmatch(r"\((?:\?P?<\w+>|\?([is]*):)?", token)
        if match:
            part = self._alternatives(flags + (match[1] or ""), depth + 1)
            if self._take() != ")":
                raise self._error("a group that ends", token)
            return part
        if token in _ANCHORS:
            return lambda after: self._add(after, anchor=_ANCHORS[token])
        if token in ("*", "+", "?", "(", "[") or (token.startswith(("(?", "{")) and len(token) > 1):
            raise self._error("the syntax of RE2, with no flags but i and s", token)
        test = self._test(token, flags)
        return lambda after: self._add(after, test=test)

    def _test(self, token: str, flags: str) -> Callable[[str], object]:
        """Return a function that says whether a character fits a literal, an escape or a class."""
        text = re.escape(token) if len(token) == 1 and token != "." else token
        text = re.sub(r"\\x\{([0-9a-fA-F]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", text)
        text = re.sub(r"(?<!^)\[:(\w+):\]", lambda m: _POSIX.get(m[1], m[0]), text)
        options = re.ASCII if "\\" in token else re.NOFLAG  # digits and words are those of RE2
        options |= re.DOTALL if "s" in flags else re.NOFLAG
        options |= re.IGNORECASE if "i" in flags else re.NOFLAG
        is_known = not re.match(r"\\[0-9Z]", token) and not re.search(r"(?<!^)\[:\^?\w+:\]", text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of brackets in a class, which are literals in both syntaxes
                if is_known:
                    return re.compile(text, options).fullmatch
        except re.error:
            pass
        raise self._error("a literal, an escape or a class of RE2, without references to groups", token)

    def _repeated(self, part: _Part) -> _Part:
        """Parse what repeats a part, which may be nothing."""
        token = self._peek()
        least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(token, (1, 1))
        if match := re.fullmatch(r"\{([0-9]+)(,?)([0-9]*)\}", token):
            if len(token) > 11:
                raise self._error("numbers of repetitions up to 1000", token)
            least = int(match[1])
            most = least if not match[2] else int(match[3]) if match[3] else -1
            if least > 1000 or most > 1000 or 0 <= most < least:
                raise self._error("numbers of repetitions up to 1000, in order", token)
        elif token not in ("*", "+", "?"):
            return part
        self._take()
        if self._peek() == "?":  # lazy, which changes nothing for whole texts
            self._take()
        if re.fullmatch(r"[*+?]|\{[0-9].*\}", self._peek()):
            raise self._error("one repetition of a part", token + self._peek())

        def repeat(end: int) -> int:
            after = end
            if most < 0:
                after = self._add()
                self.following[after] = (part(after), end)
            for _ in range(most - least):
                self._count()
                after = self._add(part(after), end)
            for _ in range(least):
                self._count()
                after = part(after)
            return after

        return repeat
