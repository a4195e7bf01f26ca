"""What tests of trainings share: a quiet training, labelled batches, comparisons of states and messages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from burnt.data import Loader, TensorDataset
from burnt.optim import Optimizer
from burnt.train import SupervisedTraining


def supervised(folder: Any, settings: Mapping[str, Any], **more: Any) -> SupervisedTraining:
    """A training on the CPU that shows nothing and checks nothing, with these settings."""
    return SupervisedTraining(
        folder, **{"device": "cpu", "monitor": "off", "check": False, **settings, **more}
    )


def bare(optimizer: type[Optimizer]) -> type[Optimizer]:
    """A user's optimizer, whose step takes none of the optional arguments and returns nothing."""

    def step(self: Any, lr: float, model: Any, grads: Any) -> None:
        optimizer.step(self, lr, model, grads)

    return type(f"Bare{optimizer.__name__}", (optimizer,), {"step": step})


class AtStep:
    """A callback that calls functions with the training after some steps."""

    def __init__(self, actions: Mapping[int, Callable[[Any], object]]) -> None:
        self.actions = actions

    def on_step(self, event: Any) -> None:
        if (act := self.actions.get(event.training.position.step)) is not None:
            act(event.training)


def labelled(n: int, batch_size: int, *, seed: int = 1, classes: int = 3, shuffle: bool = False) -> Loader:
    """Batches of x, ``[n, 6]``, and labels y, ``[n]``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    y = torch.randint(classes, (n,), generator=generator)
    return Loader(TensorDataset(x=x, y=y), batch_size, shuffle=shuffle)


def assert_same_tensors(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    """Assert that two states are equal to the bit."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


@contextmanager
def refused(error: type[BaseException], *words: str) -> Iterator[None]:
    """Assert that the block raises this error, and that its message has all these words."""
    with pytest.raises(error) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == []
