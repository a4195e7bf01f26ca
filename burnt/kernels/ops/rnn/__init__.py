"""Recurrent layers.

rnn          LSTM and GRU: the ops of one layer, and stacks of layers
layer        the candidate ``steps``: a loop over time between matmuls over all steps
loop_c       the loop in C
loop_triton  the loop in Triton
"""
