"""The version of burnt, for modules that must not import the whole package."""

__version__ = "0.1.0"
