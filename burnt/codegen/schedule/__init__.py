"""From a graph to a plan: which values go through memory, and which loops form one kernel.

scheduler           the plan of a graph
fusion              which steps are fused into one kernel
passes              the passes of a kernel over its rows
partial_sums        sums cut into chunks, for threads
matmul_column_sums  column sums of a matmul's result, from its tiles
rounding_hazards    sums that must be computed only once
saved_tensors       what the forward saves for the backward
"""
