"""Kernels as Triton.

kernel           kernels of rows and columns of a tile; puts the others together
expr             expressions and masks
layout           which loops are the rows and which the columns of a tile
matmul           prologues and epilogues of matmuls and convolutions
matmul_template  the matmul itself, written once
device_math      math functions that `tl` lacks
source           what a printer returns
configs          block sizes for any kernel: heuristic and candidates
tile_config, matmul_config   those of tiles and of matmuls
"""
