import os

import jaxtyping

# before anything of ours is imported; the public calls and the command line check their input themselves
jaxtyping.install_import_hook(
    [
        *(f"stabilitylens.{n}" for n in ("dashboard", "kernels", "metrics", "norms", "readers", "reports", "rules", "writers")),
        *(f"stabilitylens.{n}" for n in ("header", "incidents._scores", "incidents._baseline", "moments", "run")),
        *(f"stabilitylens.hooks.{n}" for n in ("attention_view", "coverage", "parameters", "sample", "slots", "taps")),
    ],
    "typecheck.check",
)

# before Triton is imported: its kernels are tested in its interpreter
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

# how long an example takes says nothing on a machine that others use too
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _one_thread():
    """Two worker processes share two cores, and one thread is what makes bare training equal to itself."""
    torch.set_num_threads(1)
