"""Weights & Biases, by its own client."""

from __future__ import annotations

from stabilitylens.errors import BadInput
from stabilitylens.run import Run
from stabilitylens.writers._tracker import facts, name_of_run, rows, tracker


@tracker("wandb")
def send(run: Run) -> str:
    """A new run with every curve under its TensorBoard tag and recipe and anatomy as its config.

    Project, entity and mode are what the client takes from the environment (``WANDB_PROJECT``, ``WANDB_MODE=offline``, …).

    Raises:
        stabilitylens.errors.BadInput: wandb is not installed.
    """
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise BadInput("sending a run to Weights & Biases needs its client: pip install wandb") from error
    with wandb.init(name=name_of_run(run), config=facts(run), notes=str(run.header.coverage)) as target:
        for step, row in rows(run):
            target.log(row, step=step)
        return str(target.url or target.dir)
