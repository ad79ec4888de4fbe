"""What holds no loss is one sentence that says what it is, and which loss is taken where there are several of one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stabilitylens.cli import main
from stabilitylens.readers._loss import choose_loss
from stabilitylens.readers._unreadable import why_unreadable

PROSE = "The loss was 3.2 at step 100. We then had 4 apples and the loss of life was 12 in 1998.\n"


@pytest.mark.parametrize(("name", "content", "what"), [
    ("package-lock.json", '{"lockfileVersion": 3, "packages": {%s}}' % ", ".join('"%d": {"version": "1.0"}' % i for i in range(50)), "no loss"),
    ("config.json", '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "loss": "ce", "vocab_size": 32000}', "a configuration?"),
    ("accuracy.csv", "step,eval_accuracy\n" + "".join(f"{i},{0.5 + i / 500}\n" for i in range(100)), "has eval_accuracy, of which --loss takes one"),
    ("prose.txt", PROSE * 30, "no loss was found"),
])
def test_without_a_loss_it_is_one_sentence_and_two(name: str, content: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SystemExit) as left:
        main(["postmortem", str(path)])
    said = capsys.readouterr().err
    assert left.value.code == 2 and what in said and said.count("\n") == 1 and str(path) in said


def test_what_is_named_as_the_loss_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.csv"
    path.write_text("step,eval_accuracy\n" + "".join(f"{i},{0.5 + i / 500}\n" for i in range(100)))
    with pytest.raises(SystemExit) as left:
        main(["postmortem", str(path), "--loss", "eval_accuracy"])
    assert left.value.code == 0


@pytest.mark.parametrize(("keys", "best"), [
    (("actor/kl_loss", "actor/pg_loss"), "actor/pg_loss"),
    (("value_loss", "entropy_loss", "policy_loss"), "policy_loss"),
    (("train/value_loss", "train/policy_gradient_loss", "train/loss"), "train/loss"),
    (("z_loss", "load_balancing_loss", "lm_loss"), "lm_loss"),
    (("kl_loss", "cross_entropy_loss"), "cross_entropy_loss"),
])
def test_the_objective_comes_before_its_penalties(keys: tuple[str, ...], best: str) -> None:
    assert choose_loss({key: np.linspace(-1, 1, 50) if "p" in key else np.ones(50) for key in keys}) == best


def test_a_file_of_nothing_but_zeros_is_not_searched(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(1 << 20))
    assert "binary file" in why_unreadable(path)
