"""BERT, RoBERTa and XLM-RoBERTa next to those of transformers, with the same weights."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import burnt
from burnt.errors import ConfigError, InputIndexError, ShapeError
from burnt.models import Bert, BertConfig
from tests.models.peer import assert_close, assert_round_trip, backward_both, perturbed, plain

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 20,
}
LENGTH = 9

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", {}),
    "bert-relu": ("Bert", {"hidden_act": "relu", "layer_norm_eps": 1e-2, "num_labels": 5}),
    "bert-gelu-new": ("Bert", {"hidden_act": "gelu_new", "pad_token_id": None}),
    "bert-gelu-fast": ("Bert", {"hidden_act": "gelu_fast", "pad_token_id": 7}),
    "bert-swish": ("Bert", {"hidden_act": "swish", "type_vocab_size": 3, "num_labels": 1}),
    "roberta": ("Roberta", {}),
    "roberta-relu": ("Roberta", {"hidden_act": "relu", "pad_token_id": 0, "num_labels": 3}),
    "roberta-pad": ("Roberta", {"pad_token_id": 3, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", {}),
}
HEADS = {
    "none": "Model",
    "mlm": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}
OUTPUTS = {
    "mlm": (3, LENGTH, 40),
    "tokens": (3, LENGTH, 2),
    "answer": (3, LENGTH, 2),
    "classification": (3, 2),
}


def build_peer(variant: str = "bert", head: str = "none", name: str | None = None, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    family, own = VARIANTS[variant]
    if head == "answer":
        options["num_labels"] = 2  # a start and an end
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **options})
    torch.manual_seed(0)
    return perturbed(getattr(transformers, family + (name or HEADS[head]))(config))


def inputs_for(peer: Any, side: str | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, segments and padding, which is of the padding token where there is one."""
    torch.manual_seed(1)
    tokens = torch.randint(8, SIZES["vocab_size"], (3, LENGTH))
    segments = torch.randint(peer.config.type_vocab_size, (3, LENGTH))
    if side is None:
        return tokens, segments, None
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    for row, length in enumerate((2, 0, 5)):
        padding[row, :length] = True
    padding = padding if side == "left" else padding.flip(1)
    token = peer.config.pad_token_id
    return tokens if token is None else tokens.masked_fill(padding, token), segments, padding


def outputs_of(peer: Any, tokens: Tensor, segments: Tensor | None, padding: Tensor | None) -> list[Tensor]:
    mask = None if padding is None else (~padding).long()
    output = peer(tokens, token_type_ids=segments, attention_mask=mask)
    if hasattr(output, "start_logits"):
        return [torch.stack([output.start_logits, output.end_logits], -1)]
    return list(output.to_tuple())


def run(model: Bert, tokens: Tensor, segments: Tensor | None, padding: Tensor | None) -> list[Tensor]:
    output = model(tokens, segments=segments, padding=padding)
    return [output] if model.pooler is None or model.head is not None else [output, model.pooler(output)]


def assert_gradients_close(model: Bert, peer: Any) -> None:
    """Compare all gradients in the names of transformers, each to a share of its largest value.

    A bias of keys adds the same to all scores of a query, so that its gradient is rounding errors of zero.
    """
    named = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    assert len(named) == len(list(model.parameters()))
    ours = model.layouts["hugging_face"].write(named)
    grads = {path: p.grad for path, p in peer.named_parameters(remove_duplicate=False)}
    assert len(ours) == sum(p.grad is not None for p in peer.parameters())
    for path in ours:
        gradient = grads[path]
        assert gradient is not None
        if path.endswith(".key.bias"):
            assert max(gradient.abs().max(), ours[path].abs().max()) < 1e-5
        else:
            assert_close(ours[path], gradient, 1e-4)


