"""How often the incident detectors are wrong, on curves whose truth is known.

Decaying losses of 1,000 steps under a learning-rate schedule, with Gaussian, heavy-tailed (Student t, 4
degrees of freedom) and right-skewed noise (1.5 % of the points beyond 4 sigma, as in healthy per-step losses of
language models) of 0.5 to 12 % of the level. An alarm is an incident of severity warning or error. Outliers,
which are for information, are counted apart: heavy tails do hold single points of 7 sigma and more.

    python -m benchmarks.detectors [--seeds 20]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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


def measure(seeds: int, levels: Sequence[float] = LEVELS) -> dict[str, dict[str, list[float]]]:
    """What was found, by question and by noise."""
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases(seeds, levels):
        incidents = found(case.loss())
        seen["false alarms a run"][case.noise].append(sum(i.severity != "info" for i in incidents))
        seen["outliers a run"][case.noise].append(sum(i.kind == "outlier" for i in incidents))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seen = measure(parser.parse_args().seeds)
    names = list(NOISES)
    sys.stdout.write(f"{'':34s}" + "".join(f"{name:>14s}" for name in [*names, "all"]) + "\n")
    for question, by_noise in seen.items():
        columns = [by_noise[name] for name in names]
        row = [np.mean(values) for values in [*columns, np.concatenate(columns)]]
        sys.stdout.write(f"{question:34s}" + "".join(f"{value:14.3f}" for value in row) + "\n")


if __name__ == "__main__":
    main()
