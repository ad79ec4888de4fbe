"""What a dialect is: which keys tell it, and a table from its keys to the fields of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stabilitylens.registry import Registry

#: from a value in the file to that of a field; None where the value says nothing
Convert = Callable[[Any], Any]
Flat = Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """The files of one framework.

    Attributes:
        name: its file's, e.g. ``torchtitan``.
        title: for people, e.g. ``torchtitan``'s or ``Hugging Face TrainingArguments``.
        marks: dotted keys that only its files have.
        table: dotted key to a field of :class:`~stabilitylens.recipe.Recipe` and how to convert it. A later key of
            a field goes before an earlier one.
        defaults: what the framework does where a field is left out, as fields of a recipe.
        derive: fields that several keys decide together, from the flat file and the fields so far; None for one that
            the file speaks of and leaves open, as a share of an unknown number of steps. Its default is then not taken.
        uses: keys that ``derive`` reads.
        ignored: key prefixes that have nothing to do with a recipe, so that no note mentions them.
    """

    name: str
    title: str
    marks: frozenset[str]
    table: Mapping[str, tuple[str, Convert]]
    defaults: Mapping[str, Any]
    derive: Callable[[Flat, Mapping[str, Any]], Mapping[str, Any]] | None = None
    uses: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()

    def score(self, flat: Flat) -> int:
        """How much a file looks like this dialect: known keys, and thrice for those that only it has."""
        return sum(key in self.table or key in self.uses for key in flat) + 3 * sum(key in flat for key in self.marks)


DIALECTS: Registry[Dialect] = Registry("stabilitylens.recipe_files")


def dialect(member: Dialect) -> Dialect:
    """Register a dialect under its name."""
    DIALECTS.add(member.name, member)
    return member
