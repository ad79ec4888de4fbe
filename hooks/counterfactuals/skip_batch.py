"""The counterfactual skip_batch."""

from __future__ import annotations

from stabilitylens.hooks.counterfactuals._member import counterfactual
from stabilitylens.hooks.counterfactuals._trial import Trial


@counterfactual(suspect="bad-batch")
def skip_batch(trial: Trial) -> None:
    """Leave the incident's batch out, as if the step had never been asked for.

    If the steps after it are as they should be, the batch was needed for the incident. With other weights the same batch may
    be harmless: <https://arxiv.org/abs/2204.02311>.
    """
    trial.drop.add(trial.step)
