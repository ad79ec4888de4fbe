"""The report of a run as a page of its own, from what is on the disk now."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from stabilitylens._postmortem import postmortem
from stabilitylens.dashboard._recording import Snapshot
from stabilitylens.dashboard._verdicts import thinning
from stabilitylens.reports.html import scripts


def report(name: str, snapshot: Snapshot) -> tuple[str, list[str]]:
    """The page, and the hashes of its scripts for the policy that it is served with."""
    text = postmortem(snapshot.run(name, thinning(snapshot))).to_html()
    return text, [b64encode(sha256(script.encode()).digest()).decode() for script in scripts()]
