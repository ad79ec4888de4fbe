"""Members come in the order of their files, whatever was imported first."""

from __future__ import annotations

import subprocess
import sys


def test_a_file_that_was_imported_first_is_not_the_first_member() -> None:
    code = (
        "import stabilitylens.readers.recording, stabilitylens.rules.sl402_no_supervised_tokens, stabilitylens.metrics.resid_rms\n"
        "from stabilitylens.readers import READERS\nfrom stabilitylens.rules import RULES\nfrom stabilitylens.metrics import METRICS\n"
        "print([r.read.__module__ for r in READERS] == sorted(r.read.__module__ for r in READERS))\n"
        "print(RULES.names() == sorted(RULES.names()), METRICS.names() == sorted(METRICS.names()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["True", "True", "True"]
