"""A report never takes the place of the log that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitylens import cli


def code_of(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    return left.value.code


@pytest.mark.parametrize(
    "command",
    [
        ["postmortem", "{log}", "-o", "{log}"], ["export", "{log}", "--to", "csv", "-o", "{log}"],
        ["compare", "{log}", "{log}", "-o", "{log}"], ["postmortem", "{folder}", "-o", "{log}"],
        ["postmortem", "{log}", "-o", "{folder}/../run/log.csv"],
    ],
)  # fmt: skip
def test_the_output_may_not_be_what_is_read(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    log = folder / "log.csv"
    text = "step,loss\n" + "".join(f"{i},{5 / (i + 1)}\n" for i in range(40))
    log.write_text(text)
    assert code_of([part.format(log=log, folder=folder) for part in command]) == 2
    assert log.read_text() == text


def test_a_new_file_beside_the_log_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n" + "".join(f"{i},{5 / (i + 1)}\n" for i in range(40)))
    out = tmp_path / "report.txt"
    assert code_of(["postmortem", str(tmp_path), "-o", str(out)]) == 0
    assert out.stat().st_size > 0
