import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two worker processes share two cores, and one thread is what makes bare training equal to itself."""
    torch.set_num_threads(1)
