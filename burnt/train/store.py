"""The run store under its earlier name; it is `burnt.store`."""

from burnt.store import *  # noqa: F403
