"""Models that run without Python: C for bare metal, and a web page.

c_source.py  a module as C99 that allocates nothing
firmware.py  write_firmware: that C with a header, a Makefile and a test program; RAM and flash
page.py      write_page: that C as WebAssembly in one HTML file
"""

from burnt.export.c_source import CSource, c_source
from burnt.export.firmware import Firmware, write_firmware
from burnt.export.page import Page, write_page

__all__ = ["CSource", "Firmware", "Page", "c_source", "write_firmware", "write_page"]
