"""burnt's kernels in a model that exists: `swap` and `unswap`.

==================  ============================================================================
`model.py`          `swap` and `unswap`: which places of a model, and the look at a batch
`site.py`           a place: the mechanism, and its first call
`measuring.py`      original and swapped beside each other: time and error
`kinds.py`          what is swapped with what: layers of `torch.nn`
`sequences.py`      the same for its LSTMs, gated recurrent units and attention
`hugging_face.py`   the same for the layers and functions of Hugging Face's models
`report.py`         what was swapped, where, and why not
`comparing.py`      a whole model eager, compiled and swapped, beside each other
==================  ============================================================================

**The mechanism** is one for all: a module gets another class, made of its own one, that overrides what is
swapped (mostly ``forward``). So the module stays the same object with the same parameters, buffers and hooks:
``isinstance``, optimizers, ``state_dict``, DDP and what wraps or refers to it see no difference, and taking
it back is to give it its class back. Instance attributes were the other way, and `copy.deepcopy` and pickling
fail on bound functions there; replaced modules are lost to whoever holds the old ones. The classes made here
say in their `__reduce_ex__` how to be made again, so that copies and pickles are swapped, too.

A place begins with a class that waits: its first call that computes (and is not recorded, compiled or
captured) takes the time of both on twins, modules that share the parameters' memory and nothing else. It then
gets the class that calls burnt's kernels, or its own one back, at no further cost. While a compiler looks,
all of them are the original.
"""

from __future__ import annotations

from burnt.swapping.api import swap, unswap
from burnt.swapping.report import Report, Row

__all__ = ["Report", "Row", "swap", "unswap"]
