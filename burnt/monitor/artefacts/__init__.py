"""Artefacts of a run: images, histograms and tables.

widgets  the artefact viewer
render   artefacts as text
png      a PNG decoder
"""
