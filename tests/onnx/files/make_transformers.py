# ruff: noqa: E501
"""Write small ONNX files of Hugging Face architectures with random weights, by both of torch's exporters.

    python tests/onnx/files/make_transformers.py [NAME ...]

Each file is next to this script: ``<name>.<exporter>.onnx.xz``. Weights are those of a model as initialized plus
noise, so that no two are equal, as in a trained model: exporters merge weights that are. Of the metadata, only the
names of modules are kept. They were made with torch 2.13 and transformers 5. Where an exporter fails, there is no file.
"""

from __future__ import annotations

import io
import lzma
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
import transformers as t
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
IDS = torch.tensor([[1, 5, 7, 2, 9], [3, 4, 6, 8, 2]])
MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


class First(nn.Module):
    """The first output of a model, called with named inputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the first output."""
        out = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed, return_dict=False)
        return out[0] if isinstance(out, tuple) else out


class WithPast(First):
    """A decoder that gets and returns the keys and values of all layers, as optimum exports it."""

    def forward(self, input_ids: Tensor, *past: Tensor) -> Any:
        """Return the logits, then key and value of each layer."""
        cache = t.DynamicCache()
        for i in range(len(past) // 2):
            cache.update(past[2 * i], past[2 * i + 1], i)
        logits, cache = self.model(input_ids, past_key_values=cache, use_cache=True, return_dict=False)
        return (logits, *(one for layer in cache.layers for one in (layer.keys, layer.values)))


@dataclass
class Example:
    """A module with inputs to export it with.

    Args:
        module: called with the inputs in order.
        inputs: example inputs by name.
        axes: names of the axes of inputs that stay open, the batch first.
        output: the name of the output.
        own_axes: names of open axes, by their number, of inputs for which they are others than `axes`.
        more_outputs: names of further outputs.
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    axes: tuple[str, ...]
    output: str
    own_axes: dict[str, dict[int, str]] = field(default_factory=dict)
    more_outputs: tuple[str, ...] = ()

    def open_axes(self, count: int) -> dict[str, dict[int, str]]:
        """Return the open axes of each input, where only the first of `axes` are to be open."""
        closed = self.axes[count:]
        return {
            name: {
                i: axis
                for i, axis in self.own_axes.get(name, dict(enumerate(self.axes))).items()
                if axis not in closed
            }
            for name in self.inputs
        }


def _from_config(auto: Any, config: Any, attention: str = "eager") -> nn.Module:
    config._attn_implementation = attention
    model: nn.Module = (
        auto.from_config(config, attn_implementation=attention)
        if hasattr(auto, "from_config")
        else auto(config)
    )
    return model


def _output(auto: Any) -> str:
    return "logits" if "For" in auto.__name__ else "last_hidden_state"


def _text(
    config: Any, auto: Any = t.AutoModel, mask: bool = True, attention: str = "eager", **fixed: Any
) -> Example:
    inputs = {"input_ids": IDS, "attention_mask": MASK} if mask else {"input_ids": IDS}
    model = First(_from_config(auto, config, attention), tuple(inputs), **fixed)
    return Example(model, inputs, ("batch", "sequence"), _output(auto))


def _image(config: Any, auto: Any = t.AutoModel, size: int = 32) -> Example:
    inputs = {"pixel_values": torch.randn(2, 3, size, size)}
    return Example(First(_from_config(auto, config), tuple(inputs)), inputs, ("batch",), _output(auto))


def _whisper() -> Example:
    config = t.WhisperConfig(
        d_model=16, encoder_layers=3, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=40, max_source_positions=20, num_mel_bins=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 8, 40)}
    model = First(_from_config(t.AutoModel, config).encoder, tuple(inputs))
    return Example(model, inputs, ("batch",), "last_hidden_state")


def _past(config: Any, layers: int, *shape: int) -> Example:
    """A decoder with the keys and values of its layers, of a shape with an open batch and length."""
    names = [f"{i}.{part}" for i in range(layers) for part in ("key", "value")]
    inputs = {"input_ids": IDS} | {f"past_key_values.{name}": torch.randn(shape) for name in names}
    own = {name: {0: "batch", 2: "past"} for name in inputs if name != "input_ids"}
    model = WithPast(_from_config(t.AutoModelForCausalLM, config), tuple(inputs))
    presents = tuple(f"present.{name}" for name in names)
    return Example(model, inputs, ("batch", "sequence"), "logits", own, presents)


def _audio(config: Any, auto: Any) -> Example:
    inputs = {"input_values": torch.randn(2, 400)}
    return Example(First(_from_config(auto, config), tuple(inputs)), inputs, ("batch",), _output(auto))


def _unet() -> Example:
    inputs = {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 10]),
        "context": torch.randn(2, 5, 6),
    }
    own = {"sample": {0: "batch"}, "timestep": {0: "batch"}}
    return Example(UNet(), inputs, ("batch", "sequence"), "noise", own)


def _layers(module: nn.Module, size: int) -> Example:
    return Example(module, {"x": torch.randn(2, 5, size)}, ("batch", "sequence"), "y")


VISION = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
MODELS: dict[str, Callable[[], Example]] = {
    "bert": lambda: _text(t.BertConfig(**SMALL), t.AutoModelForSequenceClassification),
    "distilbert": lambda: _text(t.DistilBertConfig(dim=16, n_layers=3, n_heads=2, hidden_dim=24, vocab_size=40)),
    "roberta": lambda: _text(t.RobertaConfig(**SMALL, pad_token_id=0), t.AutoModelForMaskedLM),
    "albert": lambda: _text(t.AlbertConfig(**SMALL, embedding_size=8)),
    "electra": lambda: _text(t.ElectraConfig(**SMALL, embedding_size=8)),
    "mpnet": lambda: _text(t.MPNetConfig(**SMALL)),
    "gpt2": lambda: _text(
        t.GPT2Config(n_embd=16, n_layer=3, n_head=2, vocab_size=40, n_positions=32),
        t.AutoModelForCausalLM, use_cache=False),
    "gpt_neox": lambda: _text(t.GPTNeoXConfig(**SMALL), t.AutoModelForCausalLM, use_cache=False),
    "llama": lambda: _text(t.LlamaConfig(**SMALL, num_key_value_heads=1), t.AutoModelForCausalLM, use_cache=False),
    "mistral": lambda: _text(
        t.MistralConfig(**SMALL, num_key_value_heads=1), t.AutoModelForCausalLM, use_cache=False),
    "qwen2": lambda: _text(t.Qwen2Config(**SMALL, num_key_value_heads=1), t.AutoModelForCausalLM, use_cache=False),
    "gemma": lambda: _text(
        t.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8), t.AutoModelForCausalLM, use_cache=False),
    "phi": lambda: _text(t.PhiConfig(**SMALL), t.AutoModelForCausalLM, use_cache=False),
    "opt": lambda: _text(
        t.OPTConfig(hidden_size=16, num_hidden_layers=3, ffn_dim=24, num_attention_heads=2, vocab_size=40,
                    max_position_embeddings=32, word_embed_proj_dim=16),
        t.AutoModelForCausalLM, use_cache=False),
    "t5_encoder": lambda: _text(
        t.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=3, num_heads=2, vocab_size=40), t.T5EncoderModel),
    "vit": lambda: _image(t.ViTConfig(**VISION), t.AutoModelForImageClassification),
    "deit": lambda: _image(t.DeiTConfig(**VISION)),
    "dinov2": lambda: _image(t.Dinov2Config(**VISION)),
    "swin": lambda: _image(t.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[1, 2],
                                        window_size=4)),
    "resnet": lambda: _image(
        t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 3]), t.AutoModelForImageClassification),
    "convnext": lambda: _image(t.ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 3], num_stages=2)),
    "regnet": lambda: _image(t.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 3], groups_width=4)),
    "segformer": lambda: _image(t.SegformerConfig(
        hidden_sizes=[8, 16], depths=[2, 3], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[4, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=8)),
    "clip_vision": lambda: _image(t.CLIPVisionConfig(**VISION), t.CLIPVisionModel),
    "clip_text": lambda: _text(t.CLIPTextConfig(**SMALL), t.CLIPTextModel),
    "whisper_encoder": _whisper,
    "mamba": lambda: _text(
        t.MambaConfig(hidden_size=16, num_hidden_layers=3, vocab_size=40, state_size=4), t.AutoModelForCausalLM,
        mask=False, use_cache=False),
    "bart": lambda: _text(t.BartConfig(
        d_model=16, encoder_layers=3, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=40, max_position_embeddings=32), use_cache=False),
    "lstm": lambda: _layers(_Recurrent(nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)), 6),
    "gru": lambda: _layers(_Recurrent(nn.GRU(6, 5, batch_first=True)), 6),
    "torch_transformer": lambda: _layers(nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 3, enable_nested_tensor=False), 16),
    "bert_sdpa": lambda: _text(
        t.BertConfig(**SMALL), t.AutoModelForTokenClassification, attention="sdpa"),
    "deberta_v2": lambda: _text(t.DebertaV2Config(
        **SMALL, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        share_att_key=True)),
    "gpt2_past": lambda: _past(
        t.GPT2Config(n_embd=16, n_layer=3, n_head=2, n_inner=24, vocab_size=40, n_positions=32), 3, 2, 2, 4, 8),
    "wav2vec2": lambda: _audio(t.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, vocab_size=20,
        conv_dim=(8, 8, 8), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2), t.AutoModelForCTC),
    "unet": _unet,
}  # fmt: skip


class _Residual(nn.Module):
    """Convolutions of a diffusion model, with the embedding of its time step."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inputs), nn.GroupNorm(2, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time, self.skip = nn.Linear(8, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return images of other channels."""
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        out: Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(y)))
        return out


