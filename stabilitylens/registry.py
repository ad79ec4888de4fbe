"""Find the members of a folder: one thing, one file, no list to edit.

Every module of a package whose name has no leading underscore is imported, and what its
decorator registered is collected. Third parties add members through an entry point in the group
``stabilitylens.<package>`` that names a module to import.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

Member = TypeVar("Member")
Given = TypeVar("Given", bound=Callable[..., Any])


def page_of(member: Callable[..., Any]) -> str:
    """The docstring of a member; without one (``python -OO`` drops them) a line with its name."""
    return inspect.cleandoc(member.__doc__ or "") or f"{getattr(member, '__name__', 'a function').replace('_', ' ')} (no docstring)"


class Registry(Generic[Member]):
    """The members of one folder, by name, in file order.

    Args:
        package: dotted name of the package to scan, e.g. ``stabilitylens.rules``.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self._members: dict[str, Member] = {}
        self._modules: dict[str, str] = {}
        self._scanned = False

    def add(self, name: str, member: Member, of: Callable[..., Any] | None = None) -> None:
        """Register a member.

        Args:
            of: the function or class that its file defines, whose module gives it its place; last where there is none.

        Raises:
            ValueError: another member has this name already.
        """
        if name in self._members:
            raise ValueError(f"{self.package} has two members called {name!r}; rename one of them")
        self._members[name] = member
        self._modules[name] = "" if of is None else of.__module__

    def named(self, name: str) -> Callable[[Given], Given]:
        """A decorator that registers a function or a class as it is, under a name."""

        def register(member: Given) -> Given:
            self.add(name, member, member)  # type: ignore[arg-type]
            return member

        return register

    def _scan(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        folder = importlib.import_module(self.package)
        files = [f"{self.package}.{m}" for m in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)) if not m.startswith("_")]
        for module in files:
            importlib.import_module(module)
        place = {module: i for i, module in enumerate(files)}
        by_file = sorted(self._members, key=lambda name: place.get(self._modules[name], len(files)))  # whatever was imported first
        self._members = {name: self._members[name] for name in by_file}
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
