"""Instructions that a thread of a compiled kernel executes, by the shortest way through its machine code."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);")
_EXIT, _STORE = re.compile(r"\bEXIT\b"), re.compile(r"\bSTG\b")
#: on sm_80 some branches are written as calls that never return
_JUMP = re.compile(r"\b(?:BRA|CALL\.REL\.NOINC)\S*\s.*?(0x[0-9a-f]+)")
#: a branch that may not be taken: predicated, or by a uniform predicate of its own
_MAYBE = re.compile(r"^@|BRA\S*\s+!?U?P\d")


def _code(sass: str) -> tuple[list[str], list[list[int]]]:
    """Instructions, and which may follow each."""
    found = [(int(at, 16), text) for at, text in _INSTRUCTION.findall(sass)]
    index = {at: i for i, (at, _) in enumerate(found)}
    after: list[list[int]] = []
    for i, (_, text) in enumerate(found):
        jump = _JUMP.search(text)
        targets = [index[int(jump[1], 16)]] if jump else []
        ends = jump or _EXIT.search(text)
        if (not ends or _MAYBE.search(text)) and i + 1 < len(found):
            targets.append(i + 1)
        after.append(targets)
    return [text for _, text in found], after


def _steps(after: list[list[int]], start: int, goals: Container[int]) -> int:
    """Instructions from one to the first of others, both counted."""
    seen, queue = {start}, deque([(start, 1)])
    while queue:
        i, count = queue.popleft()
        if i in goals:
            return count
        for j in after[i]:
            if j not in seen:
                seen.add(j)
                queue.append((j, count + 1))
    return len(after)


def instructions(sass: str, tiles: int) -> float:
    """Instructions a tile of a kernel that writes as many tiles in its loop, or one and has none."""
    code, after = _code(sass)
    stores = [i for i, text in enumerate(code) if _STORE.search(text)]
    exits = {i for i, text in enumerate(code) if _EXIT.search(text)}
    loops = [(j, i) for i, targets in enumerate(after) for j in targets if j < i and any(j <= s <= i for s in stores)]
    if tiles == 1 or not loops:
        return _steps(after, 0, {stores[0]}) + _steps(after, stores[0], exits) - 1
    first, last = max(loops, key=lambda loop: sum(loop[0] <= s <= loop[1] for s in stores))
    store = next(s for s in stores if first <= s <= last)
    # a loop may be left elsewhere than where it goes back: the last tile leads through a store to the exit
    once = _steps(after, 0, {first}) + _steps(after, first, {store}) + _steps(after, store, exits) - 3
    return (once + (tiles - 1) * _steps(after, first, {last})) / tiles


def operations(sass: str) -> Counter[str]:
    """How often each instruction occurs."""
    return Counter(re.sub(r"^@\S+\s+", "", text).split()[0] for _, text in _INSTRUCTION.findall(sass))
