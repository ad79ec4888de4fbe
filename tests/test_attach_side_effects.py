"""To attach changes nothing, whatever the model's forward writes to and whoever listens to it."""

import warnings

import pytest
import side_effects
import torch
from anatomy_models import VOCABULARY, Decoder
from side_effects import EFFECTS, Effect
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import stabilitylens as sl
from stabilitylens.hooks.anatomy import reach, read_anatomy
from stabilitylens.hooks.anatomy.reach import Reach
from stabilitylens.hooks.bare import bare_copy

TOKENS = torch.randint(0, VOCABULARY, (4, 2, 8), generator=torch.Generator().manual_seed(1))


def trained(make, folder=None, before=lambda model: None, after=lambda model: None):
    """Losses and weights of a few steps; the gradients of a first micro-batch are there when the lens is attached."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    before(model)
    model(TOKENS[0]).square().mean().backward()
    lens = None if folder is None else sl.attach(model, optimizer, folder, every=1)
    after(model)
    losses = []
    for batch in TOKENS[1:]:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if lens is not None:
            lens.step(loss)
    if lens is not None:
        lens.close()
    return [*losses, *(value.clone() for value in model.state_dict().values())]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("make", EFFECTS, ids=lambda cls: cls.__name__)
def test_attach_leaves_what_a_forward_writes_to(make, tmp_path):
    bare = trained(make)
    assert equal(bare, trained(make)), "the model is not equal to itself"
    assert equal(bare, trained(make, tmp_path))


@pytest.mark.parametrize("make", EFFECTS, ids=lambda cls: cls.__name__)
def test_a_reading_leaves_it_too_on_a_copy_without_memory(make):
    def read(model):
        read_anatomy(bare_copy(model))

    assert equal(trained(make), trained(make, after=read))


@pytest.mark.parametrize("make", [side_effects.ListOfTheFile, side_effects.ClassAttribute, side_effects.GlobalRandoms])
def test_an_audit_that_measures_leaves_it_too(make):
    def measure(model):
        sl.audit(model, TOKENS[0], init=True)

    assert equal(trained(make), trained(make, after=measure))


class Listener:
    """Hooks of every kind that a person may have put there."""

    def __init__(self):
        self.collected, self.total, self.calls = [], torch.zeros(()), 0

    def listen(self, model):
        block = model.blocks[1]
        block.register_forward_hook(lambda module, inputs, output: self.collected.append(output.detach().mean()))
        block.register_forward_hook(lambda module, inputs, output: self.total.add_(output.detach().abs().mean()))
        block.register_forward_pre_hook(self.count, with_kwargs=True)
        block.register_forward_hook(self.count_always, always_call=True)
        block.register_full_backward_hook(lambda module, inputs, outputs: self.collected.append(outputs[0].mean()))
        return [register_module_forward_hook(self.count), register_module_forward_pre_hook(self.count)]

    def count(self, *_):
        self.calls += 1

    def count_always(self, *_):
        self.calls += 100


def heard(folder):
    listener, handles = Listener(), []
    try:
        left = trained(lambda: Decoder(["pre"] * 2), folder, lambda model: handles.extend(listener.listen(model)))
    finally:
        for handle in handles:
            handle.remove()
    return [*left, *listener.collected, listener.total, torch.tensor(listener.calls)]


def test_hooks_hear_of_the_loop_alone(tmp_path):
    assert equal(heard(None), heard(tmp_path))


def test_hooks_hear_of_no_audit():
    model, listener = Decoder(["pre"] * 2), Listener()
    handles = listener.listen(model)
    try:
        sl.audit(model, TOKENS[0], init=True)
    finally:
        for handle in handles:
            handle.remove()
    assert (listener.collected, listener.total.item(), listener.calls) == ([], 0, 0)


def test_hooks_stay_in_their_order_and_can_be_removed():
    model = Decoder(["pre"] * 2)
    handles = [model.blocks[0].register_forward_hook(lambda *_: None) for _ in range(3)]
    hooks = list(model.blocks[0]._forward_hooks.items())
    read_anatomy(model)
    assert list(model.blocks[0]._forward_hooks.items()) == hooks
    for handle in handles:
        handle.remove()
    assert not model.blocks[0]._forward_hooks


def test_a_hook_that_needs_the_loops_batch_is_no_hindrance(tmp_path):
    model, current = Decoder(["pre"] * 2), {}
    model.blocks[0].register_forward_hook(lambda *_: current["batch"].shape and None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lens = sl.attach(model, torch.optim.AdamW(model.parameters()), tmp_path)
    assert lens._recorder.anatomy.norm_placement == "pre"
    lens.close()


def test_a_hook_of_the_models_own_runs():
    class Shifted(Decoder):
        def __init__(self):
            super().__init__(["pre"] * 2)
            self.blocks[0].register_forward_hook(self.shift)
            self.blocks[0].register_forward_hook(lambda *_: 1 / 0)

        def shift(self, module, inputs, output):
            self.shifted = output

        def forward(self, tokens):
            return super().forward(tokens) + self.shifted.mean()

    assert read_anatomy(Shifted()).norm_placement == "pre"


def test_computed_weights_stay_computed():
    model = Decoder(["pre"] * 2)
    model.blocks[0].attention.q = torch.nn.utils.weight_norm(model.blocks[0].attention.q)
    before = model(TOKENS[0])
    assert read_anatomy(model).norm_placement == "pre"
    assert torch.equal(model(TOKENS[0]), before)
    model(TOKENS[0]).sum().backward()
    assert model.blocks[0].attention.q.weight_g.grad is not None


def test_a_forward_that_raises_is_told_at_attach(tmp_path):
    class Broken(Decoder):
        def forward(self, tokens):
            raise RuntimeError("no batch yet")

    model = Broken(["pre"] * 2)
    with pytest.warns(UserWarning, match="anatomy is not read.*no batch yet"):
        sl.attach(model, torch.optim.AdamW(model.parameters()), tmp_path).close()


def test_same_objects_stay_in_their_places():
    model = side_effects.OtherContainers()
    before = {name: (value, list(value)) for name, value in vars(model).items() if name in ("recent", "seen", "votes", "order")}
    version = model.embed.weight._version
    read_anatomy(model)
    for name, (value, content) in before.items():
        assert getattr(model, name) is value and list(value) == content
    assert model.embed.weight._version == version


def test_version_counters_and_memory_of_weights_are_put_back():
    model = side_effects.WeightsNormalized()
    weights = {n: (p.data_ptr(), p._version, p.detach().clone()) for n, p in model.named_parameters()}
    read_anatomy(model)
    for name, parameter in model.named_parameters():
        where, version, value = weights[name]
        assert (parameter.data_ptr(), parameter._version) == (where, version) and torch.equal(parameter, value)


def test_under_autocast_weights_keep_their_gradients():
    model = Decoder(["pre"] * 2)
    with torch.autocast("cpu", torch.bfloat16):
        read_anatomy(model)
        model(TOKENS[0]).float().square().mean().backward()
    assert model.blocks[0].attention.q.weight.grad is not None and model.head.weight.grad is not None


class Hoarder(Effect):
    """Holds what has a million entries, and a chain of objects without an end."""

    def prepare(self):
        self.examples = list(map(str, range(50_000)))
        self.pairs = {i: [i] for i in range(30_000)}
        self.chain = here = side_effects.Count()
        for _ in range(1000):
            here.next = here = side_effects.Count()
        self.many = [[side_effects.Count() for _ in range(100)] for _ in range(300)]

    def number(self):
        self.examples.append("")
        self.pairs[-1] = []
        return len(self.examples) + len(self.pairs)


def test_what_is_looked_into_has_a_limit(tmp_path):
    slim, fat = Reach(Decoder(["pre"] * 2).modules()), Reach(Hoarder().modules())
    assert slim.looked_into < 1500
    assert fat.looked_into == reach.ENTRIES
    assert equal(trained(Hoarder), trained(Hoarder, tmp_path))


def test_a_copy_without_memory_refers_to_itself():
    model = Decoder(["pre"] * 2)
    model.parts, model.table, model.weights = list(model.blocks), {"head": (model.head,)}, [model.embed.weight]
    model.blocks[0].parent = [model]
    model.head.forward = model.head.forward
    copy = bare_copy(nn.ModuleList([model]))[0]
    assert copy.parts[0] is copy.blocks[0] and copy.table["head"][0] is copy.head and copy.weights[0] is copy.embed.weight
    assert copy.blocks[0].parent[0] is copy and copy.head.forward.__self__ is copy.head
    assert read_anatomy(copy).norm_placement == "pre"
    assert model.parts[0] is model.blocks[0] and model.head.forward.__self__ is model.head


def test_what_can_not_be_put_back_keeps_nothing_else_from_being_put_back(monkeypatch):
    class Counting(Decoder):
        def forward(self, tokens):
            self.count.add_(1 + torch.rand(1))
            return super().forward(tokens)

    def fails(self):
        raise TypeError("it stays")

    model = Counting(["pre"]).train()
    model.register_buffer("count", torch.zeros(1))
    state, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    monkeypatch.setattr(Reach, "put_back", fails)
    with pytest.raises(TypeError, match="it stays"):
        read_anatomy(model, torch.zeros(1, 4, dtype=torch.long))
    assert model.count.item() == 0 and torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fast
