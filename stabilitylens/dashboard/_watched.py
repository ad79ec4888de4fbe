"""A run that is looked at again and again: of a recording only what was appended is read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from stabilitylens.dashboard._recording import Recording
from stabilitylens.dashboard._verdicts import LEAST, PATIENCE, thinning
from stabilitylens.errors import BadInput
from stabilitylens.incidents import detect
from stabilitylens.readers import read
from stabilitylens.readers.recording import files_of
from stabilitylens.report import Subject
from stabilitylens.rules import Evidence, judge
from stabilitylens.run import Run


class Watched:
    """Follows one run.

    Raises:
        BadInput: nothing is there.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise BadInput(f"{path} does not exist; give the folder that a run is recorded in")
        self._path = path
        self._recording = Recording(path) if files_of(path) else None
        self._subject: Subject | None = None
        self._until = 0.0

    def look(self) -> Subject:
        """The run as it stands; judged again only after a multiple of the time that judging took.

        Raises:
            BadInput: it cannot be read.
        """
        run, now = self._run(), time.monotonic()
        if self._subject is not None and now < self._until:
            return replace(self._subject, run=run)
        header = run.header
        findings = judge(Evidence(run.path, header.anatomy, header.recipe, run))
        self._subject = Subject(run.path, tuple(findings), header.anatomy, header.recipe, run, tuple(detect(run)))
        took = time.monotonic() - now
        self._until = now + took + max(LEAST, PATIENCE * took)
        return self._subject

    def _run(self) -> Run:
        if self._recording is None:
            return read(self._path)
        snapshot = self._recording.look()
        return snapshot.run(str(self._path), thinning(snapshot))
