"""Convolutions.

conv    the ops, and their candidates
onednn  convolutions by oneDNN, with what is fused into them
"""
