"""Models that run without Python: C for bare metal, and a web page.

c_source.py         a module as C99 that allocates nothing
firmware.py         write_firmware: that C with a header, a Makefile and a test program; RAM and flash
wasm.py             that C as WebAssembly
page.py             write_page: the WebAssembly in one HTML file, of page.html and page.js
onnxruntime_web.py  the runtime of pages for ops that cannot be printed as C
"""

from burnt.export.c_source import CSource
from burnt.export.firmware import Firmware, write_firmware
from burnt.export.page import Page, write_page

__all__ = ["CSource", "Firmware", "Page", "write_firmware", "write_page"]
