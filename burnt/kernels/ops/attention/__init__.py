"""Attention: the public function, the op behind it, and its candidates."""
