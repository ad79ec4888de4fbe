"""One detector, one file. ``detect(run)`` runs them all and returns incidents in order of start."""

from stabilitylens.incidents._detector import DETECTORS, Detector, detect, detector
from stabilitylens.incidents._incident import Incident
from stabilitylens.incidents._spike_score import spike_score

__all__ = ["DETECTORS", "Detector", "Incident", "detect", "detector", "spike_score"]