class _CrossAttention(nn.Module):
    """Attention of the pixels of an image to a text, and a gated unit."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.norm1, self.norm2 = nn.GroupNorm(2, size), nn.LayerNorm(size), nn.LayerNorm(size)
        self.query, self.key = nn.Linear(size, size, bias=False), nn.Linear(6, size, bias=False)
        self.value, self.out = nn.Linear(6, size, bias=False), nn.Linear(size, size)
        self.gate, self.down = nn.Linear(size, 4 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Return images of the same shape."""
        batch, channels, height, width = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (
            layer(one).view(batch, -1, 2, channels // 2).transpose(1, 2)
            for layer, one in ((self.query, self.norm1(y)), (self.key, context), (self.value, context))
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        y = y + self.out(mixed.transpose(1, 2).reshape(batch, -1, channels))
        up, gate = self.gate(self.norm2(y)).chunk(2, -1)
        y = y + self.down(up * F.gelu(gate))
        return x + y.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    """A small network of the kind that diffusion models have."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.first, self.down = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.residuals = nn.ModuleList([_Residual(4, 4), _Residual(4, 8), _Residual(8, 8)])
        self.attentions = nn.ModuleList([_CrossAttention(8), _CrossAttention(8)])
        self.up, self.last_residual = nn.Conv2d(8, 8, 3, padding=1), _Residual(12, 4)
        self.norm, self.last = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        """Return the noise in a sample."""
        angles = timestep[:, None].float() * torch.tensor([[1.0, 0.1, 0.01, 0.001]])
        time = self.embedding(torch.cat([angles.cos(), angles.sin()], -1))
        skip = self.residuals[0](self.first(sample), time)
        x = self.attentions[0](self.residuals[1](self.down(skip), time), context)
        x = self.attentions[1](self.residuals[2](x, time), context)
        x = self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.last_residual(torch.cat([x, skip], 1), time)
        out: Tensor = self.last(F.silu(self.norm(x)))
        return out


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all steps."""
        out: Tensor = self.layer(x)[0]
        return out


def perturb(module: nn.Module) -> None:
    """Add noise to all weights and to the statistics of batch norms, in place.

    Vectors, which are biases and the weights of norms, get a tenth of a standard normal; other weights half of
    what keeps the variance of a linear layer's input. Other buffers, such as masks and positions, stay.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.1 if parameter.dim() < 2 else 0.5 / parameter[0].numel() ** 0.5
            parameter += scale * torch.randn_like(parameter)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn_like(buffer)
            elif name.endswith("running_var"):
                buffer *= 0.5 + torch.rand_like(buffer)


def export(example: Example, exporter: str) -> onnx.ModelProto:
    """Export a model; axes after the batch stay open where the exporter manages."""
    for count in range(len(example.axes), 0, -1):
        try:
            model = export_with_axes(example, exporter, example.open_axes(count))
            check_other_sizes(model, example, example.open_axes(count))
        except Exception as error:  # exporters fail in many ways; fewer open axes may do
            if count == 1:
                raise
            print(f"{exporter} keeps {example.axes[count - 1]} fixed: {str(error).splitlines()[:1]}")
            continue
        return model
    raise AssertionError("no axes")


def export_with_axes(example: Example, exporter: str, axes: dict[str, dict[int, str]]) -> onnx.ModelProto:
    """Export a model with some open axes of each input."""
    inputs, outputs = tuple(example.inputs.values()), [example.output, *example.more_outputs]
    names: Any = {"input_names": list(example.inputs), "output_names": outputs}
    if exporter == "legacy":
        written = io.BytesIO()
        first = next(iter(axes.values())) if not example.own_axes else {0: "batch"}
        past = {name: {0: "batch", 2: "total"} for name in example.more_outputs}
        dynamic = {**axes, example.output: first, **past}
        torch.onnx.export(
            example.module, inputs, written, dynamo=False, opset_version=17, dynamic_axes=dynamic, **names
        )
        return onnx.load_from_string(written.getvalue())
    shapes: Any = tuple(axes.values())
    if isinstance(example.module, WithPast):
        shapes = (shapes[0], shapes[1:])
    elif isinstance(example.module, First):
        shapes = (shapes,)  # its inputs are one *argument
    program = torch.onnx.export(
        example.module, inputs, dynamo=True, dynamic_shapes=shapes, verbose=False, **names
    )
    assert program is not None
    return program.model_proto


def check_other_sizes(model: onnx.ModelProto, example: Example, axes: dict[str, dict[int, str]]) -> None:
    """Compare ONNX Runtime with the module where the open axes are one longer than in the export."""
    inputs = dict(example.inputs)
    for name, tensor in inputs.items():
        for axis in axes[name]:
            tensor = torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)
        inputs[name] = tensor
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0]
    with torch.no_grad():
        expected = example.module(*inputs.values())
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(
        torch.from_numpy(found), expected, rtol=0, atol=1e-4 * float(expected.abs().max())
    )


def write(name: str, exporter: str) -> str:
    """Export one model; return what happened."""
    torch.manual_seed(0)
    example = MODELS[name]()
    perturb(example.module)
    example.module.eval()
    model = export(example, exporter)
    strip(model)
    path = HERE / f"{name}.{exporter}.onnx.xz"
    path.write_bytes(lzma.compress(model.SerializeToString()))
    return f"{path.stat().st_size:,} bytes, {', '.join(map(describe, model.graph.input))}"


def describe(value: onnx.ValueInfoProto) -> str:
    """Return the name and shape of an input as text."""
    sizes = [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]
    return f"{value.name} [{', '.join(sizes)}]"


KEPT_METADATA = ("pkg.torch.onnx.class_hierarchy", "pkg.torch.onnx.name_scopes")


def strip(model: onnx.ModelProto) -> None:
    """Remove descriptions and metadata, among them the paths of the exporting machine; keep names of modules."""
    del model.metadata_props[:]
    model.doc_string = ""
    for graph in (model.graph, *model.functions):
        graph.doc_string = ""
        del graph.metadata_props[:]
        parts = [*graph.node, *graph.value_info, *getattr(graph, "initializer", ())]
        for part in [*parts, *(p for p in (*graph.input, *graph.output) if not isinstance(p, str))]:
            part.doc_string = ""
            kept = [prop for prop in part.metadata_props if prop.key in KEPT_METADATA]
            del part.metadata_props[:]
            part.metadata_props.extend(kept)


def main() -> None:
    """Write the files named on the command line, or all."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or MODELS:
        for exporter in ("dynamo", "legacy"):
            try:
                print(f"{name:18} {exporter:7} {write(name, exporter)}", flush=True)
            except Exception as error:  # an exporter that fails is no reason to stop
                print(f"{name:18} {exporter:7} failed: {type(error).__name__}: {str(error).splitlines()[:1]}")
                if len(sys.argv) > 1:
                    traceback.print_exc()


if __name__ == "__main__":
    main()
