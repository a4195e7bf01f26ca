"""Tokenizers of Hugging Face's snapshots: text to the tensors that the models take, and back.

The `tokenizers` library does the work. Chat templates are left out: they are programs in the snapshot.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from burnt.errors import (
    InputIndexError,
    InputTypeError,
    InputValueError,
    RecordError,
    ShapeError,
    UnsupportedError,
)
from burnt.models.pretrained import TOKENIZER_FILES, find_folder, read_json

if TYPE_CHECKING:
    import tokenizers


Side: TypeAlias = Literal["left", "right"]

_SPECIAL = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_CLASSES = {
    "Bert": {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    "GPT2": {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"},
    "Roberta": {
        "bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>",
        "mask": "<mask>",
    },
}  # fmt: skip
"""Classes of transformers whose tokenizers are built without ``tokenizer.json``, and their special tokens."""


class Tokenizer:
    """Turns text into token ids, and token ids into text.

    Args:
        tokenizer: one of the `tokenizers` library.
        special: the names of special tokens (``"bos"``, ``"eos"``, ``"pad"``, ...) and their text.
        padding_side: where `batch` pads by default.
        truncation_side: where longer texts are cut.

    >>> import tokenizers
    >>> words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "hello": 1, "world": 2}))
    >>> words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> tokenizer = Tokenizer(words, special={"pad": "[PAD]"})
    >>> tokenizer.encode("hello world")
    [1, 2]
    >>> tokens, padding = tokenizer.batch(["hello world", "world"])
    >>> tokens.tolist(), padding.tolist()
    ([[1, 2], [2, 0]], [[False, False], [False, True]])
    >>> tokenizer.decode(tokens[0])
    'hello world'
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        *,
        special: Mapping[str, str] | None = None,
        padding_side: Side = "right",
        truncation_side: Side = "right",
    ) -> None:
        tokenizer.no_padding()  # `batch` does both: the settings of a tokenizer hold for all of its callers
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._names = dict(special or {})
        self._padding_side: Side = padding_side
        self._truncation_side: Side = truncation_side
        self._folder: Path | None = None

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], *, download: bool = False, revision: str | None = None
    ) -> Tokenizer:
        """Read the tokenizer of a snapshot.

        It is read from ``tokenizer.json``; without one, BERT's is from ``vocab.txt``, GPT-2's and RoBERTa's
        from ``vocab.json`` and ``merges.txt``. ``tokenizer_config.json`` and ``special_tokens_map.json`` say
        what the special tokens are.

        Args:
            source: a folder; with `download`, a name on the Hugging Face Hub.
            download: fetch the files from the Hub, as in `Pretrained.from_pretrained`.
            revision: branch, tag or commit of the snapshot to download.

        Raises:
            UnsupportedError: `tokenizers` is not installed, or the snapshot has a tokenizer of another kind.
            RecordError: there is no such folder or repository, or its tokenizer is damaged.
            ConfigError: ``tokenizer_config.json`` is damaged.
        """
        folder = find_folder(source, download=download, revision=revision, weights=False)
        config, named = _read_config(folder)
        tokenizer, kind = _read_tokenizer(folder, config)
        special = {**_CLASSES.get(kind, {}), **named}
        _add_tokens(tokenizer, config, special)
        own = cls(
            tokenizer,
            special=special,
            padding_side=config.get("padding_side", "right"),
            truncation_side=config.get("truncation_side", "right"),
        )
        own._set_template(kind, config)
        own._folder = folder
        return own

    def __len__(self) -> int:
        """Return the number of tokens, those that were added to the vocabulary included."""
        return self._tokenizer.get_vocab_size()

    def __repr__(self) -> str:
        special = ", ".join(f"{name}={text!r}" for name, text in self._names.items())
        return f"Tokenizer({len(self):,} tokens, {special})"

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens by name: ``tokenizer.special_ids["eos"]``."""
        ids = {name: self._tokenizer.token_to_id(text) for name, text in self._names.items()}
        return {name: number for name, number in ids.items() if number is not None}

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, max_len: int | None = None
    ) -> list[int]:
        """Return the token ids of a text, or of a pair of texts.

        Args:
            text: the text to encode.
            pair: the second text, such as the context of a question.
            special: add special tokens as the model expects them, such as BERT's ``[CLS]`` and ``[SEP]``.
            max_len: leave out tokens beyond this number; of a pair the longer text's first.

        Raises:
            InputTypeError: the text is not a str.
            InputValueError: `max_len` is less than the number of special tokens, or the vocabulary has
                neither a token for a part of the text nor one for unknown parts.
        """
        return self._encode([text], None if pair is None else [pair], special, max_len)[0][0]

    def batch(
        self,
        texts: Sequence[str],
        *,
        side: Side | None = None,
        special: bool = True,
        max_len: int | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the token ids of several texts, padded to the longest.

        Args:
            texts: the B texts to encode.
            side: where padding is; None is what ``tokenizer_config.json`` says, or else right. Generation by
                any model works with both, and is a little faster with ``"left"``.
            special: add special tokens, as in `encode`.
            max_len: leave out tokens beyond this number, as in `encode`.
            device: device of the tensors.

        Returns:
            tokens ``[B, L]``, int64; padding ``[B, L]``, bool, True at tokens to ignore. These are pad
            tokens, or others where a tokenizer has none.

        Raises:
            InputTypeError, InputValueError: as in `encode`.
        """
        tokens, _, padding = self._tensors(texts, None, side, special, max_len, device)
        return tokens, padding

    def batch_pairs(
        self,
        texts: Sequence[str],
        pairs: Sequence[str],
        *,
        side: Side | None = None,
        special: bool = True,
        max_len: int | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the token ids of several pairs of texts: for ``Bert(tokens, segments=, padding=)``.

        Args:
            texts: the first text of each of B pairs.
            pairs: the second text of each pair.
            side: where padding is, ``"left"`` or ``"right"``; None as in `batch`.
            special: add special tokens, as in `encode`.
            max_len: leave out tokens beyond this number, as in `encode`.
            device: device of the tensors.

        Returns:
            tokens, segments and padding, each ``[B, L]``: segments are 0 for the first text and 1 for the
            second where the model distinguishes them, as BERT does and RoBERTa does not.

        Raises:
            InputTypeError, InputValueError: as in `encode`, or there are more of one than of the other.
        """
        if len(texts) != len(pairs):
            raise InputValueError(
                "each text needs a second one",
                where="Tokenizer.batch_pairs",
                expected=f"{len(texts)} pairs",
                found=len(pairs),
            )
        return self._tensors(texts, pairs, side, special, max_len, device)

    def decode(self, tokens: Sequence[int] | Tensor, *, special: bool = False) -> str:
        """Return the text of tokens.

        Args:
            tokens: ids, or a tensor ``[L]``. Ids beyond the vocabulary have no text.
            special: whether to include special tokens.

        Raises:
            InputIndexError: an id is negative.
            InputTypeError: it is a text.
            ShapeError: a tensor has not one axis.
        """
        given: object = tokens
        if isinstance(given, str):
            raise InputTypeError(
                "tokens are ids", where="Tokenizer.decode", expected="a list of ids", found=repr(given)[:80]
            )
        if isinstance(tokens, Tensor) and tokens.dim() != 1:
            raise ShapeError(
                "the tokens of one text are decoded at a time",
                where="Tokenizer.decode",
                expected="[L]",
                found=tuple(tokens.shape),
                hint="[tokenizer.decode(row) for row in tokens]",
            )
        ids = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        if min(ids, default=0) < 0:
            raise InputIndexError(
                "a token id is negative", where="Tokenizer.decode", expected="ids from 0", found=min(ids)
            )
        return self._tokenizer.decode(ids, skip_special_tokens=not special)

    def stream(self, *, special: bool = False) -> TextStream:
        """Return a decoder for tokens that come one after the other, as from ``model.stream``.

        Args:
            special: whether to include special tokens.
        """
        return TextStream(self, special)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Copy the files of the tokenizer to a folder, such as one that a model was saved to.

        Those of a tokenizer that was not read from a snapshot are ``tokenizer.json`` and
        ``tokenizer_config.json``.

        Args:
            folder: is created if its parent exists.

        Raises:
            OSError: the folder cannot be written, or the files that were read do not exist any more.
        """
        target = Path(folder)
        target.mkdir(exist_ok=True)
        if self._folder is None:
            self._tokenizer.save(str(target / "tokenizer.json"))
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "padding_side": self._padding_side,
                "truncation_side": self._truncation_side,
                **{f"{name}_token": text for name, text in self._names.items()},
            }
            (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
            return
        for name in TOKENIZER_FILES:
            source = self._folder / name
            if source.exists() and not ((target / name).exists() and source.samefile(target / name)):
                shutil.copyfile(source, target / name)

    def _set_template(self, kind: str, config: Mapping[str, Any]) -> None:
        """Set which special tokens are put around a text, where ``tokenizer.json`` does not say it."""
        from tokenizers import processors

        ids, names = self.special_ids, self._names
        if kind in ("Bert", "Roberta"):
            cls, sep = (names["cls"], ids["cls"]), (names["sep"], ids["sep"])
            space = config.get("add_prefix_space", False)
            self._tokenizer.post_processor = (
                processors.BertProcessing(sep, cls)
                if kind == "Bert"
                else processors.RobertaProcessing(sep, cls, True, space)
            )
        elif self._tokenizer.post_processor is None or config.keys() & {"add_bos_token", "add_eos_token"}:
            used = [name for name in ("bos", "eos") if config.get(f"add_{name}_token") and name in ids]

            def around(text: str, segment: int) -> str:
                start = [names["bos"]] if "bos" in used else []
                end = [names["eos"]] if "eos" in used else []
                return " ".join(f"{token}:{segment}" for token in (*start, text, *end))

            self._tokenizer.post_processor = processors.TemplateProcessing(
                single=around("$A", 0),
                pair=f"{around('$A', 0)} {around('$B', 1)}",
                special_tokens=[(names[name], ids[name]) for name in used],
            )

    def _tensors(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        side: Side | None,
        special: bool,
        max_len: int | None,
        device: torch.device | str | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        side = side or self._padding_side
        if side not in ("left", "right"):
            raise InputValueError(
                "padding has two sides", where="side", expected="'left' or 'right'", found=repr(side)
            )
        rows = self._encode(texts, pairs, special, max_len)
        length = max((len(ids) for ids, _ in rows), default=0)
        known = self.special_ids
        fill = known.get("pad", known.get("eos", 0))
        tokens = torch.full((len(rows), length), fill, dtype=torch.int64)
        segments = torch.zeros((len(rows), length), dtype=torch.int64)
        padding = torch.ones((len(rows), length), dtype=torch.bool)
        for row, (ids, types) in enumerate(rows):
            place = slice(0, len(ids)) if side == "right" else slice(length - len(ids), length)
            tokens[row, place] = torch.tensor(ids, dtype=torch.int64)
            segments[row, place] = torch.tensor(types, dtype=torch.int64)
            padding[row, place] = False
        return tokens.to(device), segments.to(device), padding.to(device)

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, special: bool, max_len: int | None
    ) -> list[tuple[list[int], list[int]]]:
        """Return ids and segments of each text."""
        for given in (texts, pairs or ()):
            if isinstance(given, str):
                raise InputTypeError(
                    "this is not a list of texts", where="Tokenizer", expected="a list of str", found="str"
                )
            for text in given:
                if not isinstance(text, str):
                    raise InputTypeError(
                        "this is not text", where="Tokenizer", expected="str", found=type(text).__name__
                    )
        inputs: list[Any] = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        try:
            if max_len is None:
                encoded = self._tokenizer.encode_batch(inputs, add_special_tokens=special)
            else:
                encoded = self._encode_truncated(texts, pairs, special, max_len)
        except InputValueError:
            raise
        except Exception as error:  # the library raises plain ones
            raise InputValueError(
                "a text cannot be tokenized",
                where="Tokenizer",
                expected="valid Unicode, of tokens that the vocabulary has or has an unknown token for",
                found=f"{type(error).__name__}: {error}",
            ) from error
        return [(one.ids, one.type_ids) for one in encoded]

    def _encode_truncated(
        self, texts: Sequence[str], pairs: Sequence[str] | None, special: bool, max_len: int
    ) -> list[Any]:
        added = self._tokenizer.num_special_tokens_to_add(pairs is not None) if special else 0
        if max_len < added:
            raise InputValueError(
                "max_len leaves no place for the special tokens",
                where="Tokenizer",
                expected=f"max_len of {added} or more",
                found=max_len,
            )
        firsts = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        seconds = [None] * len(firsts) if pairs is None else self._tokenizer.encode_batch(
            list(pairs), add_special_tokens=False
        )  # fmt: skip
        whole = []
        for first, second in zip(firsts, seconds, strict=True):
            sizes = _truncated_sizes(len(first), 0 if second is None else len(second), max_len - added)
            for part, size in zip((first, second), sizes, strict=True):
                if part is not None and size < len(part):
                    part.truncate(size, direction=self._truncation_side)
            whole.append(self._tokenizer.post_process(first, second, add_special_tokens=special))
        return whole


class TextStream:
    """Decodes tokens one by one; characters that are incomplete wait for the next token.

    The pieces together are what `Tokenizer.decode` returns for all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        # Two windows of the last tokens: what the first one decodes to was returned. Its tokens are decoded
        # again, because decoders treat the first token of a text differently.
        self._returned: list[int] = []
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        """Take the next token, and return the text that is complete with it, which may be empty."""
        self._waiting.append(int(token))
        text = self._text()
        if not text or text.endswith("\ufffd"):  # stands for the bytes of an incomplete character
            return ""
        self._returned, self._waiting = self._waiting, []
        return text

    def end(self) -> str:
        """Return the rest of the text, in which an incomplete character is replaced."""
        text = self._text()
        self._returned, self._waiting = [], []
        return text

    def _text(self) -> str:
        before = self._tokenizer.decode(self._returned, special=self._special)
        both = self._tokenizer.decode([*self._returned, *self._waiting], special=self._special)
        return both[len(before) :]


def _truncated_sizes(first: int, second: int, most: int) -> tuple[int, int]:
    """Return how many tokens of each text are left: those of the longer one are cut, then both equally."""
    if first + second <= most:
        return first, second
    short = min(first, second)
    long = most - short
    if long < short:
        short, long = most // 2, most - most // 2
    return (short, long) if first <= second else (long, short)


def _library(where: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UnsupportedError(
            "text is tokenized by the tokenizers library, which is not installed",
            where=where,
            hint='pip install "burnt[models]"',
        ) from error
    return tokenizers


def _read_config(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``tokenizer_config.json``, and the special tokens by name."""
    config = _read_optional(folder / "tokenizer_config.json")
    special: dict[str, str] = {}
    for document in (_read_optional(folder / "special_tokens_map.json"), config):
        for name in _SPECIAL:
            value = document.get(f"{name}_token")
            if value is not None:
                special[name] = value["content"] if isinstance(value, dict) else value
    return config, special


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _read_tokenizer(folder: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, str]:
    """Return the tokenizer, and its class in `_CLASSES`, ``""`` where ``tokenizer.json`` says it all."""
    library = _library(os.fspath(folder))
    whole, vocab, merges = folder / "tokenizer.json", folder / "vocab.json", folder / "merges.txt"
    named = str(config.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")
    try:
        if whole.is_file():
            return library.Tokenizer.from_file(str(whole)), ""
        if (folder / "vocab.txt").is_file() and named in ("", "Bert"):
            return _bert(library, folder / "vocab.txt", config), "Bert"
        if vocab.is_file() and merges.is_file() and named in ("", "GPT2", "Roberta"):
            return _byte_level(library, vocab, merges, config, named)
    except Exception as error:  # the library raises plain ones
        raise RecordError(
            "the files of a tokenizer are damaged",
            where=os.fspath(folder),
            found=f"{type(error).__name__}: {error}",
            hint="take another copy",
        ) from error
    found = [
        name for name in (*TOKENIZER_FILES, "tokenizer.model", "spiece.model") if (folder / name).is_file()
    ]
    raise UnsupportedError(
        "the folder has no tokenizer that can be read",
        where=os.fspath(folder),
        expected="tokenizer.json, or vocab.txt of BERT, or vocab.json and merges.txt of GPT-2 or RoBERTa",
        found=", ".join(found) + (f" of a {named}Tokenizer" if named else "") if found else "nothing",
        hint="transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
    )


def _bert(library: Any, vocab: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    words = library.models.WordPiece.read_file(str(vocab))
    tokenizer = library.Tokenizer(library.models.WordPiece(words, unk_token=config.get("unk_token", "[UNK]")))
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece(prefix="##")
    return tokenizer  # type: ignore[no-any-return]


def _byte_level(
    library: Any, vocab: Path, merges: Path, config: Mapping[str, Any], named: str
) -> tuple[tokenizers.Tokenizer, str]:
    words, pairs = library.models.BPE.read_file(str(vocab), str(merges))
    kind = named or ("Roberta" if "<s>" in words and "<|endoftext|>" not in words else "GPT2")
    tokenizer = library.Tokenizer(library.models.BPE(words, pairs))
    space = config.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer, kind


def _add_tokens(
    tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Add the tokens that the vocabulary lacks, and mark the special ones, which are never split."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    listed = sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
    for _, token in listed:
        options = {key: value for key, value in token.items() if key != "__type"}
        if options["content"] not in known:
            tokenizer.add_tokens([AddedToken(**options)])
            known.add(options["content"])
    tokenizer.add_special_tokens([text for text in dict.fromkeys(special.values()) if text not in known])
