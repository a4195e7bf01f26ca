"""Print kernels as Triton.

kernel           entry point; kernels of a tile of rows and columns
expr             expressions, loads, stores and masks
layout           which loops are the rows and which the columns of a tile
matmul           operands and epilogues of matmuls and convolutions
matmul_template  the matmul itself, written once
device_math      math functions that `tl` lacks
source           what the printer returns
configs          block sizes of any kernel: heuristic and candidates
tile_config, matmul_config   those of tiles and of matmuls
"""
