"""The ops, a file or a package per family."""
