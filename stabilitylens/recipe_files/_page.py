"""The dialects as pages: which key is which field, and what is filled in."""

from __future__ import annotations

from stabilitylens.recipe_files._dialect import Dialect


def dialect_page(member: Dialect) -> str:
    """Heading, the framework's defaults where a key is left out, and a table of keys."""
    rows = [f"| `{key}` | {field} |" for key, (field, _) in member.table.items()]
    rows += [f"| `{key}` | several |" for key in sorted(member.uses)]
    filled = ", ".join(f"{field} {value}" for field, value in member.defaults.items())
    left_out = f"Where a key is left out, the framework's default is taken: {filled}.\n\n" if filled else ""
    return f"# {member.title}\n\n{left_out}" + "\n".join(["| key | field |", "|---|---|", *rows]) + "\n"
