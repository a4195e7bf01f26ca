"""What an optimizer's step is made of: clipping, loss scaling, several optimizers, precision."""
