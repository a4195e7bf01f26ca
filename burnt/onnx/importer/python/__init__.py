"""Programs as Python: statements in order, names of variables, expressions, and lines broken as ruff does."""
