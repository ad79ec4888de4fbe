"""How often the incident detectors are wrong, on curves whose truth is known.

Decaying losses of 1,000 steps under a learning-rate schedule, with Gaussian, heavy-tailed (Student t, 4
degrees of freedom) and right-skewed noise (1.5 % of the points beyond 4 sigma, as in healthy per-step losses of
language models) of 0.5 to 12 % of the level.

A false alarm is an incident of severity warning or error, or an outlier that is said to stand out of the run's own
noise. The highest points of a heavy tail are listed as outliers too, for information and with a low confidence: in public
logs such points are what people call bad batches, and nothing in a loss tells the two apart. They are counted in a row
of their own.

The loss detectors of losslint and trainscope are put to the same questions where they are installed.

    python -m benchmarks.detectors [--seeds 20] [--peer-seeds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.detectors_peers import Alarms, installed
from stabilitylens.incidents import Incident, detect
from stabilitylens.run import Run, Series

STEPS = 1000
LEVELS = (0.005, 0.01, 0.03, 0.12)
SPIKES = tuple((at, width) for at in (60, 120, 600) for width in (2, 3, 5))
#: within this many steps of its onset a slow divergence has to be placed
NEAR = 60
ONSET, JUMP = 600, 500

Noise = Callable[[np.random.Generator, int], np.ndarray]


def gaussian(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(4, n) / np.sqrt(2.0)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    tail = rng.random(n) < 0.0145
    body = np.where(tail, 4.0 + 2.0 * rng.exponential(size=n), rng.standard_normal(n))
    return (body - 0.0145 * 6.0) / 1.24


NOISES: dict[str, Noise] = {"gaussian": gaussian, "heavy-tailed": heavy, "skewed": skewed}


def power(n: int) -> np.ndarray:
    """A power law after ten steps of warm-up, and a cool-down over the last tenth."""
    step = np.maximum(np.arange(n) - 10.0, 0.0)
    return (2.4 + 8.0 / np.sqrt(1.0 + step / 2.0)) * np.interp(np.arange(n), [0, 0.9 * n, n], [1.0, 1.0, 0.97])


def exponential(n: int) -> np.ndarray:
    """An exponential descent that levels off."""
    return 2.8 + 7.0 * np.exp(-np.arange(n) / 80.0)


CURVES = {"power": power, "exponential": exponential}


@dataclass(frozen=True)
class Case:
    """One noisy curve: its shape, noise and level, and the loss without and with noise."""

    noise: str
    level: float
    clean: np.ndarray
    sample: np.ndarray

    def loss(self, clean: np.ndarray | None = None) -> np.ndarray:
        values = (self.clean if clean is None else clean) * (1.0 + self.level * self.sample)
        return np.maximum(values, 0.01 * self.clean)


def cases(seeds: int, levels: Sequence[float] = LEVELS) -> Iterator[Case]:
    """Every shape, noise and level, as often as there are seeds."""
    for number, (shape, noise) in enumerate((s, n) for s in CURVES.values() for n in NOISES):
        for level in levels:
            for seed in range(seeds):
                rng = np.random.default_rng([number, int(1e4 * level), seed])
                yield Case(noise, level, shape(STEPS), NOISES[noise](rng, STEPS))


def found(loss: np.ndarray) -> list[Incident]:
    """The incidents of a run with this loss."""
    return detect(Run("memory", {"loss": Series("loss", np.arange(len(loss)), loss)}))


def alarms(loss: np.ndarray) -> list[Incident]:
    """The incidents that are more than information."""
    return [incident for incident in found(loss) if incident.severity != "info"]


def touches(incident: Incident, first: int, last: int) -> bool:
    """Whether an incident is within three steps of a span."""
    return incident.start_step <= last + 3 and incident.end_step >= first - 3


def with_spike(case: Case, at: int, width: int) -> np.ndarray:
    """The case's loss with a plateau of 6 standard deviations of its noise on it."""
    loss = case.loss()
    loss[at : at + width] += 6.0 * case.level * case.clean[at : at + width]
    return loss


def drifting(case: Case) -> np.ndarray:
    """From its onset on the loss rises by 10 % in 200 steps, to the end."""
    rise = 1.0 + 0.10 * (np.arange(STEPS) - ONSET) / 200.0
    return case.loss(np.where(rise > 1.0, case.clean[ONSET] * rise, case.clean))


