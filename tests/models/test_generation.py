"""`generate` and `stream` next to transformers' `generate` and its logits processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from burnt.errors import InputIndexError, InputTypeError, InputValueError, ShapeError, UnsupportedError
from burnt.models import Gpt2, Gpt2Config, Llama, LlamaConfig, load_pretrained
from burnt.models.generation import filter_logits

VOCAB = 61
LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
}
GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1}
PEERS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "window": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 6}),
}


def build_peer(kind: str, **options: Any) -> Any:
    """A model of transformers whose logits are far apart, so that rounding decides nothing."""
    transformers = pytest.importorskip("transformers")
    config, model, sizes = PEERS[kind]
    torch.manual_seed(0)
    peer = getattr(transformers, model)(getattr(transformers, config)(**{**sizes, **options}))
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += torch.randn_like(parameter) * 0.2
        if not peer.config.tie_word_embeddings:
            peer.lm_head.weight *= 4
    return peer.eval()


def prompts_and_padding(side: str | None) -> tuple[Tensor, Tensor | None]:
    torch.manual_seed(1)
    prompts = torch.randint(5, VOCAB, (4, 7))
    if side is None:
        return prompts, None
    padding = torch.zeros_like(prompts, dtype=torch.bool)
    for row, length in enumerate((3, 0, 1, 6)):
        padding[row, :length] = True
    return prompts, padding if side == "left" else padding.flip(1)


def small(**options: Any) -> Gpt2:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "max_len": 40, "d_model": 16, "num_layers": 2, "num_heads": 2}
    # A tied head with such weights would repeat a token.
    return Gpt2Config(**{**sizes, "init_std": 0.5, "tied": False, **options}).init().eval()


def small_llama() -> Any:
    torch.manual_seed(0)
    return LlamaConfig.from_hugging_face({"model_type": "llama", **LLAMA}).init()


SMALL: dict[str, Any] = {"gpt2": small, "llama": small_llama}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"min_new_tokens": 9}])
def test_greedy_decoding_is_that_of_transformers(
    kind: str, padded: bool, options: dict[str, Any], tmp_path: Path
) -> None:
    peer = build_peer(kind, eos_token_id=[3, 4, 12, 37], pad_token_id=0)
    peer.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    assert isinstance(model, Gpt2 | Llama)
    prompts, padding = prompts_and_padding("left" if padded else None)
    if padding is not None:
        prompts = prompts.masked_fill(padding, 0)
    mask = torch.ones_like(prompts) if padding is None else (~padding).long()
    theirs = peer.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=30, **options)
    ours = model.generate(prompts, 30, padding=padding, **options)
    assert torch.equal(ours.tokens, theirs[:, prompts.shape[1] :])
    assert ours.tokens.unique().numel() > 6  # not one token again and again


def test_the_snapshot_says_what_ends_a_text(tmp_path: Path) -> None:
    model = small()
    first = model.generate([7, 8], 6).sequences()[0]
    model.save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, "eos_token_id": first[3]}))
    again = Gpt2.from_pretrained(tmp_path)
    found = again.generate([7, 8], 6)
    end = first.index(first[3]) + 1
    assert found.sequences(with_stop=True) == [first[:end]]
    assert found.stopped_by == ((first[3],),)
    assert again.generate([7, 8], 6, stop=()).sequences() == [first]
    # The file for generation goes first, and may name several.
    text = json.dumps({"eos_token_id": [first[1], 60], "pad_token_id": 5})
    (tmp_path / "generation_config.json").write_text(text)
    again = Gpt2.from_pretrained(tmp_path)
    end = first.index(first[1]) + 1
    assert again.generate([7, 8], 6).sequences(with_stop=True) == [first[:end]]
    again.save_pretrained(tmp_path / "copy")
    assert Gpt2.from_pretrained(tmp_path / "copy").generation_config == json.loads(text)


@pytest.mark.full
@pytest.mark.parametrize("kind", SMALL)
def test_a_batch_is_generated_as_each_prompt_alone(kind: str) -> None:
    model = SMALL[kind]()
    prompts, padding = prompts_and_padding("right")
    assert padding is not None
    lists = [row[~hidden].tolist() for row, hidden in zip(prompts, padding, strict=True)]
    for options in ({}, {"temperature": 1.5, "top_k": 20, "seed": 3}):
        alone = [
            model.generate(row, 12, **{**options, **({"seed": 3 + i} if options else {})}).tokens[0]
            for i, row in enumerate(lists)
        ]
        expected = torch.stack(alone)
        marked = prompts.masked_fill(padding, -100)  # what is under padding does not matter
        assert torch.equal(model.generate(marked, 12, padding=padding, **options).tokens, expected)
        assert torch.equal(model.generate(lists, 12, **options).tokens, expected)
        left = torch.stack(
            [torch.cat([row[hidden], row[~hidden]]) for row, hidden in zip(prompts, padding, strict=True)]
        )
        hidden = padding.flip(1)
        assert torch.equal(model.generate(left, 12, padding=hidden, **options).tokens, expected)


@pytest.mark.sample(1)
@torch.no_grad()
@pytest.mark.parametrize("kind", SMALL)
def test_the_cache_changes_nothing(kind: str) -> None:
    model = SMALL[kind]()
    tokens = torch.randint(0, VOCAB, (3, 5))
    expected = tokens
    for _ in range(15):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(tokens, 15).tokens, expected[:, 5:])


def test_several_tokens_stop_a_sequence_together() -> None:
    model = small()
    (free,) = model.generate([7, 8], 12).sequences()
    found = model.generate([[7, 8], [7, 8]], 12, stop=[free[4:7], [free[4], 60]])
    assert found.stopped_by == (tuple(free[4:7]),) * 2
    assert found.sequences() == [free[:4]] * 2
    assert found.sequences(with_stop=True) == [free[:7]] * 2
    assert found.lengths.tolist() == [7, 7]
    # They may begin before min_new_tokens, and end a sequence that has more.
    assert model.generate([7, 8], 12, stop=[free[4:7]], min_new_tokens=6).lengths.tolist() == [7]
    assert model.generate([7, 8], 12, stop=[free[4:7]], min_new_tokens=7).lengths.tolist() == [12]
    assert model.generate([7, 8], 12, stop=free[0], pad_token=5).tokens.tolist() == [[free[0]]]


def test_ended_sequences_are_padded() -> None:
    model = small()
    rows = model.generate([[7, 8], [9]], 8).sequences()
    stop = next(token for token in rows[0] if token not in rows[1])
    end = rows[0].index(stop) + 1
    found = model.generate([[7, 8], [9]], 8, stop=stop, pad_token=60)
    assert found.tokens.tolist() == [rows[0][:end] + [60] * (8 - end), rows[1]]
    assert found.lengths.tolist() == [end, 8]
    assert found.stopped_by == ((stop,), None)
    steps = list(model.stream([[7, 8], [9]], 8, stop=stop))
    assert steps == [[rows[0][i] if i < end else None, rows[1][i]] for i in range(8)]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_k": 500},
        {"top_p": 0.6},
        {"top_p": 0.01},
        {"top_p": 1.0},
        {"temperature": 1.8, "top_k": 30, "top_p": 0.9},
    ],
)
def test_filters_are_those_of_transformers(options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    logits = torch.randn(6, VOCAB) * 3
    logits[0, :9] = 2.0  # equal ones
    expected = logits
    for name, kind in (("temperature", "Temperature"), ("top_k", "TopK"), ("top_p", "TopP")):
        if name in options:
            expected = getattr(transformers, f"{kind}LogitsWarper")(options[name])(None, expected)
    assert torch.equal(filter_logits(logits, **options), expected)


def test_filters_compute_in_float32() -> None:
    logits = (torch.randn(4, VOCAB) * 3).bfloat16()
    found = filter_logits(logits, temperature=0.7, top_p=0.8)
    assert found.dtype == torch.float32
    assert torch.equal(found, filter_logits(logits.float(), temperature=0.7, top_p=0.8))


def test_drawn_tokens_have_the_filtered_probabilities() -> None:
    count = 2000
    model = small(init_std=0.3)
    options: Any = {"temperature": 1.3, "top_k": 12, "top_p": 0.95}
    drawn = model.generate([[7, 8]] * count, 1, seed=5, **options).tokens[:, 0]
    with torch.no_grad():
        expected = filter_logits(model(torch.tensor([[7, 8]]))[0, -1], **options).softmax(-1) * count
    observed = torch.bincount(drawn, minlength=VOCAB)
    assert not observed[expected == 0].any()
    kept = expected > 0
    statistic = ((observed - expected) ** 2 / expected)[kept].sum()
    freedom = int(kept.sum()) - 1
    assert freedom >= 5
    # The 0.1 % quantile on either side, by Wilson and Hilferty.
    spread = 3.09 * (2 / (9 * freedom)) ** 0.5
    low, high = (freedom * (1 - 2 / (9 * freedom) + sign * spread) ** 3 for sign in (-1, 1))
    assert low < statistic < high


def test_a_seed_determines_the_tokens() -> None:
    model = small()
    options: Any = {"temperature": 1.0}
    first = model.generate([[7, 8], [7, 8]], 20, seed=1, **options).sequences()
    assert model.generate([[7, 8], [7, 8]], 20, seed=1, **options).sequences() == first
    assert first[0] != first[1]
    assert model.generate([7, 8], 20, seed=2, **options).sequences() == first[1:]
    torch.manual_seed(0)
    free = model.generate([7, 8], 20, **options).sequences()
    assert model.generate([7, 8], 20, **options).sequences() != free
    torch.manual_seed(0)
    assert model.generate([7, 8], 20, **options).sequences() == free


def test_the_model_is_left_as_it_was() -> None:
    model = small(dropout=0.5)
    expected = model.generate([7, 8], 10).sequences()
    model.train()
    model.layers[1].norm1.eval()
    stream = model.stream([7, 8], 10)
    steps = []
    for step in stream:
        steps += step
        assert model.training
        assert model.layers[0].training
        assert not model.layers[1].norm1.training
        assert torch.is_grad_enabled()
        if len(steps) == 4:
            break
    assert [steps] == [row[:4] for row in expected]
    assert stream.result().sequences() == expected  # goes on where the loop was left
    assert list(stream) == []
    assert all(p.grad is None for p in model.parameters())
    # An error in a step leaves it so, too.
    model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(model.stream([7, 8], 10))
    assert model.training


def test_memory_of_the_cache_is_allocated_once() -> None:
    model = small()
    stream = model.stream([[7, 8], [9]], 20)
    next(stream)
    memory = [cache._key.data_ptr() for cache in stream._cache if cache._key is not None]
    next(stream)
    assert [cache._key.data_ptr() for cache in stream._cache if cache._key is not None] == memory
    assert [cache.max_len for cache in stream._cache] == [21, 21]


@pytest.mark.parametrize(
    ("options", "error", "message", "found"),
    [
        ({"max_new_tokens": 0}, InputValueError, "max_new_tokens is out of range", 0),
        ({"min_new_tokens": 6}, InputValueError, "min_new_tokens is out of range", 6),
        ({"temperature": -1.0}, InputValueError, "temperature is out of range", -1.0),
        ({"temperature": 1.0, "top_k": 0}, InputValueError, "top_k is out of range", 0),
        ({"temperature": 1.0, "top_p": 0.0}, InputValueError, "top_p is out of range", 0.0),
        ({"temperature": 1.0, "top_p": 1.5}, InputValueError, "top_p is out of range", 1.5),
        ({"repetition_penalty": 0.0}, InputValueError, "repetition_penalty is out of range", 0.0),
        ({"top_p": 0.9}, InputValueError, "top_k and top_p are for tokens that are drawn", None),
        ({"prompts": []}, InputValueError, "a prompt is empty", None),
        ({"prompts": torch.zeros(2, 0).long()}, InputValueError, "a prompt is empty", None),
        ({"prompts": [0.5, 1.0]}, InputTypeError, "prompts are token ids", None),
        ({"prompts": torch.zeros(1, 2)}, InputTypeError, "prompts are token ids", "torch.float32"),
        ({"prompts": ["text"]}, InputTypeError, "prompts are token ids", None),
        ({"prompts": torch.zeros(1, 2, 3).long()}, ShapeError, "prompts and their padding", (1, 2, 3)),
        ({"prompts": [3, 61]}, InputIndexError, "an id is outside the vocabulary", 61),
        ({"prompts": [3, -1]}, InputIndexError, "an id is outside the vocabulary", -1),
        ({"padding": torch.zeros(1, 2).bool()}, InputValueError, "padding is for prompts in one", None),
        ({"stop": [61]}, InputIndexError, "an id is outside the vocabulary", 61),
        ({"stop": ["."]}, InputTypeError, "stop has token ids", "['.']"),
        ({"stop": [[]]}, InputTypeError, "stop has token ids", "[[]]"),
        ({"prompts": [1] * 40}, ShapeError, "the prompt is too long", None),
    ],
)
def test_unusable_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, found: object
) -> None:
    arguments = {"prompts": [7, 8], "max_new_tokens": 5, **options}
    with pytest.raises(error, match=message) as caught:
        small().stream(**arguments)
    assert found is None or caught.value.found == found  # type: ignore[attr-defined]


def test_padding_has_to_fit() -> None:
    model, prompts = small(), torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ShapeError, match="prompts and their padding") as shape:
        model.generate(prompts, 5, padding=torch.zeros(2, 4, dtype=torch.bool))
    assert shape.value.found == "(2, 3) and (2, 4)"
    with pytest.raises(InputTypeError, match="padding is boolean") as kind:
        model.generate(prompts, 5, padding=torch.ones(2, 3, dtype=torch.long))
    assert kind.value.hint == "padding=attention_mask == 0, of a tokenizer's attention_mask"
    with pytest.raises(InputValueError, match="a prompt is empty") as empty:
        model.generate(prompts, 5, padding=torch.tensor([[False] * 3, [True] * 3]))
    assert empty.value.where == "prompts[1]"
    assert "unlike transformers' attention_mask" in str(empty.value.hint)
    with pytest.raises(ShapeError, match="prompt and new tokens are too long") as length:
        model.generate([1] * 36, 5)
    assert length.value.hint == "max_new_tokens=4"


def test_prompts_of_the_wrong_kind_are_told_how_to_be_made() -> None:
    with pytest.raises(InputTypeError, match="prompts are token ids") as text:
        small().generate("text", 5)
    assert text.value.found == "'text'"
    assert text.value.hint == "model.generate([tokenizer.encode(text)], ...)"
    with pytest.raises(InputTypeError, match="prompts are token ids") as pair:
        small().generate((torch.ones(2, 3).long(), torch.zeros(2, 3).bool()), 5)
    assert pair.value.found == "a tensor (2, 3)"
    assert "model.generate(tokens, padding=padding, ...)" in str(pair.value.hint)
    with pytest.raises(InputValueError, match="a prompt is empty") as empty:
        small().generate([[1], []], 5)
    assert "the beginning of a text" in str(empty.value.hint)


@pytest.mark.parametrize("head", [None, "classification"])
def test_a_model_without_a_head_for_tokens_is_refused(head: Any) -> None:
    with pytest.raises(UnsupportedError, match="no head that predicts tokens") as caught:
        small(head=head).generate([7, 8], 5)
    assert caught.value.found == f"head={head!r}"
