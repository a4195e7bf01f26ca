"""`swap` and `unswap`: use burnt's kernels in an existing model.

================= ==============================================================================
`api.py`          `swap` and `unswap`: select the sites of a model, and measure them with a batch
`first_call.py`   hooks of a model's first call: use what was kept, time the whole model
`kept.py`         the files of kept decisions
`site.py`         a site (one swapped module): its subclasses, and its first call
`measure.py`      run the original and the swapped module side by side: time and error
`state.py`        restore what a call of a user's module changes
`kind.py`         `Kind`: which modules are recognised, and what replaces their method
`patterns/`       the kinds: layers of `torch.nn`, of Hugging Face's models, and blocks of layers
`report.py`       what was swapped, where, and why not; saved as JSON
`benchmark.py`    compare a whole model: eager, compiled and swapped
================= ==============================================================================

**How it works.** A site's module gets a new class: a subclass of its own that overrides one method (mostly
``forward``). So the module stays the same object with the same parameters, buffers and hooks; ``isinstance``,
optimizers, ``state_dict``, DDP and wrappers see no difference, and `unswap` sets the original class again.
The alternatives do not work: a function set on the instance breaks `copy.deepcopy` and pickling, and a
replacement module does not reach code that holds the old one. The subclasses define `__reduce_ex__`, so that
copies and pickles are swapped too.

A site first gets a measuring subclass. Its first call that computes eagerly (not traced, compiled or
captured) times the original and burnt's kernels on copies that share only the memory of the parameters. The
module then gets its original class back, or the subclass that calls burnt's kernels, which checks before each
call whether they take its arguments. Under `torch.compile` every subclass runs the original method.
"""

from __future__ import annotations

from burnt.swapping.api import swap, unswap
from burnt.swapping.report import Report, Row

__all__ = ["Report", "Row", "swap", "unswap"]
