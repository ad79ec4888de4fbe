"""What is kept around an incident, and its exact replay."""

from stabilitylens.hooks.blackbox.evidence import Evidence
from stabilitylens.hooks.blackbox.options import BlackBox
from stabilitylens.hooks.blackbox.replaying import replay
from stabilitylens.hooks.blackbox.rerun import Rerun
from stabilitylens.hooks.blackbox.result import FirstBad, Frame, Replay, Values
from stabilitylens.hooks.blackbox.samples import Row, Samples
from stabilitylens.hooks.blackbox.swap import Cause

__all__ = ["BlackBox", "Cause", "Evidence", "FirstBad", "Frame", "Replay", "Rerun", "Row", "Samples", "Values", "replay"]
