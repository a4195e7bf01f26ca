"""From source text to a callable: compiling, caching, launching.

targets              C, Triton or Metal, by the device of the tensors
target               what all targets have in common
c_backend, triton_backend, metal_backend   one target each
c_compiler           finding the C compiler and its flags
build_cache          the folder of compiled libraries
c_library            compiling a source once, loading it, calling it cheaply
triton_compile_pool  Triton kernels compiled in other processes
triton_launch        Triton kernels loaded and launched
compiled_plan        a plan that runs: buffers, kernels, torch's own calls
"""
