"""What the name of a field says: a loss, and how good a one; a counter of steps; one of the names that we know."""

from __future__ import annotations

import re
from functools import lru_cache

from stabilitylens.readers._words import in_english

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SPLIT = re.compile(r"[^a-z0-9]+")

EVALUATION = frozenset(
    "eval evaluation val valid validation test testing dev heldout holdout predict prediction inference vl tel".split()
)
TRAINING = frozenset("train training trn tr trainer".split())
_LOSS = frozenset("loss losses nll xent crossentropy bpb bpc bpt cost lossval trl celoss".split())
#: what is minimised where no loss is named so
_ERRORS = frozenset("mse rmse mae mape bce ce xe".split())
#: words in the name of what a training is measured by
_MEASURES = frozenset(
    "acc accuracy top1 ppl perplexity reward rewards return returns score f1 auc likelihood grad gradient gradients gnorm lr bleu rouge wer cer psnr "
    "ssim iou miou map recall precision entropy kl win elo em".split()
)
#: names of what stands in for a loss where nothing is one, the better first
STAND_INS = (
    "train ppl", "training ppl", "train perplexity", "training perplexity", "ppl", "perplexity", "objective", "train objective", "obj",
    "train error", "training error", "train err", "error", "err", "score at iteration", "elbo", "train elbo",
)  # fmt: skip
_NOT_A_LOSS = frozenset(
    "scale scaler scaling acc accuracy ppl perplexity lr coef coeff coefficient weight weights lambda count counts num nan "
    "skipped skip time std stddev var variance min max best minimum lowest ratio norm gnorm grad gradient lost patience threshold "
    "tokens mask masks fn type delta diff change improvement prev previous last target vs percent pct exp entropy_coef".split()
)
_PLAIN = frozenset("loss losses lossval output log logs metrics metric history model global per token tokens current cur this step".split())
_WHOLE = frozenset("lm total nll ce cross entropy xent crossentropy reduced language overall full sum causal clm pretrain pretraining sft".split())
_ONE_BATCH = frozenset("step batch iter iteration instant".split())
_UNITS = frozenset("nats nat bits bit byte bytes char chars word words sample samples sequence seq tok".split())
_SMOOTH = frozenset("ema avg average mean running smooth smoothed moving accumulated accum rolling debiased".split())
_BY_EPOCH = frozenset("epoch epochs".split())

#: of the losses of one model: what is minimised beside the objective, and the objective of reinforcement learning
_BESIDE = frozenset("kl kld entropy ent aux auxiliary z router balance balancing value vf critic reg regularization penalty".split())
_POLICY = frozenset("policy pg surrogate pi ppo grpo".split())

#: normalised names of counters of steps, the better first
STEPS = (
    "global step", "global step max steps", "trainer global step", "train global step", "global steps", "num updates",
    "optimizer step", "opt step", "update step", "training step", "train step", "current steps", "current step", "step", "steps",
    "iteration", "iterations", "train iteration", "global iteration", "iter", "iters", "itr", "it", "niter", "n iter", "num iter", "num steps",
    "update", "updates", "num update", "batch", "batches", "batch idx", "batch index", "batch id", "minibatch", "mb", "i", "t",
    "timestep", "timesteps", "total timesteps", "num timesteps", "episode", "round", "generation", "x",
    "consumed samples", "samples", "num samples", "examples", "epoch", "epochs", "ep", "index", "idx", "unnamed 0",
)  # fmt: skip
_STEP_RANK = {name: rank for rank, name in enumerate(STEPS)}
EPOCHS = frozenset(("epoch", "epochs", "ep", "current epoch", "cur epoch", "trainer epoch", "train epoch"))
#: fields whose values say which part of a run a row is of
ROW_TYPES = frozenset("type split phase mode stage subset set partition kind".split())

