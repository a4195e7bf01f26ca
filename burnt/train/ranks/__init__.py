"""Training on several devices and machines: processes, called ranks, that take the same steps together."""
