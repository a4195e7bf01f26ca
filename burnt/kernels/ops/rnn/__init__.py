"""Recurrent layers, and the loops over their steps."""
