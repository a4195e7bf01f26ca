"""Print kernels as C11 with GNU builtins, for gcc and clang."""
