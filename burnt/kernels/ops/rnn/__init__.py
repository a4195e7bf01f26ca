"""Recurrent layers.

rnn          LSTM and GRU: the ops, and stacks of layers
layer        a layer: one matmul over all steps, around a loop
loop_c       the loop in C
loop_triton  the loop in Triton
"""
