"""Convolutions.

conv    the ops `conv` and `conv_transpose`, and their candidates
onednn  convolutions by oneDNN, with fused activations and packed weights
"""
