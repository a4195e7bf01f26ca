"""Artefacts of a run: confusion matrices, scores by class, histograms, images and texts."""
