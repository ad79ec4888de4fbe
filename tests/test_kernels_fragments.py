"""What the tensor cores are told to add up, run on 32 threads of Python by the layouts in the PTX manual, and how bits compare."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("triton")

from stabilitylens.kernels._gpu import _fragments  # noqa: E402

LANES = 32


def unpacked(pairs):
    """A register of two 16-bit elements a lane, as (lane, 2); here it simply holds them."""
    return np.broadcast_to(np.asarray(pairs, dtype=float), (LANES, 2))


def multiply(columns, product, a, b):
    """mma.m16n8k8 and m16n8k16: product + A B, each spread over the lanes."""
    lane = np.arange(LANES)
    g, t = lane // 4, lane % 4
    big_a, big_b, big_c = np.zeros((16, columns)), np.zeros((columns, 8)), np.zeros((16, 8))
    for i, pair in enumerate(a):
        for half in range(2):
            big_a[g + 8 * (i % 2), 2 * t + half + 8 * (i // 2)] = unpacked(pair)[:, half]
    for i, pair in enumerate(b):
        for half in range(2):
            big_b[2 * t + half + 8 * i, g] = unpacked(pair)[:, half]
    places = [(g + 8 * (i // 2), 2 * t + i % 2) for i in range(4)]
    for place, number in zip(places, product, strict=True):
        big_c[place] = number
    whole = big_c + big_a @ big_b
    return [whole[place] for place in places]


def names(text):
    return [name.strip() for name in text.strip("{} ").split(",")]


def execute(source, registers):
    """A few instructions of PTX on all lanes; registers by name."""
    r = dict(registers)

    def value(name):
        if name == "%laneid":
            return np.arange(LANES)
        if name.startswith("0f"):
            return np.full(LANES, np.array(int(name[2:], 16), np.uint32).view(np.float32))
        if name in ("0x3F803F80", "0x3C003C00"):
            return np.ones((LANES, 2))
        return r[name] if name in r else np.full(LANES, int(name))

    simple = {"shr": np.right_shift, "shl": np.left_shift, "and": np.bitwise_and, "add": np.add, "mul": np.multiply, "abs": np.abs, "max": np.fmax}
    for line in (part.strip(" {}") for part in re.split(r";", source)):
        if not line or line.startswith(".reg"):
            continue
        if line.startswith("mma"):
            columns = int(re.match(r"mma.sync.aligned.m16n8k(\d+).row.col.f32.(b?f16).\2.f32", line)[1])
            into, a, b, start = map(names, re.findall(r"\{[^}]*\}|\{[^}]*$", line))
            assert into == start
            r |= dict(zip(into, multiply(columns, [value(n) for n in start], [value(n) for n in a], [value(n) for n in b]), strict=True))
            continue
        guard, line = (r[line[1:].split()[0]], line.split(None, 1)[1]) if line.startswith("@") else (np.ones(LANES, bool), line)
        op, rest = line.split(None, 1)
        target, *given = names(rest)
        kind = op.split(".")[0]
        found = [value(n) for n in given]
        if kind == "mov":
            result = found[0]
        elif kind == "setp":
            result = found[0] == found[1]
        elif kind == "selp":
            result = np.where(found[2], found[0], found[1])
        else:
            result = simple[kind](*found)
        r[target] = result if guard.all() else np.where(guard, result, r[target])
    return r


def started(first, pairs):
    """Zeros in the first registers, the elements after them."""
    zeros = {f"${i}": np.zeros(LANES) for i in range(first)}
    return zeros | {f"${first + i}": pairs[:, i] for i in range(4)}


@pytest.fixture()
def elements():
    return np.random.default_rng(0).standard_normal((LANES, 4, 2))


@pytest.mark.parametrize("source", [_fragments._BF16, _fragments._FP16])
def test_all_numbers_are_eight_sums(source, elements):
    found = execute(source.value, started(8, elements))
    assert np.isclose(sum(found[f"${i}"].sum() for i in range(8)) / 8, elements.sum())


@pytest.mark.parametrize("source", [_fragments._BF16_BOTH, _fragments._FP16_BOTH])
def test_the_diagonals_are_the_sum_of_squares(source, elements):
    once = execute(source.value, started(16, elements))
    again = {f"${16 + i}": 2 * elements[:, i] for i in range(4)}
    found = execute(source.value, {name: once[name] for name in (f"${i}" for i in range(16))} | again)
    assert np.isclose(sum(found[f"${i}"].sum() for i in range(8)) / 8, 3 * elements.sum())
    read = execute(_fragments._READ.value, {f"${8 + i}": found[f"${8 + i}"] for i in range(8)})
    assert np.isclose(sum(read[f"${i}"].sum() for i in range(8)), 5 * np.square(elements).sum())


def test_each_element_has_its_own_square(elements):
    """One element at a time, so that no mistake in one place is made up for in another."""
    for i in range(elements.size):
        one = np.zeros(elements.size)
        one[i] = 3.0
        found = execute(_fragments._BF16_BOTH.value, started(16, one.reshape(elements.shape)))
        read = execute(_fragments._READ.value, {f"${8 + j}": found[f"${8 + j}"] for j in range(8)})
        assert sum(read[f"${j}"].sum() for j in range(8)) == 9.0


def test_operands_are_as_many_as_the_places():
    assert _fragments._PLACES.value.count("f") == 8 and _fragments._BOTH_PLACES.value.count("f") == 16
    assert "$19" in _fragments._BF16_BOTH.value and "$20" not in _fragments._BF16_BOTH.value


def magnitudes_by_asm(found, bits):
    """Of pairs of bits, as the instructions for fp16 have them."""
    with np.errstate(invalid="ignore"):
        larger = execute(_fragments._LARGER.value, {"$0": found, "$1": found.view(np.float16), "$2": bits.view(np.float16)})["$0"]
    return larger.view(np.uint16)


def bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_magnitudes_of_bf16_are_compared_as_fp16():
    """Every number against the next smaller and larger ones and against distant ones, of either sign."""
    plain = np.arange(0x7C01, dtype=np.uint16)  # what is finite as fp16, and its infinity
    for move in (1, -1, 777, -12345):
        other = np.roll(plain, move)
        for signs in (0, 0x8000):
            pairs = [np.resize(x, (LANES * 1000, 2)) for x in (plain, other | np.uint16(signs))]
            larger = magnitudes_by_asm(*pairs)
            assert np.array_equal(bf16(larger), np.maximum(bf16(pairs[0]), np.abs(bf16(pairs[1]))))


def test_what_is_passed_over_has_a_square_that_is_not_finite():
    beyond = np.arange(0x7C01, 0x8000, dtype=np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(np.square(bf16(beyond))).any()
    kept = magnitudes_by_asm(np.full((len(beyond), 2), 7, np.uint16), np.stack([beyond, beyond | 0x8000], 1))
    assert (kept == 7).all()


def test_numbers_without_a_sign_are_in_the_order_of_their_bits():
    bits = np.unique(np.random.default_rng(0).integers(0, 0x7F800001, 10000, dtype=np.int32))
    assert (np.diff(bits.view(np.float32)) > 0).all()
