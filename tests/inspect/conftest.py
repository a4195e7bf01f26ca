import pytest


@pytest.fixture
def in_process(monkeypatch):
    """Check and summarize in this process, so that a test sees what the model does meanwhile."""
    monkeypatch.setattr("burnt.inspect.meta._can_fork", lambda: False)
