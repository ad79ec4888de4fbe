"""Coverage-guided fuzzing of the readers for a fixed budget, where atheris is installed; its seeds are our small logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from log_files import FORMATS as FILES
from text_formats import FORMATS as TEXTS

RUNS, SECONDS = 2_000, 12
#: in a process of its own: the fuzzer leaves with the process
_FUZZ = """
import sys
import atheris
from pathlib import Path
from tempfile import mkdtemp
with atheris.instrument_imports(include=["stabilitylens.readers"]):
    from stabilitylens.errors import BadInput
    from stabilitylens.readers import read_all
path = Path(mkdtemp()) / "log"
def read(data):
    path.write_bytes(data)
    try:
        read_all(path)
    except BadInput as error:
        assert "\\n" not in str(error)
atheris.Setup(sys.argv, read)
atheris.Fuzz()
"""


@pytest.mark.slow
def test_bytes_that_a_fuzzer_finds_never_raise_but_bad_input(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    for name in [name for name in FILES if name not in ("mlflow", "wandb_folder")]:
        FILES[name][2](seeds / name)
    for name, log in TEXTS.items():
        (seeds / f"text_{name}").write_text(log.text()[:2000], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _FUZZ, f"-runs={RUNS}", f"-max_total_time={SECONDS}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=2048", str(seeds)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