def stuck(case: Case) -> np.ndarray:
    """A jump by half, and stuck there."""
    clean = case.clean.copy()
    clean[JUMP:] = 1.5 * clean[JUMP]
    return case.loss(clean)


def with_nan(case: Case) -> np.ndarray:
    loss = case.loss()
    loss[-20:] = np.nan
    return loss


def is_listed(incident: Incident) -> bool:
    """Whether an outlier is one of the highest points of its own noise."""
    return incident.kind == "outlier" and "its noise alone" in incident.explanation


Seen = dict[str, dict[str, list[float]]]


def measure(seeds: int, levels: Sequence[float] = LEVELS) -> Seen:
    """What was found, by question and by noise."""
    seen: Seen = defaultdict(lambda: defaultdict(list))
    for case in cases(seeds, levels):
        incidents = found(case.loss())
        outliers = [i for i in incidents if i.kind == "outlier" and not is_listed(i)]
        seen["false alarms a run"][case.noise].append(sum(i.severity != "info" for i in incidents) + len(outliers))
        seen["listed for information a run"][case.noise].append(sum(is_listed(i) for i in incidents))
        for at, width in SPIKES:
            hits = [i for i in found(with_spike(case, at, width)) if touches(i, at, at + width - 1)]
            seen[f"hit, +6 sigma at {at}, width {width}"][case.noise].append(bool(hits))
            if hits:
                seen["incidents an event"][case.noise].append(len(hits))
        ending = [i for i in found(with_nan(case)) if i.kind == "nonfinite" and i.start_step == STEPS - 20]
        seen["NaN ending"][case.noise].append(len(ending) == 1)
        slow = [i for i in alarms(drifting(case)) if i.kind in ("divergence", "level_shift")]
        seen["slow divergence, near its onset"][case.noise].append(any(abs(i.start_step - ONSET) <= NEAR for i in slow))
        jumped = [i for i in alarms(stuck(case)) if touches(i, JUMP, JUMP)]
        seen["stuck after a jump"][case.noise].append(any(i.kind in ("divergence", "level_shift") for i in jumped))
        for events in (slow, jumped):
            seen["incidents an event"][case.noise] += [len(events)] if events else []
    return seen


def _near(found: Alarms, first: int, last: int, reach: int = 3) -> int:
    return sum(start <= last + reach and end >= first - reach for start, end in found)


def measure_peer(peer: Callable[[np.ndarray], Alarms], seeds: int, levels: Sequence[float] = LEVELS) -> Seen:
    """The same questions to another tool; any alarm near an event is a hit, whatever it is called."""
    seen: Seen = defaultdict(lambda: defaultdict(list))
    for case in cases(seeds, levels):
        seen["false alarms a run"][case.noise].append(len(peer(case.loss())))
        events = {f"hit, +6 sigma at {at}, width {w}": (with_spike(case, at, w), at, at + w - 1, 3) for at, w in SPIKES}
        events["NaN ending"] = (with_nan(case), STEPS - 20, STEPS - 1, 0)
        events["slow divergence, near its onset"] = (drifting(case), ONSET, ONSET, NEAR)
        events["stuck after a jump"] = (stuck(case), JUMP, JUMP, 3)
        for question, (loss, first, last, reach) in events.items():
            hits = _near(peer(loss), first, last, reach)
            seen[question][case.noise].append(bool(hits))
            seen["incidents an event"][case.noise] += [hits] if hits else []
    return seen


def table(seen: Seen) -> Iterator[str]:
    """Mean answers by noise, and over all of them."""
    names = list(NOISES)
    yield f"{'':34s}" + "".join(f"{name:>14s}" for name in [*names, "all"])
    for question, by_noise in seen.items():
        columns = [by_noise[name] for name in names]
        means = [float(np.mean(values)) if len(values) else float("nan") for values in [*columns, np.concatenate(columns)]]
        yield f"{question:34s}" + "".join(f"{value:14.3f}" for value in means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--peer-seeds", type=int, default=5, help="seeds for other tools, which are slower")
    options = parser.parse_args()
    sys.stdout.write("\n".join(table(measure(options.seeds))) + "\n")
    peers = installed()
    for name in ("losslint", "trainscope"):
        told = table(measure_peer(peers[name], options.peer_seeds)) if name in peers else ["not installed"]
        sys.stdout.write("\n".join(["", name, *told]) + "\n")


if __name__ == "__main__":
    main()
