"""Decoders from `TransformerEncoder` against Hugging Face's GPT-2 and Llama, whole and step by step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from burnt import nn
from tests.nn.test_transformer import trained

pytestmark = pytest.mark.full  # the import takes 3 s

SIZE, HEADS, LAYERS, LENGTH = 16, 4, 2, 7


def compare(model: nn.TransformerEncoder, peer: Any, position: torch.nn.Module | None = None) -> None:
    """Compare outputs for embedded tokens, of which the second sequence has two of padding at the left."""
    x = torch.randn(3, LENGTH, SIZE)
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    padding[1, :2] = True
    ids = torch.arange(LENGTH).expand(3, -1)  # not shifted by the padding
    expected = peer(inputs_embeds=x, attention_mask=(~padding).long(), position_ids=ids).last_hidden_state
    placed = x if position is None else position(x)
    seen = ~padding
    output = model(placed, key_padding_mask=padding, is_causal=True)
    torch.testing.assert_close(output[seen], expected[seen], atol=1e-5, rtol=1e-5)
    cache = model.new_cache()
    steps = []
    for i in range(LENGTH):
        step = x[:, i : i + 1]
        step = step if position is None else position(step, offset=cache.length)
        steps.append(model(step, key_padding_mask=padding[:, : i + 1], cache=cache))
    torch.testing.assert_close(torch.cat(steps, 1)[seen], expected[seen], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_gpt2() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=SIZE,
        n_head=HEADS,
        n_layer=LAYERS,
        n_positions=20,
        vocab_size=11,
        bos_token_id=1,
        eos_token_id=1,
    )
    peer = trained(transformers.GPT2Model(config)).eval()
    model = nn.TransformerEncoder(
        SIZE, HEADS, 4 * SIZE, LAYERS, activation="gelu_tanh", norm_first=True, final_norm=True
    )
    theirs = peer.state_dict()
    names = {
        "self_attn.in_proj_": "attn.c_attn.",
        "self_attn.out_proj.": "attn.c_proj.",
        "linear1.": "mlp.c_fc.",
        "linear2.": "mlp.c_proj.",
        "norm1.": "ln_1.",
        "norm2.": "ln_2.",
    }
    state: dict[str, Tensor] = {f"norm.{kind}": theirs[f"ln_f.{kind}"] for kind in ("weight", "bias")}
    for layer in range(LAYERS):
        for ours, other in names.items():
            for kind in ("weight", "bias"):
                value = theirs[f"h.{layer}.{other}{kind}"]
                # Their Linears are transposed.
                state[f"layers.{layer}.{ours}{kind}"] = value.T if value.dim() == 2 else value
    model.load_state_dict(state)
    position = nn.LearnedPositionalEncoding(SIZE, max_len=20)
    position.load_state_dict({"weight": theirs["wpe.weight"]})
    compare(model.eval(), peer, position)


@torch.no_grad()
def test_llama() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=SIZE,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
        intermediate_size=24,
        vocab_size=11,
        rms_norm_eps=1e-5,
    )
    peer = trained(transformers.LlamaModel(config)).eval()
    model = nn.TransformerEncoder(
        SIZE,
        HEADS,
        24,
        LAYERS,
        activation="swiglu",
        norm_first=True,
        final_norm=True,
        norm="rms",
        bias=False,
        num_kv_heads=2,
        rotary=nn.RotaryEncoding.Config(head_dim=SIZE // HEADS),
    )
    theirs = peer.state_dict()
    state = {"norm.weight": theirs["norm.weight"]}
    for layer in range(LAYERS):

        def parts(*names: str, prefix: str = f"layers.{layer}.") -> Tensor:
            return torch.cat([theirs[f"{prefix}{name}.weight"] for name in names])

        state |= {
            f"layers.{layer}.{name}": value
            for name, value in {
                "self_attn.in_proj_weight": parts(*(f"self_attn.{x}_proj" for x in "qkv")),
                "self_attn.out_proj.weight": parts("self_attn.o_proj"),
                "linear1.weight": parts("mlp.gate_proj", "mlp.up_proj"),
                "linear2.weight": parts("mlp.down_proj"),
                "norm1.weight": parts("input_layernorm"),
                "norm2.weight": parts("post_attention_layernorm"),
            }.items()
        }
    model.load_state_dict(state)
    compare(model.eval(), peer)
