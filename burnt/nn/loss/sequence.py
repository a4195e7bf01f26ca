"""Losses of sequences whose alignment with the target is unknown."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from burnt.errors import InputIndexError, InputRuntimeError, InputValueError, ShapeError
from burnt.module import Module
from burnt.nn.checks import require
from burnt.nn.loss import checks

_NEVER = -1e30  # log-probability of what cannot be; minus infinity would make gradients NaN


class Ctc(Module, torch.nn.CTCLoss):
    r"""Connectionist temporal classification: the probability of a target by all its alignments.

    Args:
        blank: class of steps without a label.
        reduction: ``"mean"`` divides each loss by its target's length, and takes the mean; ``"sum"``; or
            ``"none"``.
        zero_infinity: whether a target that is too long for its sequence has no loss, instead of an infinite
            one.

    Shapes:
        log_probs ``[steps, batch, num_classes]`` or ``[steps, num_classes]``; targets, int64 or int32,
        ``[batch, longest]``, or all one after the other, ``[total]``; lengths, int64, ``[batch]`` or ``[]``;
        output ``[]``, with ``"none"`` the lengths' shape.

    Raises:
        InputIndexError: `blank` is not a class or, on the CPU, a label, where torch reads any memory.
        InputRuntimeError: labels or lengths that are not integers.
        InputValueError: on the CPU: a length that is longer than the sequence, a label that is the blank, or
            logits instead of log-probabilities.
        ShapeError: targets or lengths do not fit the batch.

    Graves et al., 2006. As in torch, steps come first: for ``[batch, steps, num_classes]`` pass
    ``log_probs.transpose(0, 1)``. Where a compiler records it, the recursion is written out, a few ops for
    each step, of targets ``[batch, longest]``.

    >>> log_probs = torch.zeros(4, 1, 3).log_softmax(2)
    >>> Ctc()(log_probs, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]))
    tensor(0.8432)
    """

    blank: int
    reduction: str
    zero_infinity: bool

    def __init__(
        self, blank: int = 0, reduction: checks.Reduction = "mean", zero_infinity: bool = False
    ) -> None:
        is_class = isinstance(blank, int) and not isinstance(blank, bool) and blank >= 0
        require(is_class, "Ctc", "blank", "a class, an integer of at least 0", repr(blank))
        super().__init__(blank, checks.known_reduction(self, reduction), zero_infinity)

    def forward(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor | Sequence[int],
        target_lengths: Tensor | Sequence[int],
    ) -> Tensor:
        """Return the loss of log-probabilities ``[steps, batch, num_classes]``; see the class."""
        input_lengths, target_lengths = torch.as_tensor(input_lengths), torch.as_tensor(target_lengths)
        self._check_shapes(log_probs, targets, input_lengths, target_lengths)
        self._check_dtypes(log_probs, targets, input_lengths, target_lengths)
        if log_probs.is_cpu and checks.has_values(log_probs):
            self._check_values(log_probs, targets, input_lengths, target_lengths)
        if checks.has_values(log_probs) or targets.dim() < log_probs.dim() - 1:
            # torch has it for float32 and float64 only.
            x = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
            return super().forward(x, targets, input_lengths, target_lengths).to(log_probs.dtype)
        if log_probs.dim() == 2:
            added = log_probs.unsqueeze(1), targets.unsqueeze(0), input_lengths[None], target_lengths[None]
            losses = self._losses(*added).squeeze(0)
        else:
            losses = self._losses(log_probs, targets, input_lengths, target_lengths)
        if self.reduction == "mean":
            return (losses / target_lengths.clamp_min(1)).mean()
        return losses if self.reduction == "none" else losses.sum()

    def _losses(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """Return the losses ``[batch]``, by the recursion over steps of the paper's section 4.1."""
        steps = log_probs.shape[0]
        probs = log_probs.to(torch.promote_types(log_probs.dtype, torch.float32))
        # The labels with a blank before, between and after them; blanks instead of padding.
        positions = torch.arange(2 * targets.shape[1] + 1, device=targets.device)
        is_label = positions[: targets.shape[1]] < target_lengths.unsqueeze(1)
        targets = torch.where(is_label, targets.long(), self.blank)
        pairs = torch.stack([torch.full_like(targets, self.blank), targets], 2).flatten(1)
        labels = F.pad(pairs, (0, 1), value=self.blank)
        # A blank may be skipped between two different labels; what is two before a blank is a blank.
        can_skip = labels != F.pad(labels, (2, -2), value=self.blank)
        emitted = probs.gather(2, labels.expand(steps, -1, -1))
        alpha = torch.where(positions < 2, emitted[0], _NEVER)
        alpha = torch.where(input_lengths.unsqueeze(1) > 0, alpha, torch.where(positions == 0, 0.0, _NEVER))
        for t in range(1, steps):
            before = F.pad(alpha, (1, -1), value=_NEVER)
            skipped = torch.where(can_skip, F.pad(alpha, (2, -2), value=_NEVER), _NEVER)
            now = torch.stack([alpha, before, skipped]).logsumexp(0) + emitted[t]
            alpha = torch.where(t < input_lengths.unsqueeze(1), now, alpha)
        last = (2 * target_lengths).long().unsqueeze(1)
        ends_in_label = alpha.gather(1, (last - 1).clamp_min(0))
        ends = torch.logaddexp(alpha.gather(1, last), torch.where(last > 0, ends_in_label, _NEVER))
        # torch's gradient assumes that a log-softmax comes before. With these sums, 0, it is the same here.
        is_step = torch.arange(steps, device=probs.device).unsqueeze(1) < input_lengths
        sums = probs.logsumexp(2)
        losses = torch.where(is_step, sums - sums.detach(), 0.0).sum(0) - ends.squeeze(1)
        is_impossible = losses > -_NEVER / 2
        losses = losses.masked_fill(is_impossible, 0.0 if self.zero_infinity else float("inf"))
        return losses.to(log_probs.dtype)

    def _check_shapes(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> None:
        batch = tuple(log_probs.shape[1:-1])
        if log_probs.dim() not in (2, 3):
            expected: object = "log_probs [steps, batch, num_classes] or [steps, num_classes]"
            found: object = tuple(log_probs.shape)
        elif (lengths := (tuple(input_lengths.shape), tuple(target_lengths.shape))) != (batch, batch):
            expected, found = f"lengths of shape {batch}", f"{lengths[0]} and {lengths[1]}"
        elif targets.dim() != 1 and (targets.dim() != 2 or tuple(targets.shape[:1]) != batch):
            expected = f"targets of shape {(*batch, 'longest')} or ('total',)".replace("'", "")
            found = tuple(targets.shape)
        else:
            return
        raise ShapeError(
            "the arguments do not fit each other",
            where=type(self).__name__,
            expected=expected,
            found=found,
            hint="steps come before the batch: log_probs.transpose(0, 1)?"
            if log_probs.dim() == 3 and input_lengths.shape == log_probs.shape[:1] != log_probs.shape[1:2]
            else None,
        )

    def _check_dtypes(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> None:
        checks.floating(self, log_probs=log_probs)
        checks.label_dtype(self, targets, (torch.int64, torch.int32, torch.uint8), "targets.long()")
        for name, lengths in {"input_lengths": input_lengths, "target_lengths": target_lengths}.items():
            if lengths.is_floating_point():
                raise InputRuntimeError(
                    "lengths are integers",
                    where=type(self).__name__,
                    expected=f"{name} of dtype int64",
                    found=f"{lengths.dtype} {tuple(lengths.shape)}",
                    hint="of shares of the steps: (share * steps).long()",
                )
        if self.blank >= log_probs.shape[-1]:
            raise InputIndexError(
                "the blank is not a class",
                where=type(self).__name__,
                expected=f"a blank from 0 to {log_probs.shape[-1] - 1}, for {log_probs.shape[-1]} classes",
                found=self.blank,
            )

    def _check_values(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
    ) -> None:
        limits = {"input_lengths": (input_lengths, log_probs.shape[0])}
        if targets.dim() == 2 or log_probs.dim() == 2:
            limits["target_lengths"] = target_lengths, targets.shape[-1]
        for name, (lengths, limit) in limits.items():
            if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= limit:
                raise InputValueError(
                    f"{name} are out of range",
                    where=type(self).__name__,
                    expected=f"0 to {limit}",
                    found=f"{int(lengths.min())} to {int(lengths.max())}",
                )
        if targets.dim() == 2:
            targets = targets[torch.arange(targets.shape[1]) < target_lengths.unsqueeze(1)]
        checks.labels(self, log_probs.flatten(0, -2), targets)
        if (targets == self.blank).any():
            raise InputValueError(
                "a label is the blank, which stands between labels",
                where=type(self).__name__,
                expected=f"labels other than {self.blank}",
                found=f"{int((targets == self.blank).sum())} of {targets.numel()} labels are {self.blank}",
                hint=f"number the labels without {self.blank}, or name another class by blank=; "
                "padding beyond target_lengths does not count",
            )
        if log_probs.numel() and (largest := float(log_probs.detach().max())) > 1e-2:  # up to rounding
            raise InputValueError(
                "the input is not a logarithm of probabilities",
                where=type(self).__name__,
                expected="log_probs of at most 0",
                found=f"log_probs up to {largest:g}",
                hint="of logits: log_probs.log_softmax(-1); of probabilities: log_probs.log()",
            )
