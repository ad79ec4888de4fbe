"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stabilitylens import cli
from stabilitylens._postmortem import postmortem
from stabilitylens.run import Run
from tests import run_builders as runs

postmortem_home = sys.modules["stabilitylens._postmortem"]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """``runs/base`` and ``runs/qk_norm`` as if they were on disk."""
    known = {"runs/base": runs.logit_growth(), "runs/qk_norm": runs.healthy()}
    monkeypatch.setattr(postmortem_home, "read_all", lambda path, loss=None: [known[str(path)]])


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(list(argv))
    return int(left.value.code or 0)


def one_sentence(captured: pytest.CaptureResult[str]) -> str:
    """Standard error, which is one line, says who speaks, and shows no traceback."""
    (line,) = captured.err.splitlines()
    assert line.startswith("stabilitylens: ") and "Traceback" not in line
    return line


def commands() -> list[str]:
    return [command.name or "" for command in cli.app().registered_commands]


def test_every_file_of_the_folder_without_an_underscore_is_a_command() -> None:
    folder = Path(cli.__file__).parent
    assert commands() == sorted(f.stem for f in folder.glob("*.py") if not f.stem.startswith("_"))


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    docstring = next(c.callback for c in cli.app().registered_commands if c.name == command).__doc__
    assert " ".join(docstring.split("\n\n")[0].split()) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["postmortem", "audit"])
def test_every_report_takes_the_same_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--format", "-o", "--fail-on"))


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"stabilitylens {cli.__version__}\n"


@pytest.mark.parametrize("flags", [[], ["-OO"]], ids=["", "without docstrings"])
def test_python_m_is_the_command(flags: list[str]) -> None:
    done = subprocess.run([sys.executable, *flags, "-m", "stabilitylens", "explain", "SL101"], capture_output=True, text=True)
    assert done.returncode == 0 and "SL101" in done.stdout, done.stderr


@pytest.mark.usefixtures("recorded")
def test_postmortem_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("postmortem", "runs/base") == 0
    out, err = capsys.readouterr()
    assert "attention-logit-growth" in out and "\x1b" not in out and err == ""
    assert out == str(postmortem(runs.logit_growth()))


@pytest.mark.usefixtures("recorded")
def test_postmortem_writes_json_of_several_runs_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("postmortem", "runs/base", "runs/qk_norm", "--format", "json", "-o", str(tmp_path / "r.json")) == 0
    assert capsys.readouterr().out == ""
    data = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert [run["path"] for run in data["runs"]] == ["runs/base", "runs/qk_norm"]


@pytest.mark.usefixtures("recorded")
def test_postmortem_writes_a_page(tmp_path: Path) -> None:
    assert call("postmortem", "runs/base", "--format", "html", "-o", str(tmp_path / "r.html")) == 0
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    ("path", "level", "code"), [("runs/base", "error", 1), ("runs/qk_norm", "error", 0), ("runs/base", "info", 1)]
)
def test_fail_on_decides_the_exit_code_after_the_report(
    path: str, level: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("postmortem", path, "--format", "json", "--fail-on", level) == code
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_bad_usage_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["postmortem"], ["nonsense"], ["postmortem", "x", "--format", "pdf"], ["--what"]):
        assert call(*argv) == 2
        assert "--help" in one_sentence(capsys.readouterr())


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 2
    assert "postmortem" in capsys.readouterr().out


def bad_paths(folder: Path) -> dict[str, Path]:
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("not a log\n", encoding="utf-8")
    (folder / "foreign").mkdir()
    from tensorboard.summary import Writer

    writer = Writer(str(folder / "foreign"))
    writer.add_scalar("somebody/elses", 1.0, step=1)
    writer.close()
    return {name: folder / name for name in ("missing", "empty", "text.txt", "foreign")}


@pytest.mark.parametrize("kind", ["missing", "empty", "text.txt", "foreign"])
def test_a_path_without_a_run_is_one_sentence(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bad_paths(tmp_path)[kind]
    assert call("postmortem", str(path)) == 2
    said = capsys.readouterr()
    assert str(path) in one_sentence(said) and said.out == ""


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("target", ["no/such/folder/r.json", "."])
def test_a_file_that_cannot_be_written_is_one_sentence(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("postmortem", "runs/base", "-o", str(tmp_path / target)) == 2
    assert "cannot write" in one_sentence(capsys.readouterr())


@pytest.mark.usefixtures("recorded")
def test_a_page_is_not_poured_into_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call("postmortem", "runs/base", "--format", "html") == 2
    assert "-o report.html" in one_sentence(capsys.readouterr())


def test_a_fault_of_our_own_is_one_sentence_and_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path, loss: str | None = None) -> list[Run]:
        raise ZeroDivisionError("in\nour code")

    monkeypatch.setattr(postmortem_home, "read_all", broken)
    assert call("postmortem", "x") == 3
    assert "ZeroDivisionError: in our code; set STABILITYLENS_DEBUG=1" in one_sentence(capsys.readouterr())
    monkeypatch.setenv("STABILITYLENS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["postmortem", "x"])


def test_explain_prints_a_page_or_offers_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("explain", "SL201") == 0
    assert "attention-logit-growth" in capsys.readouterr().out
    assert call("explain", "SL2O1") == 2
    assert "SL2O1" in one_sentence(capsys.readouterr())


def python(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, env=os.environ | env, check=False
    )


def test_help_imports_nothing_heavy() -> None:
    heavy = "torch plotly scipy matplotlib tensorboard transformers pandas"
    code = (
        "import sys, stabilitylens.cli as cli\n"
        "try: cli.main(['--help'])\n"
        f"except SystemExit: print([m for m in {heavy.split()} if m in sys.modules])"
    )
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_and_a_narrow_encoding_are_no_faults() -> None:
    code = "import sys, stabilitylens.cli as cli; cli.main(sys.argv[1:])"
    done = python(code, "explain", "SL201", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stderr == ""
    for command in (["explain", "SL201"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        closed = subprocess.run(
            [sys.executable, "-c", code, *command], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
        os.close(writer)
        assert (closed.returncode, closed.stderr) == (0, "")
