"""What a lens does without is not loaded for it, and functions that something stands in for are known all the same."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_attaching_loads_neither_scipy_nor_the_black_box_nor_counterfactuals() -> None:
    code = (
        "import sys, torch, stabilitylens; known = set(sys.modules); stabilitylens.attach; "
        "print(*sorted(m for m in set(sys.modules) - known if m.startswith(('scipy', 'stabilitylens'))))"
    )
    loaded = run(code).split()
    heavy = ("scipy", "stabilitylens.rules", "stabilitylens.hooks.counterfactuals")
    assert "stabilitylens.hooks.lens" in loaded and not [m for m in loaded if m.startswith(heavy)]
    assert not {"stabilitylens.hooks.blackbox.replaying", "stabilitylens.hooks.blackbox.box"} & set(loaded)


def test_attention_is_known_to_what_is_loaded_while_a_compiled_model_is_observed() -> None:
    code = (
        "import torch.nn.functional as F, stabilitylens.hooks.compiled as c; plain = F.scaled_dot_product_attention; c._patch(1); "
        "from stabilitylens.hooks.counterfactuals.fp32_norms_and_attention import PRODUCTS; "
        "print(plain in PRODUCTS and F.scaled_dot_product_attention in PRODUCTS)"
    )
    assert run(code).strip() == "True"
