"""Scheduling: turn a traced graph into a plan of kernels and torch calls, and optimize each kernel."""
