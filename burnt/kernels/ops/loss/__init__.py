"""Losses.

loss                        cross-entropy
cross_entropy_rows          the losses of rows and their gradients, in one pass
fused_linear_cross_entropy  a linear layer and cross-entropy without the logits in memory
"""
