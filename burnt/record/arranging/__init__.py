"""How other programs name and arrange tensors."""
