"""The post-mortem of a log that another tool wrote: python examples/06_foreign_log.py [log.csv]

Without a log of yours it makes one with a loss spike in it.
"""

import csv
import sys
from pathlib import Path

import numpy as np

import stabilitylens as sl

path = Path(sys.argv[1] if len(sys.argv) > 1 else "foreign.csv")
if not path.exists():
    rng = np.random.default_rng(0)
    loss = 2 + 4 * np.exp(-np.arange(1000) / 150) + 0.02 * rng.normal(size=1000)
    loss[600:630] += 3 * np.exp(-np.arange(30) / 6)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", "train/loss"), *enumerate(loss)])

report = sl.postmortem(path)
for incident in report.incidents:
    print(f"{incident.kind} at step {incident.peak_step}: {incident.explanation}")
for suspect in report.suspects[:3]:
    print(f"suspect: {suspect['name']}, score {suspect['score']}")
