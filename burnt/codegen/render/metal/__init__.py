"""Print kernels as Metal shaders; tested as C++ on an emulation, never yet run on a Metal device."""
