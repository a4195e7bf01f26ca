"""What a call of an op would run, and why: candidates, times, the winner, and its generated kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from burnt.codegen.explanation import Explanation
from burnt.codegen.explanation import explain as explain_function
from burnt.errors import UnsupportedError
from burnt.kernels.dispatch.generated import Generated
from burnt.kernels.dispatch.op import Entry, Op
from burnt.kernels.interface.candidate import Candidate
from burnt.kernels.interface.checks import explain_error
from burnt.kernels.interface.tuning_key import format_choice, parse_choice
from burnt.kernels.tuning.database import Row
from burnt.kernels.tuning.tuner import known_of

__all__ = ["CandidateFacts", "OpExplanation", "explain"]


# What functions that are no ops call.
_BENEATH = {
    "burnt.kernels.ops.attention.attention.attention": "it calls kernels.dot_product_attention, where "
    "after=0 is causal, and before and after are a window",
    "burnt.kernels.ops.normalization.batch_norm": "it calls batch_norm_training, or batch_norm_inference",
    "burnt.kernels.ops.rnn.rnn.lstm": "it calls lstm_layer for each layer and direction",
    "burnt.kernels.ops.rnn.rnn.gru": "it calls gru_layer for each layer and direction",
}


@dataclasses.dataclass(frozen=True)
class CandidateFacts:
    """What is known of a candidate for some arguments.

    Args:
        name: of the candidate, with its configuration.
        why_not: why it cannot run or is not used, or None.
        ms: the time of a call, where it was measured.
        chosen: whether it is the one that runs.
    """

    name: str
    why_not: str | None
    ms: float | None
    chosen: bool


@dataclasses.dataclass(frozen=True)
class OpExplanation:
    """What a call of an op runs.

    Args:
        op: its name.
        key: what measurements of such a call are kept under.
        why: by what the candidate was chosen: ``heuristic``, ``pinned``, ``measured``.
        candidates: all of them.
        generated: the kernels that are generated, where they can be.
        raises: what a call raises, because a candidate is defined wrongly, or None.
    """

    op: str
    key: str
    why: str
    candidates: tuple[CandidateFacts, ...]
    generated: Explanation | None
    raises: str | None = None

    @property
    def winner(self) -> str:
        """The name of the candidate that runs."""
        return next(c.name for c in self.candidates if c.chosen)

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        made = dataclasses.asdict(dataclasses.replace(self, generated=None))
        return made | {"generated": None if self.generated is None else self.generated.as_dict()}

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
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [self.op]
        for mark, name, ms, why in rows:
            lines.append(f"{mark:<{widths[0]}} {name:<{widths[1]}}  {ms:>{widths[2]}}  {why}".rstrip())
        if self.raises is not None:
            lines.append(f"a call raises: {self.raises}")
        if self.generated is not None:
            lines += ["generated:", *(f"  {line}" for line in str(self.generated).splitlines())]
        return "\n".join(lines)


def explain(op: Op[..., Any], *args: Any, **kwargs: Any) -> OpExplanation:
    """What an op runs for these arguments, and why.

    Args:
        op: an op of `burnt.kernels`, or one of your own.
        args: its arguments.
        kwargs: the same by name.

    Raises:
        UnsupportedError: it is a function, which calls ops.
        InputError, TypeError: what a call with these arguments raises.

    >>> import torch
    >>> from burnt import kernels
    >>> found = kernels.explain(kernels.softmax, torch.zeros(3, 5))
    >>> found.winner, found.why
    ('library', 'heuristic')
    """
    if not isinstance(op, Op):
        raise UnsupportedError(
            f"{getattr(op, '__name__', op)} is no op",
            where="burnt.kernels.explain",
            expected="an op, as burnt.kernels.softmax is one",
            found=type(op).__name__,
            hint=_BENEATH.get(_full_name(op), "a function that calls ops is explained op by op"),
        )
    full, context = op.under_autocast(op.bound(args, kwargs))
    with context:
        return _explained(op, full)


def _full_name(fn: object) -> str:
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__name__', '')}"


def _explained(op: Op[..., Any], full: Sequence[Any]) -> OpExplanation:
    """What an op runs for all its arguments by position."""
    _refuse(op, full)
    entry, broken = op.chosen_despite(full)
    measured = known_of(entry.key)
    known = {row.config: row for row in measured.rows}
    found = []
    for candidate in op.candidates.values():
        why_not = broken.get(candidate.name) or candidate.why_not(full)
        for config in _configs(candidate, full, entry, known) if why_not is None else [None]:
            name = format_choice(candidate, config)
            row = known.get(name)
            bad = f"{row.status}: {row.note}" if row is not None and row.status != "ok" else None
            if bad is None and name in measured.wrong:
                bad = f"wrong for other arguments: {measured.wrong[name]}"
            found.append(
                CandidateFacts(
                    name,
                    why_not or bad,
                    None if row is None else row.ms,
                    candidate is entry.candidate and config == entry.config,
                )
            )
    generated = op.candidates.get("generated")
    kernels = None
    if isinstance(generated, Generated) and generated.why_not(full) is None:
        function, kept = generated.with_blocks(full, entry.config if entry.candidate is generated else None)
        kernels = explain_function(function, *[full[i] for i in kept])
    raises = next(iter(broken.values()), None)
    return OpExplanation(op.name, entry.key, entry.why, tuple(found), kernels, raises)


def _refuse(op: Op[..., Any], full: Sequence[Any]) -> None:
    """Raise what a call with these arguments would, if the reference does not take them."""
    op.check_kinds(full)
    if op.check is not None:
        op.check(*full)
    refused = op.refusal(full)
    if refused is not None:
        raise explain_error(op, full, refused) from None


def _configs(
    candidate: Candidate, args: Sequence[Any], entry: Entry, known: Mapping[str, Row]
) -> list[dict[str, Any] | None]:
    """The configurations to show: all, but of generated kernels those alone of which something is known."""
    if not isinstance(candidate, Generated):
        return [alternative.config for alternative in candidate.alternatives(args)]
    found = [parse_choice([candidate], args, text) for text in known]
    configs = [None, *(config for _, config in filter(None, found))]
    configs += [entry.config] if entry.candidate is candidate else []
    return [config for i, config in enumerate(configs) if config not in configs[:i]]
