"""Published claims on training stability, re-run on anybody's machine, each with a verdict."""

from stabilitylens.reproductions._choices import Choices
from stabilitylens.reproductions._claim import CLAIMS, Claim, Expect, Picture, Plan, claim
from stabilitylens.reproductions._ledger import Entry, Ledger
from stabilitylens.reproductions._model import Transformer, loss_of
from stabilitylens.reproductions._runner import chosen, reproduce
from stabilitylens.reproductions._training import Trial, train
from stabilitylens.reproductions._verdict import Outcome, verdict

__all__ = [
    "CLAIMS", "Choices", "Claim", "Entry", "Expect", "Ledger", "Outcome", "Picture", "Plan", "Transformer", "Trial", "chosen",
    "claim", "loss_of", "reproduce", "train", "verdict",
]  # fmt: skip
