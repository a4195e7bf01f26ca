"""Artefacts of a run: confusion matrices, scores by class, histograms, images and texts.

widgets  the artefact view and the step slider
render   artefacts as lines of styled text
png      a PNG decoder
"""
