"""Scheduling: turn a traced graph into a plan of kernels and torch calls, and optimize each kernel.

scheduler           lowers a graph's nodes, and decides which values are stored in memory
fusion              builds kernels: which stores and reductions are fused
passes              optimizes one kernel: loop order, shared expressions, online reductions
partial_sums        fuses column sums into other kernels, as partial sums over chunks of rows
matmul_column_sums  fuses column sums of a matmul's result into the matmul
rounding_hazards    finds sums that must be computed only once
saved_tensors       selects what the forward saves for the backward
"""
