# ruff: noqa: E501
"""Write small ONNX files of Hugging Face architectures with random weights, by both of torch's exporters.

    python tests/onnx/files/make_transformers.py [NAME ...]

Each file is beside this script: ``<name>.<exporter>.onnx.xz``, without the metadata that exporters add. They were
made with torch 2.13 and transformers 5. Where an exporter fails, there is no file.
"""

from __future__ import annotations

import io
import lzma
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers as t
from torch import Tensor, nn

HERE = Path(__file__).parent
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
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


def _text(config: Any, auto: Any = t.AutoModel, mask: bool = True, **fixed: Any) -> Any:
    config._attn_implementation = "eager"
    model = (
        auto.from_config(config, attn_implementation="eager")
        if hasattr(auto, "from_config")
        else auto(config)
    )
    names = ("input_ids", "attention_mask") if mask else ("input_ids",)
    return First(model, names, **fixed), ((IDS, MASK) if mask else (IDS,))


def _image(config: Any, auto: Any = t.AutoModel, size: int = 32) -> Any:
    model = auto.from_config(config) if hasattr(auto, "from_config") else auto(config)
    return First(model, ("pixel_values",)), (torch.randn(2, 3, size, size),)


VISION = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: _text(t.BertConfig(**SMALL), t.AutoModelForSequenceClassification),
    "distilbert": lambda: _text(t.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=24, vocab_size=40)),
    "roberta": lambda: _text(t.RobertaConfig(**SMALL, pad_token_id=0), t.AutoModelForMaskedLM),
    "albert": lambda: _text(t.AlbertConfig(**SMALL, embedding_size=8)),
    "electra": lambda: _text(t.ElectraConfig(**SMALL, embedding_size=8)),
    "mpnet": lambda: _text(t.MPNetConfig(**SMALL)),
    "gpt2": lambda: _text(
        t.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32),
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
        t.OPTConfig(hidden_size=16, num_hidden_layers=2, ffn_dim=24, num_attention_heads=2, vocab_size=40,
                    max_position_embeddings=32, word_embed_proj_dim=16),
        t.AutoModelForCausalLM, use_cache=False),
    "t5_encoder": lambda: _text(
        t.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, vocab_size=40), t.T5EncoderModel),
    "vit": lambda: _image(t.ViTConfig(**VISION), t.AutoModelForImageClassification),
    "deit": lambda: _image(t.DeiTConfig(**VISION)),
    "dinov2": lambda: _image(t.Dinov2Config(**VISION)),
    "swin": lambda: _image(t.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2],
                                        window_size=4)),
    "resnet": lambda: _image(
        t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), t.AutoModelForImageClassification),
    "convnext": lambda: _image(t.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
    "regnet": lambda: _image(t.RegNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)),
    "segformer": lambda: _image(t.SegformerConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[4, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=8)),
    "clip_vision": lambda: _image(t.CLIPVisionConfig(**VISION), t.CLIPVisionModel),
    "clip_text": lambda: _text(t.CLIPTextConfig(**SMALL), t.CLIPTextModel),
    "whisper_encoder": lambda: (
        First(t.WhisperModel(t.WhisperConfig(
            d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=40, max_source_positions=20, num_mel_bins=8,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)).encoder, ("input_features",)),
        (torch.randn(2, 8, 40),)),
    "mamba": lambda: _text(
        t.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=40, state_size=4), t.AutoModelForCausalLM,
        mask=False, use_cache=False),
    "bart": lambda: _text(t.BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=40, max_position_embeddings=32), use_cache=False),
    "lstm": lambda: (_Recurrent(nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True)), (torch.randn(2, 7, 6),)),
    "gru": lambda: (_Recurrent(nn.GRU(6, 5, batch_first=True)), (torch.randn(2, 7, 6),)),
    "torch_transformer": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2, enable_nested_tensor=False),
        (torch.randn(2, 5, 16),)),
}  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all steps."""
        out: Tensor = self.layer(x)[0]
        return out


def write(name: str, exporter: str) -> str:
    """Export one model; return what happened."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    module.eval()
    path = HERE / f"{name}.{exporter}.onnx.xz"
    written = io.BytesIO()
    names = [f"input_{i}" for i in range(len(inputs))]
    if exporter == "dynamo":
        shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs)
        program = torch.onnx.export(module, inputs, dynamo=True, dynamic_shapes=(shapes,), verbose=False)
        model = program.model_proto
    else:
        axes = {input_name: {0: "batch"} for input_name in names}
        torch.onnx.export(
            module, inputs, written, dynamo=False, input_names=names, dynamic_axes=axes, opset_version=17
        )
        model = onnx.load_from_string(written.getvalue())
    strip(model)
    path.write_bytes(lzma.compress(model.SerializeToString()))
    return f"{path.stat().st_size:,} bytes"


def strip(model: onnx.ModelProto) -> None:
    """Remove metadata and descriptions, among them the paths of the exporting machine."""
    del model.metadata_props[:]
    model.doc_string = ""
    for graph in (model.graph, *model.functions):
        graph.doc_string = ""
        del graph.metadata_props[:]
        parts = [*graph.node, *graph.value_info, *getattr(graph, "initializer", ())]
        for part in [*parts, *(p for p in (*graph.input, *graph.output) if not isinstance(p, str))]:
            part.doc_string = ""
            del part.metadata_props[:]


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
