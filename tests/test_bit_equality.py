"""The observer changes nothing: losses, weights and random state are equal to the bit."""

from __future__ import annotations

import functools

import pytest
import torch
from training import Decoder, EncoderClassifier, gpt2, llama, loss_of, tokens, train

import stabilitylens as sl

MODELS = {
    "gpt2": gpt2,
    "gpt2-eager": functools.partial(gpt2, "eager"),
    "llama-sdpa": llama,
    "llama-eager": functools.partial(llama, "eager"),
    "encoder": EncoderClassifier,
    "encoder-pre-ln": functools.partial(EncoderClassifier, norm_first=True),
    "encoder-frozen-fused": functools.partial(EncoderClassifier, frozen=True),
    "decoder": Decoder,
    "decoder-by-hand": functools.partial(Decoder, by_hand=True, qk_norm=True),
    "decoder-checkpointed": functools.partial(Decoder, recompute="full"),
    "decoder-checkpointed-reentrant": functools.partial(Decoder, recompute="reentrant"),
    "decoder-checkpointed-selectively": functools.partial(Decoder, recompute="selective"),
}
AUTOCAST = ("gpt2", "llama-sdpa", "llama-eager", "encoder", "decoder-by-hand", "decoder-checkpointed-selectively")


@pytest.mark.parametrize("name", MODELS)
def test_training_is_equal_to_the_bit(name, tmp_path):
    bare, again = train(MODELS[name]), train(MODELS[name])
    again.assert_equals(bare)
    train(MODELS[name], tmp_path).assert_equals(bare)


@pytest.mark.parametrize("name", AUTOCAST)
def test_training_under_bf16_autocast_is_equal_to_the_bit(name, tmp_path):
    bare, again = (train(MODELS[name], autocast=True) for _ in range(2))
    again.assert_equals(bare)
    train(MODELS[name], tmp_path, autocast=True).assert_equals(bare)


def test_the_fused_encoder_in_evaluation_gives_the_same_output(tmp_path):
    torch.manual_seed(0)
    model, x = EncoderClassifier(), tokens()
    optimizer = torch.optim.AdamW(model.parameters())

    def evaluate():
        model.eval()
        with torch.no_grad():
            out = loss_of(model, x)
        model.train()
        return out

    bare = evaluate()
    assert torch.equal(bare, evaluate())
    with sl.attach(model, optimizer, tmp_path, every=1):
        assert torch.equal(bare, evaluate())


def test_a_closed_lens_leaves_the_model_as_it_was(tmp_path):
    model = Decoder()
    before = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(m.__dict__)) for m in model.modules()]
    optimizer = torch.optim.AdamW(model.parameters())

    def interrupted():
        with sl.attach(model, optimizer, tmp_path):
            loss_of(model, tokens()).backward()
            raise RuntimeError("in the loop")

    with pytest.raises(RuntimeError, match="in the loop"):
        interrupted()
    after = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(m.__dict__)) for m in model.modules()]
    assert before == after
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
