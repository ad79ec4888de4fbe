"""Finds the name of a number in the text before it."""

from __future__ import annotations

import re

from stabilitylens.readers._words import in_english

#: words that count something, as they stand at the end of a name
COUNTERS = frozenset(
    "step global_step globalstep gstep step_num num_step iter iteration iterations itr it niter update updates num_updates up epoch ep "
    "batch batch_idx batch_id minibatch micro_step microstep current_steps current_step timestep total_timesteps".split()
)
_SHORT = {"ep": "epoch", "up": "updates"}
#: words that a counter's name may begin with: "validation loss at iteration", "Train Epoch"
_BEFORE_COUNTER = frozenset(
    "train training trainer global at of after in for end optimizer opt optim current cur the on begin start this eval evaluation "
    "validation valid val validating testing evaluating test results finished completed done loss epoch batch mini micro now sgd gradient during inner score cost objective error perplexity".split()
)
#: right behind a number these say what it counts: "100 steps", "12it"
COUNTED = {
    "it": "iter", "its": "iter", "kit": "iter", "iter": "iter", "iters": "iter", "iterations": "iter", "step": "step", "steps": "step",
    "batch": "iter", "batches": "iter", "updates": "updates", "epoch": "epoch",
}  # fmt: skip
#: "100 steps", unless that is a plan: "every 100 steps"
STEPS_BEHIND = re.compile(r"\s(?:(?:training|train|optimizer|global)\s)?(?:steps|iterations|iters|updates|batches)\b", re.I)
PLANS = re.compile(r"\b(?:every|for|max|maximum|total|warm-?up|remaining|of|per|save|log|eval|last|previous|past|next)\W*$|[=:]\s*$", re.I)
#: right behind a number: "48.41 avg loss,"
LOSS_BEHIND = re.compile(r"\s(?:avg|average|mean|total|train|training)?\s?loss\s*(?:[,;|)]|$)", re.I)
EVALUATES = re.compile(r"\b(?:val|valid|validation|validating|eval|evals|evaluation|evaluate|evaluating|test|testing|dev)\b|^\s*(?:Val|Test|Eval)", re.I)
TRAINS = re.compile(r"\b(?:train|training|train_inner)\b", re.I)

_LEVEL = re.compile(r"\b(?:INFO|WARNING|WARN|ERROR|DEBUG|TRACE|FATAL|CRITICAL)\b")
_OPENS = " \t\r\v\f:=|\"'`~≈→>#<[({*$–—-"
_CALLS = ("tensor(", "array(", "Array(", "Tensor(", "float16(", "float32(", "float64(", "bfloat16(")
_UNIT = re.compile(r"\s?\(([^()]{0,24})\)$|\s?\[[^\[\]]{0,12}\]$")
_FILLER = re.compile(r"(?:\s(?:is|was|are|of|to|by|value is|=))+$", re.I)
_BREAK = re.compile(r"[|,;{}()\[\]<>\t•·░█▉-▏━╸╺#]|(?:^|(?<=\s))[-–—*]+(?=\s)|\s{2,}|\.\s|[:=!?]\s|\s/\s")
_ALONE = frozenset("in at to for is of after by and or on from with the a took elapsed s ms sec avg".split())
#: parts of a run; as a name they name no number: "Train: 0 [50/1251]"
PARTS = frozenset("train training test testing val valid validation eval evaluation".split())
#: words of a name before a blank, before a sign; characters of a gap that are looked at
_SPACED, _SEPARATED, _LONGEST = 3, 6, 240


def name_of(gap: str, first: bool) -> tuple[str, bool]:
    """The name that a gap ends with, and whether more than blanks stand between name and number; ("", False) for none.

    Args:
        gap: the text between two numbers.
        first: whether it is the first of its line; otherwise ``ms | `` is the unit of the number before it.
    """
    text = _LEVEL.sub(" ", gap[-_LONGEST:])
    name = _without_opening(text)
    opening = text[len(name):]
    separated = bool(opening.strip(" \t"))
    if "|" in opening and not first and not _BREAK.search(name.strip()) and not text.lstrip().startswith("|"):
        return "", separated
    unit = _UNIT.search(name) if separated else None
    name = name[:unit.start()] if unit else name
    words = _words(_FILLER.sub("", _BREAK.split(name)[-1]))
    if not any(c.isalpha() for word in words for c in word):
        return "", separated
    words = words[-(_SEPARATED if separated else _SPACED):]
    return " ".join(words) + (" (ms)" if unit and unit[1] == "ms" else ""), separated


def _without_opening(text: str) -> str:
    """A gap without the signs, brackets and constructors that open its number."""
    name = text.rstrip(_OPENS)
    for call in _CALLS:
        if name + "(" == text[:len(name) + 1] and (name + "(").endswith(call):
            return (name + "(").removesuffix(call).removesuffix("np.").removesuffix("torch.").rstrip(_OPENS)
    return name


def _words(text: str) -> list[str]:
    """What is left when quotes and the names of other fields are gone: ``msg="ab" step`` is ``step``."""
    words = text.replace("'", '"').split('"')[-1].split() if text.count('"') + text.count("'") else text.split()
    for i, word in enumerate(words):
        if "=" in word or word.endswith(":"):
            return _words(" ".join([word.split("=")[-1] if "=" in word else "", *words[i + 1:]]))
    if words and ":" in words[0]:
        words[0] = words[0].rsplit(":", 1)[-1]
    words = [word.strip("\"'`*_/.") for word in words]
    return [word for word in words if word]


def counter(name: str) -> str:
    """The counter that a name is, in lower case; "" for what counts no steps."""
    words = in_english(name).lower().removesuffix("/max_steps").split()
    last = words[-1].lstrip("/") if words else ""
    if last in COUNTERS and all(word in _BEFORE_COUNTER for word in words[:-1]):
        return _SHORT.get(last, "global_step" if words[-2:] == ["global", "step"] else last)
    return ""


def means_nothing(name: str, separated: bool) -> bool:
    """Whether a name is a mere word of a sentence: "in 3.2 s"."""
    last = name.lower().split()[-1]
    return (not separated and last in _ALONE) or last == "eta"
