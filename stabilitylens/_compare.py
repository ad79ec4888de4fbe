"""What tells runs apart."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.comparison import Comparison, comparison
from stabilitylens.errors import BadInput
from stabilitylens.readers import read_all
from stabilitylens.run import Run


def compare(*runs: str | Path | Run) -> Comparison:
    """Compare two runs, or more: where they part, and what their headers say differs.

    Args:
        runs: two or more: folders that ``attach`` wrote to, logs of other tools, folders of many runs, or runs that are
            loaded already.

    Raises:
        stabilitylens.errors.BadInput: fewer than two runs, or one cannot be read.
    """
    found = [one for run in runs for one in ([run] if isinstance(run, Run) else read_all(Path(run)))]
    if len(found) < 2:
        given = f"{found[0].path} is one" if found else "none was named"
        raise BadInput(f"compare needs two runs, and {given}; name {'another beside it' if found else 'two, or a folder of them'}")
    return comparison(found)
