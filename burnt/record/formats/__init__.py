"""Tensor files: safetensors and its folders of shards, torch, npz, GGUF, Burn."""
