"""RandomStates on devices whose torch module has random states, and on one whose module has none."""

import types
import warnings

import pytest
import torch

from burnt.device import random_states_of
from burnt.inspect.meta import preserved_random_states
from burnt.train.checkpoints.rng import RandomStates


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A device module of two devices, whose random states are numbers, in place of torch's."""
    module = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, states=[3, 5])

    def set_rng_state(state: torch.Tensor, device: int) -> None:
        module.states[device] = int(state)

    module.get_rng_state = lambda device: torch.tensor(module.states[device])
    module.set_rng_state = set_rng_state
    device = types.SimpleNamespace(type="twin")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: module)
    random_states_of.cache_clear()
    yield module
    random_states_of.cache_clear()


def test_states_of_any_accelerator_are_restored(runtime: types.SimpleNamespace) -> None:
    states = RandomStates.capture()
    assert {name: int(state) for name, state in states.tensors.items() if name != "torch"} == {
        "twin0": 3,
        "twin1": 5,
    }
    runtime.states[:] = 7, 8
    with preserved_random_states():
        runtime.states[:] = 9, 9
    assert runtime.states == [7, 8]
    del states.tensors["twin1"]  # saved on a machine with fewer devices
    states.restore()
    assert runtime.states == [3, 8]


def test_a_device_without_random_states_is_left_out_with_one_warning(runtime: types.SimpleNamespace) -> None:
    del runtime.get_rng_state
    with pytest.warns(UserWarning, match="of twin devices are neither saved nor restored.* no get_rng_state"):
        states = RandomStates.capture()
    assert states.tensors.keys() == {"torch"}
    with warnings.catch_warnings(), preserved_random_states():
        warnings.simplefilter("error")
        RandomStates.capture().restore()