@pytest.mark.sample(5)
@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_gradients_and_files_are_those_of_transformers(
    variant: str, head: str, side: str | None, tmp_path: Path
) -> None:
    peer = build_peer(variant, head)
    peer.save_pretrained(tmp_path / "theirs")
    model = Bert.from_pretrained(tmp_path / "theirs")
    inputs = inputs_for(peer, side)
    ours, theirs = run(model, *inputs), outputs_of(peer, *inputs)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close(mine, other)
    weights = [torch.randn(output.shape) for output in ours]
    torch.autograd.backward(ours, weights)
    torch.autograd.backward(theirs, weights)
    assert_gradients_close(model, peer)
    assert_round_trip(model, peer, tmp_path / "ours")


def test_segments_are_zero_by_default(tmp_path: Path) -> None:
    peer = build_peer()
    peer.save_pretrained(tmp_path)
    model = Bert.from_pretrained(tmp_path)
    tokens, _, _ = inputs_for(peer, None)
    assert_close(model(tokens), outputs_of(peer, tokens, None, None)[0])
    single = model(tokens[0])
    assert_close(single, model(tokens[:1])[0])
    assert model.pooler is not None
    assert_close(model.pooler(single), model.pooler(single[None])[0])


@pytest.mark.parametrize("variant", ["bert", "roberta-relu"])
def test_head_without_tied_weights(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant, "mlm", tie_word_embeddings=False)
    peer.save_pretrained(tmp_path / "theirs")
    model = Bert.from_pretrained(tmp_path / "theirs")
    inputs = inputs_for(peer, "right")
    [ours], [theirs] = run(model, *inputs), outputs_of(peer, *inputs)
    assert_close(ours, theirs)
    backward_both(ours, theirs)
    assert_gradients_close(model, peer)
    model.save_pretrained(tmp_path / "ours")
    again, report = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
    unused = "cls.predictions.bias" if variant == "bert" else "lm_head.bias"
    assert set(report["missing_keys"]) == {unused}  # which the peer does not use either
    assert torch.equal(outputs_of(again.eval(), *inputs)[0], theirs)


def old_state(peer: Any) -> dict[str, Tensor]:
    """A state as early versions saved it: TensorFlow's names of norms, positions, and all tied tensors."""
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in peer.state_dict().items()
    }
    return {**state, "bert.embeddings.position_ids": torch.arange(20)[None]}


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize("head", [None, "mlm"])
def test_published_file_of_an_early_version(head: Any, prefix: str, tmp_path: Path) -> None:
    peer = build_peer(name="ForPreTraining")
    state = {name.replace("bert.", prefix): value for name, value in old_state(peer).items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    old = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "type_vocab_size": 2, **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(old))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Bert.from_pretrained(tmp_path, head=head)
    inputs = inputs_for(peer, "right")
    if head == "mlm":
        assert_close(run(model, *inputs)[0], outputs_of(peer, *inputs)[0])
        unused = {"cls.seq_relationship.weight", "cls.seq_relationship.bias", "pooler.dense.weight"}
    else:
        for mine, other in zip(run(model, *inputs), outputs_of(peer.bert, *inputs), strict=True):
            assert_close(mine, other)
        unused = {"cls.seq_relationship.weight", "cls.seq_relationship.bias", "cls.predictions.bias"}
    assert model.load_report is not None
    assert unused <= set(model.load_report.unexpected)


def test_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for kind, family in (("bert", "Bert"), ("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta")):
        config = BertConfig.from_hugging_face({"model_type": kind})
        theirs = getattr(transformers, f"{family}Config")
        assert plain(theirs(**config.to_hugging_face())) == plain(theirs())


