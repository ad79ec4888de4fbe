"""The model as parts in order, each with the worst of what was found of it."""

from __future__ import annotations

from typing import Any

from stabilitylens.anatomy import Anatomy, SubLayer
from stabilitylens.findings import SEVERITIES
from stabilitylens.reports import _anatomy_parts as parts
from stabilitylens.rules import RULES

#: what of a series a rule needs says where the trouble is
_ATTENTION = ("attn", "query", "key", "value")
_OUTPUT = ("output_logit", "log_z")


def drawn(anatomy: Anatomy | None, findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Blocks and what lies before and behind them; ``found`` are indices into the findings."""
    if anatomy is None or not anatomy.sub_layers:
        return {"headline": "", "parts": [], "doubts": []}
    fired = [(i, finding, _place(finding)) for i, finding in enumerate(findings) if finding["verdict"] == "fired"]
    rows = [_part(branch, anatomy, fired) for branch in anatomy.sub_layers]
    ends = [{"layer": None, "kind": "model", "title": "model and recipe", "steps": [], "after": None} | _found(fired, "model", None)]
    final = [{"layer": None, "kind": "norm", "title": parts.final(anatomy), "steps": [], "after": None} | _found([], "", None)]
    output = [{"layer": None, "kind": "output", "title": "output logits", "steps": [], "after": None} | _found(fired, "output", None)]
    return {
        "headline": parts.headline(anatomy), "doubts": parts.doubts(anatomy),
        "parts": ends + rows + (final if anatomy.final_norm else []) + output,
        "ways": [list(way) for way in parts.attention_ways(anatomy)],
    }


def _part(branch: SubLayer, anatomy: Anatomy, fired: list[tuple[int, dict[str, Any], str]]) -> dict[str, Any]:
    kinds = {"attention": ("attention", "layer"), "parallel": ("attention", "layer")}.get(branch.kind, ("layer",))
    return {
        "layer": branch.layer, "kind": branch.kind, "title": branch.module, "steps": [list(step) for step in parts.steps(branch)],
        "after": parts.norm_on_trunk(branch), "beside": parts.beside(branch, anatomy),
    } | _found([f for f in fired if branch.layer is not None], kinds, branch.layer)


def _found(fired: list[tuple[int, dict[str, Any], str]], kinds: str | tuple[str, ...], layer: int | None) -> dict[str, Any]:
    wanted = (kinds,) if isinstance(kinds, str) else kinds
    mine = [(i, f) for i, f, place in fired if place in wanted and (layer is None or f["where"].get("layer") == layer)]
    severities = [finding["severity"] or "info" for _, finding in mine]
    worst = next((name for name in reversed(SEVERITIES) if name in severities), None)
    return {"found": [i for i, _ in mine], "severity": worst}


def _place(finding: dict[str, Any]) -> str:
    """Which part a finding belongs to: attention or another part of a layer, the output, or the model as a whole."""
    needs = RULES[finding["code"]].needs if finding["code"] in RULES else ()
    series = [need for need in needs if need not in ("anatomy", "recipe")]
    if any(need.startswith(_OUTPUT) for need in series):
        return "output"
    if finding["where"].get("layer") is None:
        return "model"
    return "attention" if any(word in need for need in series for word in _ATTENTION) else "layer"
