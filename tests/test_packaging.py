"""What setup.cfg says of the package is what lies in the folders."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stabilitylens

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "setup.cfg").exists(), reason="the sources are out of reach")


def configuration() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def folders() -> set[str]:
    found = set()
    for top, name in (("stabilitylens", "stabilitylens"), ("hooks", "stabilitylens.hooks")):
        for init in (ROOT / top).rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(ROOT / top).parts]))
    return found


def test_every_folder_is_packaged():
    assert set(lines(configuration()["options"]["packages"])) == folders()


def test_every_data_file_is_packaged():
    patterns = {p: v.replace(",", " ").split() for p, v in configuration()["options.package_data"].items()}
    for path in (ROOT / "stabilitylens").rglob("*"):
        if path.is_dir() or path.suffix in (".py", ".pyc"):
            continue
        package = max((p for p in patterns if path.is_relative_to(ROOT / p.replace(".", "/"))), key=len, default=None)
        assert package, f"{path.relative_to(ROOT)} is in no package_data"
        inside = path.relative_to(ROOT / package.replace(".", "/"))
        assert any(inside.match(pattern) for pattern in patterns[package]), inside


def test_versions_agree():
    assert configuration()["metadata"]["version"] == stabilitylens.__version__
    assert importlib.metadata.version("stabilitylens") == stabilitylens.__version__


def test_every_dependency_is_used_and_pinned():
    pinned = {re.split("[=<>]", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if line}
    code = "\n".join(p.read_text() for top in ("stabilitylens", "hooks") for p in (ROOT / top).rglob("*.py"))
    imported = {"pyyaml": "yaml", "google-crc32c": "google_crc32c"}
    for line in lines(configuration()["options"]["install_requires"]):
        name = re.split("[=<>]", line)[0].lower()
        assert name in pinned, f"{name} is not in constraints.txt"
        assert re.search(rf"(import|from) {imported.get(name, name)}\b", code), f"{name} is never imported"


def test_reading_imports_no_torch():
    code = "import sys, stabilitylens, stabilitylens.cli; stabilitylens.load, stabilitylens.postmortem; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
