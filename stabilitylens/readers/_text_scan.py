"""Learns from one line what its numbers are, by the text between them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stabilitylens.readers._text_keys import (
    COUNTED,
    EVALUATES,
    LOSS_BEHIND,
    PARTS,
    PLANS,
    STEPS_BEHIND,
    TRAINS,
    counter,
    means_nothing,
    name_of,
)
from stabilitylens.readers._text_numbers import GROUPS, scale_of
from stabilitylens.readers._words import in_english

#: no log writes its metrics like this: source code, tracebacks, lists of arguments with dotted leaders
_CODE = re.compile(
    r"""^\s*(?:import\s|from\s[\w.]+\simport|def\s|class\s|return\b|(?:if|elif|for|while|with)\b.*:\s*$|else:|try:|except\b|@\w|//|/\*
    |assert\s|raise\s|File\s"|Traceback|wandb:)|\bself\.\w|\blambda\b|\bprint\w*\(|\bf["']|\w\s\.{4,}\s|--\w+[\s=]\S+.*\s--\w|\w\s=\s\w+\([^)]*$
    |^\s*[a-z_]\w*\s*:\s*[A-Za-z]\w*\s*=\s*\S|^\s*(?!\w*loss)[a-z_]\w*\s=\s-?[\d.e-]+\s*(?:\#.*)?$""",
    re.VERBOSE,
)
#: so much of a line tells
_CODE_WIDTH = 400
#: the frame of a progress bar
_BAR = re.compile(r"[\d?](?:it/s|s/it)\b|\bETA:|\d%\||\d[mµu]?s/step\b")
_LEADS = re.compile(r"[\s\[\](#|>:*-]*(?:\b(?:train|training|step|iter|epoch|INFO|DEBUG)\b)?[\s\[\]\)(:#|-]*", re.I)
_TIMES = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0}
#: other bars without values are of loading and preparing
_OF_TRAINING = re.compile(r"[^a-zA-Z]*$|.*\b(?:train\w*|epoch|step|iter\w*|fit\w*)\b", re.I)
_SPAN = re.compile(r"\s(?:(?:over|in|of|for|per)\s)?(?:the\s)?(?:last|previous|past|every)\s*$", re.I)
#: what may be told "at step 100", the better first
_OBJECTIVES = ("loss", "score", "cost", "objective", "error", "perplexity")
_AFTER_LEAD = re.compile(r"\s*[|:,\])/\t>]|\s{2,}|\s+[A-Za-z_]\w*\s*[=:]")


@dataclass(frozen=True, slots=True)
class Field:
    """One number of a line: where, what it is called, what it is multiplied by, whether it counts steps or epochs."""

    place: int
    name: str
    scale: float
    counts: bool


@dataclass(frozen=True, slots=True)
class Template:
    """The numbers of a line that say something, in their order; whether the line is the frame of a progress bar."""

    fields: tuple[Field, ...]
    bar: bool


def learn(line: str, parts: list[str | None]) -> Template:
    """What the numbers of a line are.

    Args:
        line: one of its layout.
        parts: the line as ``NUMBER.split`` splits it.
    """
    if _CODE.search(line[:_CODE_WIDTH]):
        return Template((), False)
    bar = bool(_BAR.search(line))
    gaps = [gap or "" for gap in parts[::GROUPS + 1]]
    scan = _Scan(gaps, parts, bar)
    for i in range(len(gaps) - 1):
        scan.number(i)
    return scan.template()


