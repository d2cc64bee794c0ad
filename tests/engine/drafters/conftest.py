"""Training needs gradients: the inference mode of the engine's other tests is off here."""

import pytest


@pytest.fixture(autouse=True)
def _inference():
    return
