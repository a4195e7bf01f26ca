"""The ops, one file or package per family."""
