"""Find the members of a folder: one thing, one file, no list to edit.

Every module of a package whose name has no leading underscore is imported, and what its
decorator registered is collected. Third parties add members through an entry point in the group
``stabilitylens.<package>`` that names a module to import.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

Member = TypeVar("Member")


class Registry(Generic[Member]):
    """The members of one folder, by name, in file order.

    Args:
        package: dotted name of the package to scan, e.g. ``stabilitylens.rules``.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._members: dict[str, Member] = {}
        self._scanned = False

    def add(self, name: str, member: Member) -> None:
        """Register a member.

        Raises:
            ValueError: another member has this name already.
        """
        if name in self._members:
            raise ValueError(f"{self.package} has two members called {name!r}; rename one of them")
        self._members[name] = member

    def _scan(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        folder = importlib.import_module(self.package)
        for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
            if not module.startswith("_"):
                importlib.import_module(f"{self.package}.{module}")
        for entry in entry_points(group=self.package):
            entry.load()

    def __iter__(self) -> Iterator[Member]:
        self._scan()
        return iter(self._members.values())

    def __len__(self) -> int:
        self._scan()
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._members

    def __getitem__(self, name: str) -> Member:
        self._scan()
        return self._members[name]

    def names(self) -> list[str]:
        """Names of all members."""
        self._scan()
        return list(self._members)
