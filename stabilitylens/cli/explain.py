"""``stabilitylens explain``."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    name: Annotated[str, typer.Argument(help="A rule's code or name, a metric, a detector or a suspect, as SL201 or resid_rms.")],
) -> None:
    """Print the page of a rule, a metric, a detector or a suspect."""
    from stabilitylens.explain import explain as page

    typer.echo(page(name))
