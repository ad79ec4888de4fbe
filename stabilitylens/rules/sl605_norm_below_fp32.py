from stabilitylens.rules import Evidence, Fired, Lacks, rule

#: precisions whose range or digits are too few for a mean of squares
LOW = ("bf16", "fp16", "fp8")


@rule(code="SL605", needs=("anatomy",), since="0.1.0", evidence_scale=7e9)
def norm_below_fp32(evidence: Evidence) -> list[Fired]:
    """Normalisation layers compute their statistics in float32.

    ## What it flags
    Statistics of LayerNorm or RMSNorm in 16 bit or less, as the recipe says (`norm_precision`) or the dataflow shows: an
    error. A forward in float32 is clear. PyTorch's own layers use float32 inside, whatever their input.

    ## Why it matters
    A mean of squares spans twice the exponents of its input. In fp16 the square of 300 overflows, and an RMSNorm
    that squares in fp16 then returns exact zeros, not NaN; in bf16, 8 significant bits are left for a sum of thousands.

    ## Evidence
    - AdaGC's authors report that RMSNorm below float32 can set off loss spikes: <https://arxiv.org/abs/2502.11034>.
    - Micikevicius et al. keep such reductions in float32 in mixed precision: <https://arxiv.org/abs/1710.03740>.
    - Checked for this rule: an fp16 RMSNorm without a cast returns zeros for inputs of 300.

    ## Example
    The statistics of the norms are computed in bf16.

    ## Known false positives
    - Kernels that accumulate in float32 although inputs and outputs are 16 bit.

    ## Remedy
    Cast to float32 before squaring and back after dividing, or use `torch.nn.RMSNorm` and `torch.nn.LayerNorm`.
    """
    recipe, anatomy = evidence.recipe, evidence.anatomy
    if recipe is not None and recipe.precision == "fp32":
        return []
    precision = recipe.norm_precision if recipe is not None else None
    precision = precision or (anatomy.norm_precision if anatomy is not None else None)
    if precision is None:
        raise Lacks("what the norms compute their statistics in: norm_precision in the recipe")
    if precision not in LOW:
        return []
    return [Fired("error", f"the statistics of the norms are computed in {precision}", confidence=0.8)]
