"""Compile, cache and launch generated kernels, and run plans.

targets              selects C, Triton or Metal by the device of the tensors
target               the interface of a target
c_backend, triton_backend, metal_backend   one target each
c_compiler           finds the C compiler and chooses its flags
build_cache          the folder of compiled libraries
c_library            compiles C into a cached library, loads it, calls it
triton_compile_pool  compiles Triton kernels in worker processes
triton_launch        launches Triton kernels
compiled_plan        runs a plan: allocates buffers, launches kernels, calls torch's ops
"""
