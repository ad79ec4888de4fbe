"""Every example runs as it stands, says what it promises, and is short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
#: what each prints; the one for torchrun has a test of its own
SAYS = {
    "01_plain_pytorch": "observed", "02_huggingface_trainer": "rule", "03_lightning": "rule", "05_vit_on_digits": "largest attention logit",
    "06_foreign_log": "spike at step 60", "07_custom_metric_and_rule": "MY101 fired: the mean of the stream",
    "08_lr_sensitivity": "LR sensitivity", "09_black_box": "skip_batch averts it",
}  # fmt: skip
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="the sources are out of reach")


def test_all_are_known_and_short():
    names = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert set(SAYS) == set(names) - {"04_fsdp2_torchrun"}
    assert all(lines < 60 for lines in names.values()), names


@pytest.mark.parametrize("name", SAYS)
def test_runs(name: str, tmp_path: Path):
    where = tmp_path / ("log.csv" if name == "06_foreign_log" else "run")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(where)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout, done.stdout


NOTEBOOKS = EXAMPLES.parent / "notebooks"


@pytest.mark.skipif(not NOTEBOOKS.exists(), reason="the sources are out of reach")
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_keep_their_outputs_and_nothing_of_the_machine(path: Path):
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells) and any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    shown = "".join("".join(output.get("text", [])) for output in outputs)
    assert not [where for where in ("/home/", "/root/", "/tmp/", "/work/", "\\Users\\") if where in shown]


@pytest.mark.skipif(not NOTEBOOKS.exists(), reason="the sources are out of reach")
def test_there_are_six_notebooks():
    assert [path.stem[0] for path in sorted(NOTEBOOKS.glob("*.ipynb"))] == ["1", "2", "3", "4", "5", "6"]