def test_names_of_classes() -> None:
    names = {"id2label": {"0": "no", "1": "yes", "2": "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    config = BertConfig.from_hugging_face({"model_type": "bert", **names})
    assert config.num_classes == 3
    document = config.to_hugging_face()
    assert {key: document[key] for key in names} == names
    document = config.replace(num_classes=2).to_hugging_face()
    assert document["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert document["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}


def test_activation_keeps_its_name_in_the_file() -> None:
    config = BertConfig.from_hugging_face({"model_type": "bert", "hidden_act": "gelu_fast"})
    assert config.activation == "gelu_tanh"
    assert config.to_hugging_face()["hidden_act"] == "gelu_fast"
    assert config.replace(activation="silu").to_hugging_face()["hidden_act"] == "silu"


def test_snapshot_of_the_body_gets_a_new_head(tmp_path: Path) -> None:
    peer = build_peer()
    peer.save_pretrained(tmp_path)
    model = Bert.from_pretrained(tmp_path, head="classification", num_classes=3)
    new = model.get_parameter("head.linear.weight")
    assert new.shape == (3, 16)
    assert new.isfinite().all()
    assert_close(model.pooler.dense.weight, peer.pooler.dense.weight)  # type: ignore[union-attr]
    masked = Bert.from_pretrained(tmp_path, head="mlm")
    assert masked.head.decoder.weight is masked.embedding.weight  # type: ignore[union-attr]
    assert_close(masked.embedding.weight, peer.embeddings.word_embeddings.weight)
    document = json.loads((tmp_path / "config.json").read_text())
    document["architectures"] = ["BertForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.warns(
        UserWarning, match=r"has no head.linear.weight, head.linear.bias: these weights are new"
    ):
        Bert.from_pretrained(tmp_path)


@pytest.mark.parametrize("variant", ["bert", "roberta"])
def test_snapshot_of_another_head(variant: str, tmp_path: Path) -> None:
    peer = build_peer(variant, "classification", num_labels=4)
    peer.save_pretrained(tmp_path)
    body = Bert.from_pretrained(tmp_path, head=None, pooler=False)
    inputs = inputs_for(peer, "right")
    base = getattr(peer, peer.base_model_prefix)
    assert_close(run(body, *inputs)[0], outputs_of(base, *inputs)[0])
    other = Bert.from_pretrained(tmp_path, num_classes=2)
    assert run(other, *inputs)[0].shape == (3, 2)
    same = Bert.from_pretrained(tmp_path, num_classes=4)
    assert_close(run(same, *inputs)[0], outputs_of(peer, *inputs)[0])


def test_snapshot_without_a_pooler(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    peer = perturbed(transformers.BertModel(build_peer().config, add_pooling_layer=False))
    peer.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"has no pooler.dense.weight, pooler.dense.bias: these weights"):
        Bert.from_pretrained(tmp_path)
    model = Bert.from_pretrained(tmp_path, pooler=False)
    inputs = inputs_for(peer, "left")
    assert_close(run(model, *inputs)[0], outputs_of(peer, *inputs)[0])


@pytest.mark.parametrize("head", [None, "classification"])
def test_new_pooler_is_warned_of_when_another_head_is_asked_for(head: Any, tmp_path: Path) -> None:
    small(head="mlm").init().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"has no pooler.dense.weight, pooler.dense.bias: these weights"):
        Bert.from_pretrained(tmp_path, head=head)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "classifier_dropout"])
def test_each_dropout_is_applied_in_training(field: str, kind: Any) -> None:
    config = small(
        kind=kind, head="classification", dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0
    )
    tokens = torch.arange(2, 10)[None]
    model = config.init()
    assert torch.equal(model.train()(tokens), model.eval()(tokens))
    model = config.replace(**{field: 0.5}).init()
    assert not torch.equal(model.train()(tokens), model.eval()(tokens))
    assert torch.equal(model(tokens), model(tokens))
    assert config.replace(classifier_dropout=None, dropout=0.3).init().get_submodule("head.dropout").p == 0.3


def small(**options: Any) -> BertConfig:
    sizes = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "num_layers": 2, "num_heads": 4, "max_len": 20}
    pad_token = 0 if options.get("kind", "bert") == "bert" else 1
    return BertConfig(**{**sizes, "pad_token": pad_token, **options})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type\n  expected  'bert' or 'roberta' or 'xlm-roberta'"),
        ({"is_decoder": True}, "config.json: is_decoder\n  expected  False\n  found     True"),
        ({"add_cross_attention": True}, "config.json: add_cross_attention"),
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type\n  expected  'absolute'\n  found     'relative_key'",
        ),
        ({"pruned_heads": {"0": [1]}}, "config.json: pruned_heads"),
        ({"per_layer_config": {"0": {"hidden_act": "relu"}}}, "config.json: per_layer_config"),
        ({"hidden_act": "laplace"}, "config.json: hidden_act\n  expected  'gelu' or "),
    ],
)
def test_what_it_cannot_compute_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BertConfig.from_hugging_face({"model_type": "bert", **changes})
    assert message in str(caught.value)


