"""Explain what a call of an op would run, and why: its candidates, their times, and generated kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from burnt._text import table_lines
from burnt.codegen.explanation import Explanation
from burnt.codegen.explanation import explain as explain_function
from burnt.errors import UnsupportedError
from burnt.kernels.autotune.database import Row
from burnt.kernels.autotune.tuner import lookup_measurements
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.dispatch.op import Entry, Op
from burnt.kernels.interface.candidate import Candidate
from burnt.kernels.interface.checks import translate_error
from burnt.kernels.interface.tuning_key import format_choice, parse_choice


@dataclasses.dataclass(frozen=True)
class CandidateFacts:
    """A candidate with one configuration: why it is not used, or None; its time in ms, if it was measured."""

    name: str
    why_not: str | None
    ms: float | None
    chosen: bool


@dataclasses.dataclass(frozen=True)
class OpExplanation:
    """What a call of an op runs, and why.

    `key` is the tuning key, under which measurements are stored; `why` is ``heuristic``, ``pinned``, or
    ``measured`` with the time; `candidates` are all with their configurations; `generated` are the generated
    kernels, or None; `raises` is the error of a call, because a candidate is defined incorrectly, or None.
    """

    op: str
    key: str
    why: str
    candidates: tuple[CandidateFacts, ...]
    generated: Explanation | None
    raises: str | None = None

    @property
    def winner(self) -> str:
        """The name of the candidate that runs, with its configuration."""
        return next(c.name for c in self.candidates if c.chosen)

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as a JSON-serializable dictionary."""
        document = dataclasses.asdict(dataclasses.replace(self, generated=None))
        return document | {"generated": None if self.generated is None else self.generated.as_dict()}

    def __str__(self) -> str:
        rows = [("", "candidate", "ms", "")]
        rows += [
            (
                "->" if c.chosen else "",
                c.name,
                "" if c.ms is None else f"{c.ms:.4g}",
                (c.why_not or (self.why if c.chosen else "")).partition("\n")[0],
            )
            for c in self.candidates
        ]
        lines = [self.op, *table_lines(rows, right={2})]
        if self.raises is not None:
            lines.append(f"a call raises: {self.raises}")
        if self.generated is not None:
            lines += ["generated:", *(f"  {line}" for line in str(self.generated).splitlines())]
        return "\n".join(lines)


def explain(op: Op[..., Any], *args: Any, **kwargs: Any) -> OpExplanation:
    """Explain which candidate an op runs with these arguments, and why.

    Args:
        op: an op of `burnt.kernels`, or one of your own.
        args: its positional arguments.
        kwargs: its keyword arguments.

    Raises:
        UnsupportedError: `op` is not an op, such as a function that calls ops.
        InputError, TypeError: a call with these arguments raises it.

    >>> import torch
    >>> from burnt import kernels
    >>> explanation = kernels.explain(kernels.softmax, torch.zeros(3, 5))
    >>> explanation.winner, explanation.why
    ('library', 'heuristic')
    """
    if not isinstance(op, Op):
        raise UnsupportedError(
            f"{getattr(op, '__name__', op)} is not an op",
            where="burnt.kernels.explain",
            expected="an op, such as burnt.kernels.softmax",
            found=type(op).__name__,
            hint="explain each op that the function calls, such as kernels.dot_product_attention",
        )
    full, context = op.under_autocast(op.bind(args, kwargs))
    with context:
        return _explain_bound(op, full)


def _explain_bound(op: Op[..., Any], full: Sequence[Any]) -> OpExplanation:
    """Explain what an op runs, given all its arguments by position."""
    _raise_if_invalid(op, full)
    entry, broken = op.choose_despite_errors(full)
    measurements = lookup_measurements(entry.key)
    rows = {row.config: row for row in measurements.rows}
    facts = []
    for candidate in op.candidates.values():
        why_not = broken.get(candidate.name) or candidate.why_not(full)
        for config in _configs_to_show(candidate, full, entry, rows) if why_not is None else [None]:
            name = format_choice(candidate, config)
            row = rows.get(name)
            rejection = f"{row.status}: {row.note}" if row is not None and row.status != "ok" else None
            if rejection is None and name in measurements.wrong:
                rejection = f"wrong for other arguments: {measurements.wrong[name]}"
            facts.append(
                CandidateFacts(
                    name,
                    why_not or rejection,
                    None if row is None else row.ms,
                    candidate is entry.candidate and config == entry.config,
                )
            )
    generated = op.candidates.get("generated")
    kernels = None
    if isinstance(generated, Generated) and generated.why_not(full) is None:
        function, positions = generated.with_blocks(
            full, entry.config if entry.candidate is generated else None
        )
        kernels = explain_function(function, *[full[i] for i in positions])
    raises = next(iter(broken.values()), None)
    return OpExplanation(op.name, entry.key, entry.why, tuple(facts), kernels, raises)


def _raise_if_invalid(op: Op[..., Any], full: Sequence[Any]) -> None:
    """Raise the error of a call with these arguments, if the reference does not accept them."""
    op.check_argument_types(full)
    if op.check is not None:
        op.check(*full)
    error = op.reference_error(full)
    if error is not None:
        raise translate_error(op, full, error) from None


def _configs_to_show(
    candidate: Candidate, args: Sequence[Any], entry: Entry, rows: Mapping[str, Row]
) -> list[dict[str, Any] | None]:
    """Return all configurations of a candidate; of generated kernels, only those measured or selected."""
    if not isinstance(candidate, Generated):
        return [alternative.config for alternative in candidate.alternatives(args)]
    measured = [parse_choice([candidate], args, text) for text in rows]
    configs = [None, *(config for _, config in filter(None, measured))]
    configs += [entry.config] if entry.candidate is candidate else []
    return [config for i, config in enumerate(configs) if config not in configs[:i]]
