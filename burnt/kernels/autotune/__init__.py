"""Checking and timing candidates, and storing the measurements."""
