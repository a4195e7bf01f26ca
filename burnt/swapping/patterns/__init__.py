"""The kinds: which modules are recognised, and the kernels that replace them.

torch_layers, torch_sequence_layers   layers of `torch.nn`
hf_layers, hf_attention               layers and functions of Hugging Face's models
conv_linear_blocks                    blocks that one convolution or linear kernel can compute
lazy_logits                           logits that are computed when they are read
rebind_globals                        a user's function with a global name rebound
"""
