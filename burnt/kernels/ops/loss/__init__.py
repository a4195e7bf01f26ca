"""Losses.

loss                        `cross_entropy`
cross_entropy_rows          fused functions for the losses of rows and their gradients, in one pass
fused_linear_cross_entropy  `linear_cross_entropy`: a linear layer and cross-entropy without all logits in
memory
"""
