"""Batches in order: samplers, workers, streams, and the state that resumes them."""
