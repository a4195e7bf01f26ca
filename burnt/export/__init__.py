"""Models that run without Python: C for bare metal, and a web page."""

from burnt.export.c_source import CSource
from burnt.export.firmware import Firmware, write_firmware
from burnt.export.page import Page, write_page

__all__ = ["CSource", "Firmware", "Page", "write_firmware", "write_page"]
