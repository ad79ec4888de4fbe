"""What each process saw by itself: which one was first to be not finite, which deviates, which fell behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from stabilitylens.header import MetricMeta
from stabilitylens.hooks.meeting import named

#: a process deviates when a statistic of its own is so many times the median of all; heuristic
OUTLIER = 10.0
#: with fewer processes nobody is in the majority
ENOUGH = 3

RANK_METRICS = {
    m.name: m
    for m in (
        MetricMeta("rank_loss", "nat", ("rank",), "The loss on each process's own data."),
        MetricMeta("rank_resid_rms", "1", ("rank",), "RMS of the residual stream over all blocks, on each process's own data."),
        MetricMeta("rank_resid_grad_norm", "1", ("rank",), "L2 of the gradients of all block outputs, of each process's own loss."),
        MetricMeta("rank_nonfinite_count", "1", ("rank",), "NaN and inf in the residual stream of each process."),
        MetricMeta("rank_step_time", "s", ("rank",), "Time from the end of one step to the end of the next, by process."),
    )
}


@dataclass(frozen=True)
class Seen:
    """One process's own numbers at a sampled step.

    Attributes:
        step: its step number.
        loss, step_time: of the step; NaN for none.
        bad_loss: the first step since the last sample with a loss that was not finite, 0 for none.
        nonfinite, stream_sq, stream_count, gradient_sq: of the residual stream of all blocks together.
        checksum: of the parameters that it holds, 0 where it took no step.
        skipped: steps since the last sample in which its optimizer took none.
        failures: of the lens, since the last sample.
    """

    step: float
    loss: float = np.nan
    step_time: float = np.nan
    bad_loss: float = 0.0
    nonfinite: float = 0.0
    stream_sq: float = 0.0
    stream_count: float = 0.0
    gradient_sq: float = 0.0
    checksum: float = 0.0
    skipped: float = 0.0
    failures: float = 0.0


NAMES = tuple(f.name for f in fields(Seen))
Columns = Float[np.ndarray, "rank field"]


def columns(seen: Seen, index: int, size: int) -> Columns:
    """A table in which every process fills its own row, to be added up."""
    table = np.zeros((size, len(NAMES)))
    table[index] = [getattr(seen, name) for name in NAMES]
    return table


def by_name(table: Columns) -> dict[str, Float[np.ndarray, " rank"]]:
    """The columns of a table by name."""
    return dict(zip(NAMES, table.T, strict=True))


def arrays(table: Columns) -> dict[str, Float[np.ndarray, " rank"]]:
    """What is recorded of them."""
    c = by_name(table)
    with np.errstate(all="ignore"):
        rms = np.where(c["stream_count"] > 0, np.sqrt(c["stream_sq"] / c["stream_count"]), np.nan)
        gradient = np.where(c["gradient_sq"] != 0, np.sqrt(c["gradient_sq"]), np.nan)
    return {
        "rank_loss/rank": c["loss"], "rank_step_time/rank": c["step_time"], "rank_resid_rms/rank": rms,
        "rank_resid_grad_norm/rank": gradient,
        "rank_nonfinite_count/rank": np.where(c["stream_count"] > 0, c["nonfinite"], np.nan),
    }  # fmt: skip


class Watch:
    """Says in a sentence what is odd about a process, when it begins and not again while it lasts.

    Args:
        ranks: the processes, in the order of the table.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._said: set[tuple[str, tuple[int, ...]]] = set()
        self._first = ""

    def events(self, table: Columns, twins: Sequence[Sequence[int]]) -> Iterator[tuple[str, str]]:
        """Kind and text of each event."""
        now: set[tuple[str, tuple[int, ...]]] = set()
        for kind, ranks, text in self._odd(by_name(table), twins):
            now.add((kind, ranks))
            if (kind, ranks) not in self._said:
                yield kind, text
        self._said = now

    def _odd(self, c: Mapping[str, np.ndarray], twins: Sequence[Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        yield from self._nonfinite(c)
        yield from self._apart(c, twins)
        yield from self._outliers(c)
        skipped = c["skipped"]
        if skipped.min() != skipped.max():
            ranks = self._where(skipped > skipped.min())
            yield "rank_skipped", ranks, (
                f"the optimizer of {named(ranks)} took no step in {int(skipped.max() - skipped.min())} steps in which those "
                "of other ranks did"
            )
        if c["failures"].any():
            ranks = self._where(c["failures"] > 0)
            yield "rank_failure", ranks, f"the lens failed on {named(ranks)}; what it should have given is left out"

    def _where(self, mask: np.ndarray) -> tuple[int, ...]:
        return tuple(r for r, yes in zip(self._ranks, mask, strict=True) if yes)

    def _nonfinite(self, c: Mapping[str, np.ndarray]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        bad = c["bad_loss"]
        if bad.any():
            first = int(bad[bad > 0].min())
            ranks = self._where(bad == first)
            had = f"{named(ranks)} had {{}} loss that is not finite, at step {first}"
            yield "rank_nonfinite", ranks, had.format("a") + f"; {self._first}" if self._first else had.format("the first")
            self._first = self._first or f"the first was at step {first}, of {named(ranks)}"
        elif (c["nonfinite"] > 0).any():
            ranks = self._where(c["nonfinite"] > 0)
            step = int(c["step"][0])
            yield "rank_nonfinite", ranks, f"{named(ranks)} has NaN or inf in the residual stream at step {step}"

    def _apart(self, c: Mapping[str, np.ndarray], twins: Sequence[Sequence[int]]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for ranks in twins:
            sums = {r: c["checksum"][self._ranks.index(r)] for r in ranks}
            if not all(sums.values()) or np.isnan(list(sums.values())).any() or len(set(sums.values())) == 1:
                continue
            (usual, votes), *_ = Counter(sums.values()).most_common(1)
            odd = tuple(r for r in ranks if sums[r] != usual)
            rest = [r for r in ranks if sums[r] == usual]
            if votes * 2 > len(ranks):
                yield "rank_deviates", odd, f"the parameters of {named(odd)} are not those of {named(rest)}, of which they should be copies"
            else:
                yield "rank_deviates", tuple(ranks), f"{named(tuple(ranks))} should hold the same parameters and do not"

    def _outliers(self, c: Mapping[str, np.ndarray]) -> Iterator[tuple[str, tuple[int, ...], str]]:
        for name, what in (("loss", "loss"), ("gradient_sq", "gradient of the residual stream"), ("stream_sq", "residual stream")):
            values = np.sqrt(c[name]) if name.endswith("_sq") else c[name]
            known = values[np.isfinite(values) & (values > 0)]
            if len(known) < ENOUGH:
                continue
            with np.errstate(invalid="ignore"):
                far = values > OUTLIER * np.median(known)
            if far.any():
                ranks = self._where(far)
                worst = float(values[far].max() / np.median(known))
                yield "rank_outlier", ranks, f"{named(ranks)} deviates: its {what} is {worst:.3g} times the median of all ranks"
