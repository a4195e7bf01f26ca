"""The machine's name in tuning keys."""

import torch

from burnt.kernels.interface.tuning_key import machine_name


def test_a_changed_number_of_threads_is_another_machine(monkeypatch):
    for count in (3, 5, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        assert f", {count} threads, " in machine_name("cpu")
