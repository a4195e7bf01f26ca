"""What decoders share: `Decoder`, which generates text with a key-value cache, and the last token of a text.

Axes: B sequences, L tokens of the longest prompt, N new tokens of the longest answer, V the vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from burnt import nn
from burnt._torch import restored_modes
from burnt.errors import InputIndexError, InputTypeError, InputValueError, ShapeError, UnsupportedError
from burnt.models.layer import PreNormLayer
from burnt.models.pretrained import Pretrained, PretrainedConfig, check_padding

_C = TypeVar("_C", bound=PretrainedConfig)

Prompts: TypeAlias = Tensor | Sequence[int] | Sequence[Sequence[int]]
Stop: TypeAlias = int | Sequence[int | Sequence[int]]


@dataclass(frozen=True, eq=False)
class Generation:
    """The new tokens of a batch.

    Args:
        tokens: integers ``[B, N]``, without the prompts; the pad token follows the end of a sequence.
        lengths: ``[B]``, integers: the number of new tokens of each sequence, those that stopped it included.
        stopped_by: the tokens that stopped each sequence; None where it was `max_new_tokens`.
    """

    tokens: Tensor
    lengths: Tensor
    stopped_by: tuple[tuple[int, ...] | None, ...]

    def sequences(self, *, with_stop: bool = False) -> list[list[int]]:
        """Return the new tokens of each sequence as a list, without padding, for a tokenizer to decode.

        Args:
            with_stop: include the tokens that stopped the sequence.
        """
        ends = [
            length - len(stop if stop and not with_stop else ())
            for length, stop in zip(self.lengths.tolist(), self.stopped_by, strict=True)
        ]
        return [row[:end] for row, end in zip(self.tokens.tolist(), ends, strict=True)]


class Decoder(Pretrained[_C], init=False):
    """Base of the models that predict the next token.

    Their Configs have `vocab_size`, `max_len` and `head`; their `forward` takes tokens, ``padding=``,
    ``cache=`` and ``last=``.
    """

    HEADS = ("head",)

    embedding: nn.Embedding
    layers: list[PreNormLayer]
    norm: nn.LayerNorm | nn.RmsNorm
    head: nn.Linear | None

    def _add_head(self) -> None:
        """Add the head of the Config and fill the weights; a tied head for logits has the embedding's."""
        c: Any = self.config
        outputs = {"lm": c.vocab_size, "classification": c.num_classes}
        self.head = None if c.head is None else nn.Linear(c.d_model, outputs[c.head], bias=False)
        self._initialize(c.init_std)
        if self.head is not None and c.head == "lm" and c.tied:
            self.head.weight = self.embedding.weight

    def _output(self, x: Tensor, padding: Tensor | None, last: bool) -> Tensor:
        """Return what `forward` does for the vectors of the last layer."""
        config: Any = self.config
        if config.head == "classification":
            x = last_of_each(x, padding)
        elif last:
            x = x[:, -1:]
        x = self.norm(x)
        logits: Tensor = x if self.head is None else self.head(x)
        return logits

    def new_cache(self, max_len: int | None = None) -> list[nn.KeyValueCache]:
        """Return empty caches, one for each layer, for `forward`.

        Args:
            max_len: number of tokens to allocate memory for; None grows with each step, and lets gradients
                through.
        """
        return [nn.KeyValueCache(max_len) for _ in self.layers]

    def generate(
        self,
        prompts: Prompts,
        max_new_tokens: int,
        *,
        padding: Tensor | None = None,
        stop: Stop | None = None,
        min_new_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        pad_token: int | None = None,
    ) -> Generation:
        """Continue prompts, each until it meets a stop token or has `max_new_tokens` new tokens.

        The most probable token is taken each time (greedy decoding), unless `temperature` is positive. No
        gradients are recorded; a model in train mode is in eval mode meanwhile.

        Args:
            prompts: integers ``[B, L]``, or lists of ids of any lengths; one prompt may come without B.
            max_new_tokens: the most new tokens of a sequence.
            padding: booleans ``[B, L]``, True at tokens of a tensor to ignore, on any side.
            stop: token ids that end a sequence, or lists of ids that do so in this order. None is
                ``eos_token_id`` of the snapshot's ``generation_config.json``, or else of its ``config.json``;
                ``()`` is nothing.
            min_new_tokens: nothing ends a sequence that has fewer; single stop tokens are not chosen before.
            temperature: draw tokens by their probabilities, after the logits were divided by this; 0 takes
                the most probable one.
            top_k: draw among the most probable `top_k` tokens.
            top_p: draw among the most probable tokens that together have this probability.
            repetition_penalty: divides the positive and multiplies the negative logits of tokens that are in
                the prompt or were generated.
            seed: seed of the draws. Sequence i has its own generator, seeded with ``seed + i``, so its tokens
                do not depend on the rest of the batch. None takes one from torch's global generator.
            pad_token: what follows the end of a sequence. None is ``pad_token_id`` of the snapshot, or else
                the first stop token, or 0.

        Returns:
            the new tokens, without the prompts (unlike transformers), and what stopped them.

        Raises:
            InputValueError: an argument is out of range, or a prompt is empty.
            InputIndexError: an id is outside the vocabulary.
            InputTypeError: ids are not integers, or padding is not boolean.
            ShapeError: the new tokens would exceed the Config's `max_len`, or a tensor has the wrong shape.
            UnsupportedError: the model has no head ``"lm"``.

        `top_k` is applied before `top_p`, and both after `temperature`, as in transformers. Keskar et al.,
        2019 (repetition penalty); Holtzman et al., 2020 (top-p).

        >>> from burnt.models import Gpt2Config
        >>> model = Gpt2Config(vocab_size=50, max_len=16, d_model=8, num_layers=2, num_heads=2).init()
        >>> answers = model.generate([[3, 14, 15], [9]], max_new_tokens=5, temperature=0.8, top_p=0.9, seed=1)
        >>> answers.tokens.shape, answers.lengths
        (torch.Size([2, 5]), tensor([5, 5]))
        """
        return self.stream(
            prompts,
            max_new_tokens,
            padding=padding,
            stop=stop,
            min_new_tokens=min_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            pad_token=pad_token,
        ).result()

    def stream(
        self,
        prompts: Prompts,
        max_new_tokens: int,
        *,
        padding: Tensor | None = None,
        stop: Stop | None = None,
        min_new_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        pad_token: int | None = None,
    ) -> TokenStream:
        """Continue prompts step by step: an iterator over the tokens that `generate` returns.

        Each step is a list of the next token of each sequence, None where it has ended. A step is computed
        when it is asked for, so that leaving the loop stops the computation.

        Arguments and errors are as in `generate`.

        >>> from burnt.models import Gpt2Config
        >>> model = Gpt2Config(vocab_size=50, max_len=16, d_model=8, num_layers=2, num_heads=2).init()
        >>> for (token,) in model.stream([3, 14, 15], max_new_tokens=5):
        ...     assert 0 <= token < 50
        """
        config: Any = self.config
        if config.head != "lm":
            raise UnsupportedError(
                "the model has no head that predicts tokens",
                where=type(self).__name__,
                expected="head='lm'",
                found=f"head={config.head!r}",
            )
        for name, fits, expected, found in (
            ("max_new_tokens", max_new_tokens >= 1, "1 or more", max_new_tokens),
            ("min_new_tokens", 0 <= min_new_tokens <= max_new_tokens, "0 to max_new_tokens", min_new_tokens),
            ("temperature", 0 <= temperature < float("inf"), "0 (the most probable) or more", temperature),
            ("top_k", top_k is None or top_k >= 1, "1 or more, or None", top_k),
            ("top_p", top_p is None or 0 < top_p <= 1, "above 0, at most 1, or None", top_p),
            ("repetition_penalty", repetition_penalty > 0, "above 0; 1 is none", repetition_penalty),
        ):
            if not fits:
                raise InputValueError(
                    f"{name} is out of range", where=type(self).__name__, expected=expected, found=found
                )
        if temperature == 0 and (top_k is not None or top_p is not None):
            raise InputValueError(
                "top_k and top_p are for tokens that are drawn",
                where=type(self).__name__,
                found="temperature=0, which takes the most probable token",
                hint="temperature=1.0",
            )
        device = next(self.parameters()).device
        tokens, hidden = left_padded(prompts, padding, config.vocab_size, device)
        _check_length(self, tokens.shape[1], max_new_tokens)
        stops = _default_stops(self) if stop is None else _stops(stop, config.vocab_size)
        if pad_token is None:
            pad_token = _special_token(self, "pad_token_id")
        if pad_token is None:
            pad_token = stops[0][0] if stops else 0
        if seed is None and temperature > 0:
            seed = int(torch.randint(1 << 62, ()))
        sampler = Sampler(temperature, top_k, top_p, repetition_penalty, seed)
        cache = self.new_cache(tokens.shape[1] + max_new_tokens - 1)
        limits = min_new_tokens, max_new_tokens
        return TokenStream(self, tokens, hidden, cache, limits, stops, sampler, pad_token)


