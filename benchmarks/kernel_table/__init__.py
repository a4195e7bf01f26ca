"""What `benchmarks/kernels.py` is made of. Without burnt can do: `rows`, `clock` and `rival`."""