def test_harmless_keys_of_other_versions_are_kept() -> None:
    keys = {"position_embedding_type": "absolute", "pruned_heads": {}, "use_cache": False, "gradient": 1}
    document = BertConfig.from_hugging_face({"model_type": "bert", **keys}).to_hugging_face()
    assert {key: document[key] for key in keys} == keys


@pytest.mark.parametrize(("kind", "longest"), [("bert", 20), ("roberta", 18)])
def test_sequence_longer_than_the_positions(kind: Any, longest: int) -> None:
    model = small(kind=kind).init()
    model(torch.full((1, longest), 5))
    with pytest.raises(ShapeError) as caught:
        model(torch.full((1, longest + 1), 5))
    assert f"expected  at most {longest} tokens\n  found     {longest + 1}\n  hint      shorten" in str(
        caught.value
    )


def test_inputs_that_the_model_does_not_have() -> None:
    model = small().init()
    with pytest.raises(InputIndexError, match="expected  ids from 0 to 39"):
        model(torch.tensor([[40]]))
    with pytest.raises(InputIndexError, match="expected  ids from 0 to 1"):
        model(torch.tensor([[4]]), segments=torch.tensor([[2]]))
    with pytest.raises(ShapeError, match="key_padding_mask"):
        model(torch.tensor([[4, 5]]), padding=torch.tensor([[False]]))


@pytest.mark.parametrize("pad_token", [None, -1, 19])
def test_roberta_needs_a_padding_token(pad_token: int | None) -> None:
    with pytest.raises(ConfigError) as caught:
        small(kind="roberta", pad_token=pad_token).init()
    assert "BertConfig.pad_token\n  expected  0 to 18, for max_len=20" in str(caught.value)


def test_new_weights() -> None:
    model = small(kind="roberta", vocab_size=500, d_model=64, init_std=0.3, head="mlm").init()
    for parameter in (model.embedding.weight, model.layers[0].attention.in_proj_weight):
        assert parameter is not None
        assert 0.28 < parameter.std() < 0.32
    assert not model.embedding.weight[1].any()
    assert not model.positions.weight[1].any()
    assert not model.layers[0].attention.in_proj_bias.any()  # type: ignore[union-attr]
    assert not model.get_parameter("head.decoder.bias").any()


@pytest.mark.sample(keep=("classification",))
@pytest.mark.parametrize("head", [None, "mlm", "classification", "tokens", "answer"])
def test_record_check_and_summary(head: Any, tmp_path: Path) -> None:
    config = small(head=head, kind="roberta" if head == "tokens" else "bert")
    model = config.init().eval()
    tokens = torch.randint(4, 40, (3, LENGTH))
    model.save(tmp_path / "model.safetensors")
    again = Bert.load(tmp_path / "model.safetensors").eval()
    assert again.config == config
    assert torch.equal(again(tokens), model(tokens))
    burnt.check(model, tokens)
    assert model(tokens).shape == OUTPUTS.get(head, (3, LENGTH, 16))
    assert burnt.summary(model, tokens).rows[0].output == str(tuple(model(tokens).shape))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_compile_and_export(kind: Any) -> None:
    model = small(kind=kind, head="classification").init().eval()
    tokens = torch.randint(4, 40, (3, LENGTH))
    padding = torch.arange(LENGTH).expand(3, -1) > 6
    expected = model(tokens, padding=padding)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_close(compiled(tokens, padding=padding), expected)
    exported = torch.export.export(model, (tokens,), {"padding": padding}).module()
    assert_close(exported(tokens, padding=padding), expected)
