"""Widgets and helpers that the screens share."""
