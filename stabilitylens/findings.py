"""What a rule has to say: a Finding, with one of three verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["fired", "clear", "not_evaluated"]
Severity = Literal["info", "warning", "error"]

#: rank of each severity; a report sorts by it and ``--fail-on`` compares with it
SEVERITIES: dict[Severity, int] = {"info": 0, "warning": 1, "error": 2}


@dataclass(frozen=True)
class Where:
    """The place a finding is about; what is None does not apply.

    Attributes:
        layer: index of the block, from 0.
        layer_name: its canonical module name.
        head: index of the attention head, from 0.
        steps: first and last step, both inclusive.
    """

    layer: int | None = None
    layer_name: str | None = None
    head: int | None = None
    steps: tuple[int, int] | None = None

    def __str__(self) -> str:
        parts = [f"layer {self.layer}" if self.layer is not None else (self.layer_name or "")]
        parts += [f"head {self.head}" if self.head is not None else ""]
        if self.steps is not None:
            first, last = self.steps
            parts.append(f"step {first}" if first == last else f"steps {first} to {last}")
        return ", ".join(p for p in parts if p) or "the whole model"


@dataclass(frozen=True)
class Finding:
    """One rule's verdict on one run or model, with its evidence.

    Attributes:
        run: the run's path, or a model's name in an audit.
        code: e.g. ``SL201``; name: e.g. ``attention-logit-growth``.
        observed, threshold: the number that decided and what it was compared with.
        message: one sentence for a person, with the numbers in it.
        remedy, sources: from the rule's page.
        lacks: for ``not_evaluated``, what was missing.
    """

    run: str
    code: str
    name: str
    verdict: Verdict
    severity: Severity | None = None
    confidence: float | None = None
    where: Where = field(default_factory=Where)
    observed: float | None = None
    threshold: float | None = None
    message: str = ""
    remedy: str = ""
    sources: tuple[str, ...] = ()
    lacks: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-ready plain data, keys as in the JSON contract."""
        w = self.where
        where = {"layer": w.layer, "layer_name": w.layer_name, "head": w.head, "steps": w.steps}
        own = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "where"}
        own["sources"] = list(self.sources)
        return own | {"where": {k: list(v) if isinstance(v, tuple) else v for k, v in where.items() if v is not None}}
