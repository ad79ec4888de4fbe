"""Names of scalars and their TensorBoard tags: ``loss`` is ``loss/train``, ``lr`` is ``lr/global``."""

from __future__ import annotations

import re

#: the header as JSON, and for people
HEADER_TAG, ABOUT_TAG = "stabilitylens/header", "stabilitylens/about"
_TAGS = {"loss": "loss/train"}
_NAMES = {tag: name for name, tag in _TAGS.items()}


def clean(name: str) -> str:
    """Lower case, ``[a-z0-9_/]`` only, no empty part between slashes."""
    parts = (re.sub(r"[^a-z0-9_]+", "_", part) for part in name.lower().split("/"))
    return "/".join(part for part in parts if part) or "scalar"


def tag_of(name: str) -> str:
    """The tag of a scalar over the whole model."""
    tag = _TAGS.get(name) or clean(name)
    return tag if "/" in tag else f"{tag}/global"


def name_of(tag: str) -> str:
    """The scalar's name that a tag stands for, unless the record itself gives another."""
    return _NAMES.get(tag) or tag.removesuffix("/global")


class Tags:
    """Hands out tags, each once."""

    def __init__(self, *taken: str) -> None:
        self._taken = set(taken)

    def claim(self, tag: str) -> str:
        """The tag itself, or with ``_2``, ``_3``, … where it is taken."""
        free, n = tag, 1
        while free in self._taken:
            n += 1
            free = f"{tag}_{n}"
        self._taken.add(free)
        return free
