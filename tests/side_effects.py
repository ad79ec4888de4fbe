"""Models whose forward writes to something that is no buffer, so that one run too many would change the training."""

import functools
import random
import sys
import types
from collections import Counter, OrderedDict, deque

import numpy as np
import torch
from anatomy_models import Decoder
from torch import nn

HELPER = types.ModuleType("file_of_helpers")
sys.modules["file_of_helpers"] = HELPER
exec("KEPT = []\ndef keep(x):\n    KEPT.append(x)\n    return len(KEPT)", vars(HELPER))
KEPT, TABLE, CALLS = [], {"by": {"kind": [0]}}, 0


class Effect(Decoder):
    """Its output is louder the more often it has run, by ``number()``, whatever counts that."""

    def __init__(self):
        super().__init__(["pre"] * 2)
        self.prepare()

    def prepare(self):
        pass

    def forward(self, tokens):
        factor = 1 + 0.01 * float(self.number())
        return super().forward(tokens) * factor


class ListOfTheFile(Effect):
    def prepare(self):
        KEPT.clear()

    def number(self):
        KEPT.append(torch.ones(2))
        return len(KEPT)


class NestedTableOfTheFile(Effect):
    def prepare(self):
        TABLE["by"]["kind"][:] = [0]

    def number(self):
        TABLE["by"]["kind"][0] += 1
        return TABLE["by"]["kind"][0]


class GlobalRebound(Effect):
    def prepare(self):
        global CALLS
        CALLS = 0

    def number(self):
        global CALLS
        CALLS += 1
        return CALLS


class GlobalMadeByTheForward(Effect):
    def prepare(self):
        globals().pop("MADE", None)

    def number(self):
        global MADE
        MADE = globals().get("MADE", 0) + 1
        return MADE


class ListOfAnotherFile(Effect):
    def prepare(self):
        vars(sys.modules["file_of_helpers"])["KEPT"].clear()

    def other(self):
        return HELPER.nothing

    def number(self):
        return HELPER.keep(0)


class DictOfLists(Effect):
    def prepare(self):
        self.store = {"aux": []}
        for block in self.blocks:
            block.store = self.store

    def number(self):
        self.blocks[0].store["aux"].append(1)
        return len(self.store["aux"])


class OtherContainers(Effect):
    def prepare(self):
        self.recent, self.seen, self.votes = deque([1], maxlen=50), {0}, Counter()
        self.order = OrderedDict.fromkeys(range(7))

    def number(self):
        self.recent.append(len(self.recent))
        self.seen.add(len(self.seen))
        self.votes["a"] += 1
        self.order.move_to_end(next(iter(self.order)))
        return len(self.recent) + len(self.seen) + self.votes["a"] + next(iter(self.order))


class Count:
    def __init__(self):
        self.n = 0


class CounterInAnObject(Effect):
    def prepare(self):
        self.state = types.SimpleNamespace(inner=Count())

    def number(self):
        self.state.inner.n += 1
        return self.state.inner.n


class Slotted:
    __slots__ = ("n",)


class Slots(Effect):
    def prepare(self):
        self.state = Slotted()

    def number(self):
        self.state.n = getattr(self.state, "n", 0) + 1
        return self.state.n


class ClassAttribute(Effect):
    calls, kept = 0, []

    def prepare(self):
        ClassAttribute.calls, ClassAttribute.kept[:] = 0, []

    def number(self):
        ClassAttribute.calls += 1
        self.kept.append(0)
        return self.calls + len(self.kept)


class EnclosingFunction(Effect):
    def prepare(self):
        n, kept = 0, []

        def number():
            nonlocal n
            n += 1
            kept.append(n)
            return n + len(kept)

        self.number = number


class BoundToAnObject(Effect):
    def prepare(self):
        def count(state, by):
            state.n += by
            return state.n

        self.number = functools.partial(count, Count(), by=1)


class FunctionsOwn(Effect):
    def prepare(self):
        def number(kept=[]):  # noqa: B006
            kept.append(0)
            number.calls += 1
            return len(kept) + number.calls

        number.calls = 0
        self.number = number


class OwnGenerator(Effect):
    def prepare(self):
        self.generator = torch.Generator().manual_seed(5)

    def number(self):
        return torch.rand(1, generator=self.generator)


class NumpyGenerator(Effect):
    def prepare(self):
        self.generator = np.random.default_rng(3)

    def number(self):
        return self.generator.random()


class NumpyRandomState(Effect):
    def prepare(self):
        self.generator = np.random.RandomState(3)

    def number(self):
        return self.generator.normal()


class PythonRandom(Effect):
    def prepare(self):
        self.generator = random.Random(3)

    def number(self):
        return self.generator.gauss(0, 1)


class GlobalRandoms(Effect):
    """All but Python's own, from which the type checks of these tests draw at every call."""

    def prepare(self):
        np.random.seed(0)
        torch.manual_seed(0)

    def number(self):
        return np.random.rand() + torch.rand(1)


class PlainTensor(Effect):
    def prepare(self):
        self.total, self.array = torch.zeros(1), np.zeros(2)
        self.large = torch.zeros(1 << 19)

    def number(self):
        self.total.add_(1)
        self.array += 1
        self.large.data[-1] += 1
        return self.total + self.array[0] + self.large[-1]


class WeightsNormalized(Effect):
    """As nGPT does, in place and by other memory."""

    def number(self):
        with torch.no_grad():
            self.embed.weight.mul_(0.9)
        self.blocks[0].attention.q.weight.data = self.blocks[0].attention.q.weight.data * 1.1
        return 0


class GradientsDropped(Effect):
    """In eval mode, as a reading is."""

    def number(self):
        for parameter in () if self.training else self.parameters():
            parameter.grad = None
        return 0


class ModulesNotRegistered(Effect):
    def prepare(self):
        self.others = [nn.Identity()]
        self.others[0].calls = 0

    def number(self):
        self.others[0].calls += 1
        return self.others[0].calls


EFFECTS = Effect.__subclasses__()
