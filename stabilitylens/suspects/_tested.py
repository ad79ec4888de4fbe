"""What the replay and the counterfactuals of a dumped incident say of a suspect: evidence, not opinion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stabilitylens.cures import in_words
from stabilitylens.suspects._suspect import EXCLUDED, FAIR, STRONG, WEAK, Opinion

#: where this share of those that were tried avert it, and so many, any small change may, so that none says much. *Heuristic*.
MOST, SEVERAL = 0.5, 4
LEAD = "tested on a replay: "


#: nats of log odds by which a replay that was equal to the bit moves the bad batch: the batch is bad at an earlier state too and
#: another one is not; or another batch is as bad at this state and this one is not at an earlier one. *Heuristic*.
SWAPPED = {"data": FAIR, "state": -STRONG}


def swapped(name: str, opinion: Opinion, replay: Mapping[str, Any] | None) -> Opinion:
    """A suspect's opinion with what the replay found when it gave the step another batch, and the batch another state."""
    cause = (replay or {}).get("cause")
    if name != "bad-batch" or replay is None or not replay["exact"] or not isinstance(cause, Mapping):
        return opinion
    nats, said = SWAPPED.get(str(cause.get("verdict")), 0.0), (f"{LEAD}{cause.get('sentence', '')}",)
    return _moved(opinion, nats, speaks=said) if nats > 0 else _moved(opinion, nats, against=said) if nats else opinion


def tested(name: str, opinion: Opinion, table: Mapping[str, Any] | None) -> Opinion:
    """A suspect's opinion with what its counterfactuals came to.

    One that averts the incident speaks for it by its weight, in nats of log odds; of several the one of the largest weight, and
    those that do not avert it then say nothing. Where none averts it, the largest weight speaks against it.
    """
    rows = _decided(table["rows"]) if table is not None and table["shown"] else []
    own = [row for row in rows if row["suspect"] == name]
    if not own:
        return opinion
    averting = [row for row in own if row["verdict"] == "averts"]
    said = tuple(LEAD + in_words(row) for row in own if row["verdict"] != "averts")
    if not averting:
        return _moved(opinion, -max(row["weight"] for row in own), against=said)
    weight = min(WEAK, max(row["weight"] for row in averting)) if _any_change_averts(rows) else max(row["weight"] for row in averting)
    unsure = ", as most changes do, so that it says little" if _any_change_averts(rows) else ""
    opinion = replace(opinion, experiment=f"It was tried on a replay. To confirm it, try {averting[0]['name']} with a larger after=, or train on with it.")
    return _moved(opinion, weight, tuple(LEAD + in_words(row) + unsure for row in averting), said)


def _decided(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["verdict"] in ("averts", "does not avert")]


def _any_change_averts(rows: Sequence[Mapping[str, Any]]) -> bool:
    return len(rows) >= SEVERAL and sum(row["verdict"] == "averts" for row in rows) > MOST * len(rows)


def _moved(opinion: Opinion, nats: float, speaks: tuple[str, ...] = (), against: tuple[str, ...] = ()) -> Opinion:
    """An opinion whose log odds are moved by so many nats."""
    held = min(max(opinion.score, 5e-4), 1 - 5e-4)  # scores are rounded to three digits
    score = round(1 / (1 + math.exp(-math.log(held / (1 - held)) - nats)), 3)
    out = score < EXCLUDED and (opinion.excluded or -nats >= FAIR)
    return replace(
        opinion, score=score, excluded=out,
        evidence_for=(*speaks, *opinion.evidence_for), evidence_against=(*against, *opinion.evidence_against),
    )  # fmt: skip
