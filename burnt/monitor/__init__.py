"""The terminal monitor: a full-screen app that watches, compares and steers runs, in a process of its own.

It reads run stores and writes command files, nothing else, and never imports torch.
"""