class _Scan:
    """One pass over the numbers of a line, from left to right.

    Attributes:
        rest: the text that is in no name; says whether the line evaluates.
        begins: the first gap behind the dates at the head of the line.
        lead: place of a bare number at the head of the line; ratio: of the first of two as ``[50/1000]``.
        previous: the name before, whether it counts, whether it was separated from its number.
    """

    def __init__(self, gaps: list[str], parts: list[str | None], bar: bool) -> None:
        self.gaps, self.parts, self.bar = gaps, parts, bar
        self.counters: dict[str, tuple[int, float]] = {}
        self.values: dict[str, tuple[int, float]] = {}
        self.rest: list[str] = []
        self.lead: int | None = None
        self.ratio: int | None = None
        self.begins = 0
        self.previous = ("", False, False)

    def _whole(self, i: int) -> bool:
        text = self.parts[i * 4 + 1]
        return text is not None and text.lstrip("+").replace(",", "").isdigit()

    def number(self, i: int) -> None:
        """Find out what a number is."""
        place = i * 4 + 1
        number, word, suffix = self.parts[place:place + 3]
        gap, after = self.gaps[i], self.gaps[i + 1]
        if number is None and word is None:
            return self._noise(gap)
        if suffix == "%" and "|" in after:
            self.rest.append(gap)
            self.previous = ("", False, False)
        elif gap.strip() == "/":
            return
        elif suffix in COUNTED and number is not None:
            self._counted(place, gap, COUNTED[suffix], suffix)
        elif not suffix and STEPS_BEHIND.match(after) and self._whole(i):
            if PLANS.search(gap[-40:]):
                self.gaps[i + 1] = _SPAN.sub("", gap) + STEPS_BEHIND.sub("", after, count=1)
            else:
                self._counted(place, gap, "step", None)
        elif not any(c.isalpha() for c in gap):
            self._unnamed(i, gap, after, suffix)
        else:
            self._spoken(i, gap, after, suffix)

    def _spoken(self, i: int, gap: str, after: str, suffix: str | None) -> None:
        name, separated = name_of(gap, i == 0)
        if name.lower() in PARTS and self._whole(i):
            self.rest.append(gap)
            self.previous = ("", False, False)
            if after.strip()[:1] == "[" and not suffix:
                self.counters.setdefault("epoch", (i * 4 + 1, 1.0))
            elif "[" in gap:
                self._unnamed(i, "[", after, suffix)
        elif not name or means_nothing(name, separated):
            self.rest.append(gap)
            self._unnamed(i, "is" if gap.strip() == "is" else " ", after, suffix)
        else:
            self._named(i, gap, name, separated, suffix)

    def _noise(self, gap: str) -> None:
        self.rest.append(gap)
        self.begins += len(self.rest) == self.begins + 1
        if any(c.isalpha() for c in gap):
            self.previous = ("", False, False)

    def _counted(self, place: int, gap: str, name: str, suffix: str | None) -> None:
        self.rest.append(gap)
        self.counters.setdefault(name, (place, 1e3 if suffix == "kit" else 1.0))
        self.previous = (name, True, False)

    def _named(self, i: int, gap: str, name: str, separated: bool, suffix: str | None) -> None:
        place, step = i * 4 + 1, counter(name)
        if self.bar and not separated and not step and self._whole(i):
            self.rest.append(gap)
            return
        if step and self.parts[place] is not None and not suffix:
            self.rest.append(gap)
            self.counters.setdefault(step, (place, 1.0))
            self.previous = (step, True, separated)
            return
        self.rest.append(gap[:max(gap.rfind(name.split()[0]), 0)])
        self.values.setdefault(f"{name} (s)" if suffix in _TIMES else name, (place, _TIMES.get(suffix or "", scale_of(suffix))))
        self.previous = (name, False, separated)

    def _unnamed(self, i: int, gap: str, after: str, suffix: str | None) -> None:
        place, (name, counts, separated) = i * 4 + 1, self.previous
        text, trail = gap.strip(), after.strip()
        if suffix == "%":
            return
        if text == ")" and not suffix and self._after_share(i):
            return
        if not suffix and (behind := LOSS_BEHIND.match(after)) is not None:
            self.values.setdefault(behind[0].strip(" ,;|)"), (place, 1.0))
            return
        whole = self._whole(i) and not suffix
        if whole and trail == "/" and (counts or not name or "[" in text):
            self._take_ratio(place)
        elif name and text in (":", "=", "is") and not suffix and self._after_sign(name, counts, separated, place):
            return
        elif whole and counts and name != "iter" and text in ("][", ",") and not self.counters.keys() - {"epoch"}:
            self._take_ratio(place)
        elif name and not counts and not suffix and text.startswith("(") and trail.startswith(")"):
            self.values.setdefault(f"{name}/mean", (place, 1.0))
        elif self.lead is None and not self.counters and not self.values and self._leads(i, suffix):
            self.lead = place
            self.previous = ("step", True, False)

    def _after_share(self, i: int) -> bool:
        """The loss of "1m 2s (- 30m 4s) (500 5%) 2.31": a number behind a step and its share."""
        if i < 2 or self.values or self.parts[i * 4 - 1] != "%" or not self._whole(i - 2) or not self.gaps[i - 2].endswith("("):
            return False
        self.counters.setdefault("step", (i * 4 - 7, 1.0))
        self.values["loss"] = (i * 4 + 1, 1.0)
        return True

    def _take_ratio(self, place: int) -> None:
        if self.ratio is None:
            self.ratio = place

    def _leads(self, i: int, suffix: str | None) -> bool:
        before = "".join(self.gaps[self.begins:i + 1])
        return self._whole(i) and not suffix and bool(_LEADS.fullmatch(before) and _AFTER_LEAD.match(self.gaps[i + 1]))

    def _after_sign(self, name: str, counts: bool, separated: bool, place: int) -> bool:
        """A number behind another and a sign, as in "Validation loss 6312: 0.15" and "Score at iteration 100 is 3.45"."""
        words = " ".join(self.rest).lower().split()
        what = next((word for word in _OBJECTIVES if word in words), None)
        if counts and what is not None and not self.values:
            self.values["score at iteration" if what == "score" else what] = (place, 1.0)
            return True
        before, _ = self.values.get(name, (0, 1.0))
        if separated or before != place - 4 or not (self.parts[before] or "").isdigit():
            return False
        self.values[name] = (place, 1.0)
        self.counters.setdefault("step", (before, 1.0))
        return True

    def template(self) -> Template:
        """What was found."""
        rest = in_english(" ".join([*self.rest, self.gaps[-1] if not self.values else ""]))
        evaluates = bool(EVALUATES.search(rest)) and not TRAINS.search(rest)
        counters = {} if evaluates and self.bar else dict(self.counters)
        if self.bar and not self.values and not _OF_TRAINING.match(self.gaps[0]):
            return Template((), True)
        if self.ratio is not None and not evaluates:
            counters.setdefault("iter", (self.ratio, 1.0))
        if self.lead is not None and not counters.keys() - {"epoch"}:
            counters["step"] = (self.lead, 1.0)
        prefix = "val/" if evaluates else ""
        fields = [Field(place, name, scale, True) for name, (place, scale) in counters.items()]
        fields += [Field(place, _prefixed(prefix, name), scale, False) for name, (place, scale) in self.values.items()]
        return Template(tuple(sorted(fields, key=lambda field: field.place)), self.bar)


def _prefixed(prefix: str, name: str) -> str:
    return prefix + name if prefix and not EVALUATES.search(in_english(name).replace("_", " ").replace("/", " ")) else name