def filter_logits(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Divide logits ``[..., V]`` by a temperature and set improbable tokens' logits to minus infinity, in
    float32.

    The `top_k` largest stay, and those equal to the smallest of these; of `top_p` the fewest of the largest
    that together have this probability, at least one.

    >>> filter_logits(torch.tensor([1.0, 4.0, 3.0]), top_k=2)
    tensor([-inf, 4., 3.])
    """
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = logits.topk(top_k).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    if top_p is not None and top_p < 1:
        ascending, order = logits.sort(dim=-1)
        improbable = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
        improbable[..., -1] = False
        logits = logits.masked_fill(improbable.scatter(-1, order, improbable), float("-inf"))
    return logits


@dataclass
class Sampler:
    """Chooses a token for each sequence; arguments as in `Decoder.generate`."""

    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    seed: int | None

    def start(self, tokens: Tensor, vocab_size: int) -> None:
        """Prepare for a batch of prompts ``[B, L]``, whose padding repeats some of their tokens."""
        batch, device = tokens.shape[0], tokens.device
        self._seen: Tensor | None = None
        if self.repetition_penalty != 1:
            none = torch.zeros(batch, vocab_size, dtype=torch.bool, device=device)
            self._seen = none.scatter(1, tokens, True)
        self._generators: list[torch.Generator] = []
        if self.seed is not None:
            self._generators = [torch.Generator(device).manual_seed(self.seed + i) for i in range(batch)]

    def choose(self, logits: Tensor, forbidden: list[int]) -> Tensor:
        """Return a token for each row of ``[B, V]``: integers ``[B, 1]``."""
        if self._seen is not None:
            penalty = self.repetition_penalty
            penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits = torch.where(self._seen, penalised, logits)
        if forbidden:
            logits[:, forbidden] = float("-inf")
        if self.temperature == 0:
            tokens = logits.argmax(-1, keepdim=True)
        else:
            kept = filter_logits(logits, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
            rows = zip(kept.softmax(-1), self._generators, strict=True)
            tokens = torch.stack([torch.multinomial(row, 1, generator=own) for row, own in rows])
        if self._seen is not None:
            self._seen.scatter_(1, tokens, True)
        return tokens


class TokenStream(Iterator[list[int | None]]):
    """The steps of a generation, which are computed as they are asked for; made by `Decoder.stream`.

    Each is a list of the next token of each sequence, None where it has ended.
    """

    def __init__(
        self,
        model: Pretrained[Any],
        tokens: Tensor,
        padding: Tensor | None,
        cache: list[nn.KeyValueCache],
        limits: tuple[int, int],
        stops: list[tuple[int, ...]],
        sampler: Sampler,
        pad_token: int,
    ) -> None:
        self._model = model
        self._tokens = tokens  # the next ones to be read by the model
        self._cache = cache
        self._min_new_tokens, self._max_new_tokens = limits
        self._stops = stops
        self._pad_token = pad_token
        self._rows: list[list[int]] = [[] for _ in tokens]
        self._stopped_by: list[tuple[int, ...] | None] = [None] * len(tokens)
        self._num_steps = 0
        self._padding = None
        if padding is not None:
            self._padding = torch.nn.functional.pad(padding, (0, self._max_new_tokens - 1), value=False)
        self._sampler = sampler
        sampler.start(tokens, model.config.vocab_size)

    @torch.no_grad()
    def __next__(self) -> list[int | None]:
        """Compute the next token of each sequence.

        Raises:
            StopIteration: all sequences have ended.
        """
        if self._num_steps == self._max_new_tokens or None not in self._stopped_by:
            self._cache = []  # frees its memory
            raise StopIteration
        early = self._num_steps < self._min_new_tokens
        forbidden = [stop[0] for stop in self._stops if len(stop) == 1] if early else []
        with restored_modes(self._model) if self._model.training else contextlib.nullcontext():
            logits = self._read(self._tokens)
        self._tokens = self._sampler.choose(logits, forbidden)
        self._num_steps += 1
        return [self._take(row, token) for row, token in enumerate(self._tokens[:, 0].tolist())]

    def result(self) -> Generation:
        """Compute the steps that are left, and return the tokens of all."""
        for _ in self:
            pass
        longest = max(map(len, self._rows))
        padded = [row + [self._pad_token] * (longest - len(row)) for row in self._rows]
        device = self._tokens.device
        lengths = torch.tensor([len(row) for row in self._rows], device=device)
        return Generation(torch.tensor(padded, device=device), lengths, tuple(self._stopped_by))

    def _read(self, tokens: Tensor) -> Tensor:
        """Return the logits after the last of these tokens: float32 ``[B, V]``."""
        if self._model.training:
            self._model.eval()
        length = self._cache[0].length + tokens.shape[1]
        padding = None if self._padding is None else self._padding[:, :length]
        logits: Tensor = self._model(tokens, padding=padding, cache=self._cache, last=True)[:, -1]
        return logits.float()

    def _take(self, row: int, token: int) -> int | None:
        """Add a token to a sequence, and find out whether it ends there."""
        if self._stopped_by[row] is not None:
            return None
        tokens = self._rows[row]
        tokens.append(token)
        if len(tokens) > self._min_new_tokens:
            ends = (stop for stop in self._stops if tuple(tokens[-len(stop) :]) == stop)
            self._stopped_by[row] = next(ends, None)
        return token


def last_of_each(x: Tensor, padding: Tensor | None) -> Tensor:
    """Return the vector of each sequence's last token that is not padding: ``[B, L, E]`` to ``[B, E]``."""
    if padding is None:
        return x[:, -1]
    length = x.shape[1]
    positions = torch.arange(length, device=x.device)
    last = (positions * ~padding[:, -length:]).argmax(1)
    return x[torch.arange(len(x), device=x.device), last]


def left_padded(
    prompts: Prompts, padding: Tensor | None, vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return prompts as a tensor ``[B, L]`` that ends with the last token of each, and its padding.

    Padding repeats the last token; without any, its mask is None. Errors are as in `Decoder.generate`.
    """
    has_padding = padding is not None
    if not isinstance(prompts, Tensor):
        if has_padding:
            raise InputValueError(
                "padding is for prompts in one tensor", where="prompts", found="lists, which have none"
            )
        rows = [_as_tensor(row) for row in _as_lists(prompts)]
        lengths = torch.tensor([len(row) for row in rows])
        prompts = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padding = nn.length_mask(lengths, prompts.shape[1])
    elif prompts.dim() == 1:
        prompts, padding = prompts[None], None if padding is None else padding.reshape(1, -1)
    if prompts.dim() != 2 or (padding is not None and padding.shape != prompts.shape):
        raise ShapeError(
            "prompts and their padding are a batch of sequences",
            where="prompts",
            expected="[batch, length], both",
            found=tuple(prompts.shape) if padding is None else f"{(*prompts.shape,)} and {(*padding.shape,)}",
        )
    if prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool:
        raise InputTypeError(
            "prompts are token ids", where="prompts", expected="integers", found=str(prompts.dtype)
        )
    check_padding(padding, "padding")
    tokens = prompts.to(device, torch.int64)
    hidden = torch.zeros_like(tokens, dtype=torch.bool) if padding is None else padding.to(device)
    lengths = (~hidden).sum(1)
    if not tokens.numel() or not lengths.all():
        raise InputValueError(
            "a prompt is empty",
            where="prompts" if not tokens.numel() else f"prompts[{int(lengths.argmin())}]",
            expected="at least one token",
            hint="padding is True at tokens to ignore, unlike transformers' attention_mask"
            if has_padding
            else "start with the tokenizer's token for the beginning of a text",
        )
    order = (~hidden).int().argsort(dim=1, stable=True)[:, -int(lengths.max()) :]
    tokens, hidden = tokens.gather(1, order), hidden.gather(1, order)
    tokens = torch.where(hidden, tokens[:, -1:], tokens)
    smallest, largest = int(tokens.min()), int(tokens.max())
    _check_ids("prompts", smallest, largest, vocab_size)
    return tokens, hidden if bool(hidden.any()) else None


def _as_lists(prompts: Any) -> list[Any]:
    rows = [prompts] if isinstance(prompts, str) else list(prompts)
    return rows if rows and not isinstance(rows[0], int) else [rows]


def _as_tensor(row: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError):
        tensor = torch.zeros(())
    if not tensor.numel() and tensor.dim() == 1:
        return tensor.long()
    if tensor.dim() != 1 or tensor.is_floating_point():
        hint = None
        if isinstance(row, str):
            hint = "model.generate([tokenizer.encode(text)], ...)"
        elif isinstance(row, Tensor) and row.dim() == 2:
            hint = "tokens, padding = tokenizer.batch(texts); model.generate(tokens, padding=padding, ...)"
        raise InputTypeError(
            "prompts are token ids",
            where="prompts",
            expected="integers [batch, length], or lists of integers",
            found=f"a tensor {(*row.shape,)}" if isinstance(row, Tensor) else repr(row)[:80],
            hint=hint,
        )
    return tensor


def _special_token(model: Pretrained[Any], key: str) -> Any:
    """Return what a snapshot says of a special token: an id, several, or None."""
    return model.generation_config.get(key, model.config.other.get(key))


def _default_stops(model: Pretrained[Any]) -> list[tuple[int, ...]]:
    eos = _special_token(model, "eos_token_id")
    ids = [] if eos is None else [eos] if isinstance(eos, int) else eos
    # An id outside of the vocabulary, as by default in the config of a small model, is never generated.
    return [(token,) for token in ids if 0 <= token < model.config.vocab_size]


def _stops(stop: Any, vocab_size: int) -> list[tuple[int, ...]]:
    """Return each stop as the tuple of its tokens."""
    entries: Iterable[Any] = [stop] if isinstance(stop, int) else stop
    stops = [(entry,) if isinstance(entry, int) else tuple(entry) for entry in entries]
    for tokens in stops:
        if not tokens or not all(isinstance(token, int) for token in tokens):
            raise InputTypeError(
                "stop has token ids, and lists of them",
                where="stop",
                expected="integers, such as stop=[2, [13, 13]]",
                found=repr(stop),
            )
        _check_ids("stop", min(tokens), max(tokens), vocab_size)
    return stops


def _check_ids(where: str, smallest: int, largest: int, vocab_size: int) -> None:
    if smallest < 0 or largest >= vocab_size:
        raise InputIndexError(
            "an id is outside the vocabulary",
            where=where,
            expected=f"0 to {vocab_size - 1}",
            found=smallest if smallest < 0 else largest,
            hint="is the tokenizer that of another model?"
            if smallest >= 0
            else "mark padding by padding=tokens < 0",
        )


def _check_length(model: Pretrained[Any], length: int, max_new_tokens: int) -> None:
    longest = model.config.max_len
    if length + max_new_tokens > longest:
        left = longest - length
        raise ShapeError(
            "the prompt is too long" if left < 1 else "prompt and new tokens are too long",
            where=type(model).__name__,
            expected=f"at most max_len={longest} tokens",
            found=f"{length} of the prompt, and max_new_tokens={max_new_tokens}",
            hint=f"max_new_tokens={left}" if left >= 1 else "shorten the prompt",
        )