_KNOWN = {
    "grad_norm": (
        "grad norm", "gradnorm", "gnorm", "gradient norm", "grad norm total", "global grad norm", "global gradient norm",
        "total grad norm", "grad norm global", "train grad norm", "train grad norm total", "train gnorm", "grad 2 0 norm total", "grad 2 norm total",
        "total norm", "gradient norm total", "gradients norm", "grad norm pre clip", "grad norm before clip", "optim total grad norm",
        "optimizer grad norm", "train gradient norm", "training grad norm", "grads norm", "l2 grad norm", "grad l2", "norm", "actor grad norm",
    ),
    "lr": (
        "lr", "learning rate", "learningrate", "train lr", "train learning rate", "lrate", "current lr", "cur lr", "base lr",
        "lr group 0", "lr 0", "lr adamw", "lr adam", "lr sgd", "optimizer lr", "training lr", "optim learning rate", "optim learning rate group0",
        "lr abs", "last lr", "training learning rate", "lr pg1", "param group lr 0", "actor lr", "lr actor", "schedule lr", "optimizer learning rate",
    ),
    "loss_scale": ("loss scale", "loss scaler", "lossscale", "grad scale", "gradscaler scale", "scaler scale", "train loss scale", "amp scale", "scale"),
    "tokens": (
        "tokens", "consumed tokens", "tokens seen", "num tokens", "total tokens", "num input tokens seen", "train tokens", "train num tokens",
        "n tokens", "tokens processed", "consumed train tokens", "throughput total tokens", "train num input tokens seen", "total tokens seen",
    ),
    "epoch": ("epoch", "train epoch", "epochs", "ep"),
}  # fmt: skip
_OURS = {spelling: (ours, rank) for ours, names in _KNOWN.items() for rank, spelling in enumerate(names)}
#: what a field's time is counted in, by the end of its name
_SECONDS = {"ms": 1e-3, "msec": 1e-3, "millis": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0}
_STEP_TIME = ("step time", "iter time", "iteration time", "elapsed time per iteration", "time per step", "time per iteration", "train step time", "train step timing in", "dt", "batch time")


@lru_cache(maxsize=8192)
def normal(key: str) -> str:
    """A field's name in lower-case English words: ``train/gradNorm`` is ``train grad norm``."""
    return _SPLIT.sub(" ", _CAMEL.sub(" ", in_english(key)).lower()).strip()


def is_evaluation(key: str) -> bool:
    """Whether a field is about data that is not trained on."""
    return not EVALUATION.isdisjoint(normal(key).split())


def loss_rank(key: str) -> int:
    """How much a name promises the loss that is trained on, up to 100; 0 for what is no loss.

    Training before evaluation (below 45), the whole before a part of it, one batch before a mean over many.
    """
    words = normal(key).removesuffix(" value").split()
    here = set(words)
    joined = next((word for word in here if word.endswith("loss")), None)
    is_error = joined is None and here.isdisjoint(_LOSS) and not {"cross", "entropy"} <= here
    if (is_error and here.isdisjoint(_ERRORS)) or not here.isdisjoint(_NOT_A_LOSS):
        return 0
    rank = 100 if words == ["loss"] else 98
    rank -= 26 - 6 * bool(here & TRAINING) if is_error else 0
    rank -= 3 if here & _WHOLE else 0
    rank -= 10 if here & _SMOOTH else 0
    rank -= 18 if here & _BY_EPOCH else 0
    parts = here - _PLAIN - _WHOLE - _SMOOTH - _BY_EPOCH - _ONE_BATCH - TRAINING - EVALUATION - _LOSS - _ERRORS - _UNITS
    parts |= {"entropy"} & here if "cross" not in here else set()
    rank -= min(30, 20 + 2 * len(parts)) if parts else 0
    rank += 4 * bool(parts & _POLICY) - 3 * bool(parts & _BESIDE and not parts & _POLICY)
    return rank - 55 if here & EVALUATION else rank


def tells(key: str) -> bool:
    """Whether a name is that of something a training is measured by."""
    return not _MEASURES.isdisjoint(normal(key).split()) or known(key) is not None or loss_rank(key) > 0


def step_rank(key: str) -> int | None:
    """Place among the names of counters of steps, 0 the best; None for what counts no steps."""
    name = normal(key)
    if key in ("_step", "_steps"):
        return _STEP_RANK["batch"]
    return _STEP_RANK.get(name)


def known(key: str) -> tuple[str, int, float] | None:
    """Our name for a field, the place of its spelling (0 the best), and the factor to our unit."""
    name = normal(key)
    if name in _OURS:
        return (*_OURS[name], 1.0)
    words, _, unit = name.rpartition(" ")
    if unit in _SECONDS and words in _STEP_TIME:
        return "step_time", _STEP_TIME.index(words), _SECONDS[unit]
    return None
