"""What each counterfactual does to a training step, on models small enough to know the answer."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import one_thread

import stabilitylens as sl
from stabilitylens.errors import BadInput
from stabilitylens.hooks.counterfactuals import COUNTERFACTUALS
from stabilitylens.hooks.counterfactuals._attention import matched
from stabilitylens.hooks.counterfactuals.qk_clip import LARGEST
from stabilitylens.suspects import SUSPECTS

STEPS, BAD, WORDS, WIDTH = 14, 14, 16, 8


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


class Tiny(nn.Module):
    """An embedding, one attention call with a norm before it, and a head."""

    def __init__(self, spelled_out: bool = False) -> None:
        super().__init__()
        self.spelled_out = spelled_out
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k, v = (p(self.norm(h)).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.spelled_out:
            mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.head(h + mixed.transpose(1, 2).flatten(2))


class Loop:
    """A training of ``Tiny`` that is dumped at its last step."""

    def __init__(self, make: Any = Tiny, optimizer: Any = torch.optim.AdamW, autocast: torch.dtype | None = None, **options: Any) -> None:
        self.make, self.optimizer, self.options, self.autocast = make, optimizer, {"lr": 1e-3} | options, autocast
        self.seen: list[dict[str, Any]] = []

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = self.make()
        return model, self.optimizer(model.parameters(), **self.options)

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor], lens: Any = None) -> Tensor:
        optimizer.zero_grad()
        for x in batches:
            with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
                logits = model(x)
                loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
            loss.backward()
        if lens is not None:
            lens.grads_ready()
        self.seen.append({"lr": optimizer.param_groups[0]["lr"], "dtype": logits.dtype, "grad": model.head.weight.grad.clone()} if hasattr(model, "head") else {})
        optimizer.step()
        return loss

    def train(self, folder: Path, rate: Any = None, prepare: Any = None) -> Path:
        model, optimizer = self.parts()
        if prepare is not None:
            prepare(model)
        with sl.attach(model, optimizer, folder, blackbox=sl.BlackBox(snapshot_every=5)) as lens:
            for step in range(1, STEPS + 1):
                if rate is not None:
                    optimizer.param_groups[0]["lr"] = rate(step)
                x = torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(step))
                loss = self.step(model, optimizer, [lens.batch(x)], lens)
                lens.step(loss * (100 if step == BAD else 1))
            found = sorted((folder / "stabilitylens" / "incidents").glob("step_*[0-9]"))
        assert len(found) == 1, found
        return found[0]

    def again(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        """The same step; the loss that is told is a hundredfold for the batch of the incident."""
        bad = torch.equal(batches[0], torch.randint(WORDS, (4, 6), generator=torch.Generator().manual_seed(BAD)))
        return self.step(model, optimizer, batches) * (100 if bad else 1)

    def table(self, folder: Path, *names: str, **options: Any) -> Any:
        self.seen.clear()
        return sl.counterfactuals(folder, *self.parts(), self.again, names=names, **options)


def test_each_has_a_page_a_known_suspect_and_a_file_of_its_name():
    folder = Path(__file__).parent.parent / "hooks" / "counterfactuals"
    assert {m.name for m in COUNTERFACTUALS} == {f.stem for f in folder.glob("[a-z]*.py")}
    for member in COUNTERFACTUALS:
        assert member.page.splitlines()[0].endswith((".", ":")) or member.page.splitlines()[0].count(" ") > 5
        assert member.suspect is None and member.weight == 0 or member.suspect in SUSPECTS and member.weight > 0


def test_the_batch_is_left_out_as_if_it_had_never_been(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "skip_batch")
    row = table["skip_batch"]
    assert row.verdict == "averts" and row.left_out == (BAD,) and BAD not in row.losses
    assert [row.losses[s] for s in range(table.snapshot_step, BAD)] == [table.baseline.losses[s] for s in range(table.snapshot_step, BAD)]
    assert set(table.baseline.losses) == set(row.losses) | {BAD}


def test_learning_rates_are_halved_from_the_snapshot_on(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path, rate=lambda step: 1e-3 * step), "halve_lr", after=3)
    steps = len(table.baseline.losses)
    base, halved = ([s["lr"] for s in part] for part in (loop.seen[:steps], loop.seen[steps:]))
    assert base == [1e-3 * s for s in range(table.snapshot_step, BAD + 1)] + 3 * [1e-3 * BAD]
    assert halved == [0.5 * lr for lr in base]
    assert table["halve_lr"].verdict == "does not avert" and f"step {BAD}" in table["halve_lr"].why


def test_a_learning_rate_that_moved_is_kept_where_it_was_and_one_that_did_not_is_nothing_to_try(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path / "a", rate=lambda step: 1e-3 if step < 12 else 3e-2), "steady_lr")
    assert {s["lr"] for s in loop.seen[len(table.baseline.losses) :]} == {1e-3}
    same = loop.table(loop.train(tmp_path / "b"), "steady_lr")["steady_lr"]
    assert same.verdict == "not applicable" and "10%" in same.why


def test_gradients_are_clipped_to_the_median_before(tmp_path):
    loop = Loop(optimizer=torch.optim.SGD, lr=1.0)
    folder = loop.train(tmp_path)
    seen: list[float] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        before = [p.detach().clone() for p in model.parameters()]
        loss = loop.again(model, optimizer, batches)
        seen.append(math.sqrt(sum(float((p.detach() - b).square().sum()) for p, b in zip(model.parameters(), before, strict=True))))
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["clip_harder"], after=2)
    steps = len(table.baseline.losses)
    usual = sorted(seen[: BAD - table.snapshot_step])
    middle = (usual[(len(usual) - 1) // 2] + usual[len(usual) // 2]) / 2
    assert max(seen[:steps]) > 1.01 * middle  # with SGD at lr 1 the update is the gradient
    assert max(seen[steps:]) == pytest.approx(middle, rel=1e-4)


def test_moments_begin_anew(tmp_path):
    loop = Loop()
    folder = loop.train(tmp_path)
    counts: list[float] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        counts.append(float(optimizer.state[model.head.weight]["step"]))
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["fresh_adam"], after=0)
    steps = len(table.baseline.losses)
    assert counts == [*range(table.snapshot_step, BAD + 1), *range(1, steps + 1)]
    plain = Loop(optimizer=torch.optim.SGD)
    assert plain.table(plain.train(tmp_path / "sgd"), "fresh_adam")["fresh_adam"].verdict == "not applicable"


@pytest.mark.parametrize(("given", "wanted"), [({"betas": (0.9, 0.999)}, 0.95), ({"betas": (0.9, 0.95)}, 0.9), ({"betas": (0.9, 0.9)}, None)])
def test_beta2_is_lowered_once(given, wanted, tmp_path):
    loop = Loop(**given)
    folder = loop.train(tmp_path)
    seen: set[float] = set()

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        seen.add(optimizer.param_groups[0]["betas"][1])
        return loop.again(model, optimizer, batches)

    row = sl.counterfactuals(folder, *loop.parts(), watched, names=["other_beta2"])["other_beta2"]
    assert seen == {given["betas"][1]} | ({wanted} if wanted else set())
    assert (row.verdict == "not applicable") is (wanted is None)


@pytest.mark.parametrize(("eps", "wanted"), [(1e-8, 1e-5), (1e-5, 1e-4)])
def test_eps_is_raised_once(eps, wanted, tmp_path):
    loop = Loop(eps=eps)
    folder = loop.train(tmp_path)
    seen: set[float] = set()

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        seen.add(optimizer.param_groups[0]["eps"])
        return loop.again(model, optimizer, batches)

    sl.counterfactuals(folder, *loop.parts(), watched, names=["larger_eps"])
    assert sorted(seen) == pytest.approx(sorted({eps, wanted}))


def test_autocast_is_off_in_fp32(tmp_path):
    loop = Loop(autocast=torch.bfloat16)
    table = loop.table(loop.train(tmp_path), "fp32")
    steps = len(table.baseline.losses)
    assert {s["dtype"] for s in loop.seen[:steps]} == {torch.bfloat16} and {s["dtype"] for s in loop.seen[steps:]} == {torch.float32}
    assert table["fp32"].suspect is None  # bf16 has the range of fp32, so nothing is said of fp16
    assert not torch.is_autocast_enabled("cpu")


def test_weights_in_16_bit_are_fp32_for_the_trial_and_16_bit_again_after_it(tmp_path):
    loop = Loop(make=lambda: Tiny().bfloat16())
    folder = loop.train(tmp_path)
    model, optimizer = loop.parts()
    parameters, loop.seen[:] = list(model.parameters()), []
    table = sl.counterfactuals(folder, model, optimizer, loop.again, names=["fp32"])
    steps = len(table.baseline.losses)
    assert {s["dtype"] for s in loop.seen[steps:]} == {torch.float32}, table["fp32"]
    assert [p.dtype for p in model.parameters()] == [torch.bfloat16] * len(parameters)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    moments = {v.dtype for state in optimizer.state.values() for k, v in state.items() if k != "step"}
    assert moments == {torch.bfloat16}
    loop.again(model, optimizer, [torch.randint(WORDS, (4, 6))])  # it can go on


def test_nothing_in_16_bit_is_nothing_to_try(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "fp32", "fp32_norms_and_attention")
    assert [row.verdict for row in table.rows] == ["not applicable", "not applicable"]


def test_norms_and_attention_compute_in_fp32_and_give_the_dtype_back(tmp_path):
    inside: list[torch.dtype] = []

    class SpelledOutNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            inside.append(x.dtype)
            return (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + 1e-5).rsqrt() * self.weight

    class Half(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.norm = SpelledOutNorm(WIDTH)

    loop = Loop(make=lambda: Half().bfloat16())
    folder = loop.train(tmp_path)
    inside.clear()
    table = loop.table(folder, "fp32_norms_and_attention")
    half = len(inside) // 2
    assert set(inside[:half]) == {torch.bfloat16} and set(inside[half:]) == {torch.float32}, table
    assert {s["dtype"] for s in loop.seen} == {torch.bfloat16}
    assert table["fp32_norms_and_attention"].verdict == "does not avert"


def grown(model: nn.Module) -> None:
    """Logits of the second head, and of it alone, far above what QK-Clip allows."""
    with torch.no_grad():
        model.q.weight[4:] *= 60
        model.k.weight[4:] *= 60


def logits(model: nn.Module) -> Tensor:
    """Largest logit of each head, over all words at once."""
    h = model.norm(model.embed.weight)[None]
    q, k = (p(h).unflatten(-1, (2, 4)).transpose(1, 2) for p in (model.q, model.k))
    return (q @ k.transpose(-1, -2) / 2).amax((0, 2, 3)).detach()


@pytest.mark.parametrize("spelled_out", [False, True])
def test_qk_clip_shrinks_the_rows_of_the_head_that_exceeds_it(spelled_out, tmp_path):
    loop = Loop(make=lambda: Tiny(spelled_out), lr=0.0, weight_decay=0.0)
    folder = loop.train(tmp_path, prepare=grown)
    states: list[dict[str, Tensor]] = []

    def watched(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        states.append(copy.deepcopy(model.state_dict()) | {"logits": logits(model)})
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), watched, names=["qk_clip"])
    first, last = states[0], states[-1]
    assert first["logits"][1] > 10 * LARGEST and last["logits"][1] < 1.3 * LARGEST, table
    assert last["logits"][0] == first["logits"][0]
    shrunk = [last[f"{p}.weight"][4:] / first[f"{p}.weight"][4:] for p in "qk"]
    assert torch.allclose(shrunk[0], shrunk[1]) and float(shrunk[0].std()) < 1e-5  # the same √γ on both


def test_qk_clip_has_nothing_to_do_where_logits_are_small(tmp_path):
    loop = Loop()
    row = loop.table(loop.train(tmp_path), "qk_clip")["qk_clip"]
    assert row.verdict == "not applicable" and "above 100" in row.why


def test_rows_are_told_in_a_fused_projection_with_other_layouts():
    out = torch.randn(3, 7, 24)
    q, k, v = out.chunk(3, -1)
    heads = k.unflatten(-1, (2, 4)).transpose(1, 2)
    assert torch.equal(matched(out, heads), torch.arange(8, 16).view(2, 4))
    assert torch.equal(matched(out.transpose(0, 1), heads), torch.arange(8, 16).view(2, 4))
    interleaved = out.unflatten(-1, (2, 12))[..., 4:8].transpose(1, 2)
    assert torch.equal(matched(out, interleaved), torch.tensor([[4, 5, 6, 7], [16, 17, 18, 19]]))
    assert matched(out, torch.randn(3, 2, 7, 4)) is None


def test_qk_norm_bounds_logits_whatever_the_weights_become(tmp_path):
    loop = Loop(lr=0.0, weight_decay=0.0)
    folder, largest = loop.train(tmp_path), []
    original = F.scaled_dot_product_attention

    def growing(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Tensor]) -> Tensor:
        loss = loop.again(model, optimizer, batches)
        with torch.no_grad():
            model.q.weight *= 2
            model.q.bias *= 2
        return loss

    table = sl.counterfactuals(folder, *loop.parts(), growing, names=["qk_norm"], after=6)
    assert original is F.scaled_dot_product_attention and not largest
    base, normed = ([row.losses[s] for s in range(BAD + 1, BAD + 7)] for row in (table.baseline, table["qk_norm"]))
    again = loop.table(folder, "qk_norm", after=6)["qk_norm"]
    assert [again.losses[s] for s in range(BAD + 1, BAD + 7)] == pytest.approx(normed, rel=1e-3)  # growth changes nothing
    assert max(abs(a - b) for a, b in zip(base, normed, strict=True)) > 1e-2
    spelled = Loop(make=lambda: Tiny(True))
    assert spelled.table(spelled.train(tmp_path / "s"), "qk_norm")["qk_norm"].verdict == "not applicable"


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_z_loss_s_gradient_is_autograd_s(scale):
    from stabilitylens.hooks.counterfactuals.z_loss import COEFFICIENT, _gradient

    z = (3 * torch.randn(5, 7, dtype=torch.float64)).requires_grad_()
    targets = torch.tensor([0, 3, -100, 6, 2])
    counts = targets != -100
    (ce,) = torch.autograd.grad(scale * F.cross_entropy(z, targets), z)
    (wanted,) = torch.autograd.grad(scale * COEFFICIENT * z[counts].logsumexp(-1).square().mean(), z)
    assert torch.allclose(_gradient(z.detach(), ce, []), wanted, rtol=1e-5, atol=1e-12 * scale)


def test_the_z_loss_moves_the_weights_and_not_the_loss_that_is_told(tmp_path):
    loop = Loop()
    table = loop.table(loop.train(tmp_path), "z_loss", after=1)
    steps = len(table.baseline.losses)
    first = table.snapshot_step
    assert table["z_loss"].losses[first] == table.baseline.losses[first]
    assert not torch.equal(loop.seen[0]["grad"], loop.seen[steps]["grad"])


def test_an_unknown_name_is_said(tmp_path):
    loop = Loop()
    with pytest.raises(BadInput, match="halve_rl"):
        loop.table(loop.train(tmp_path), "halve_rl")
