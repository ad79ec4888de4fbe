"""What each operation of PyTorch does to the flow of data; names are those of the operator library."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PASS = _names(
    """view reshape _unsafe_view unsafe_view transpose permute t expand clone contiguous _to_copy to to_copy alias detach
    slice select narrow unsqueeze squeeze split split_with_sizes chunk unbind getitem dropout native_dropout unflatten
    flatten movedim swapaxes numpy_t view_as expand_as roll pad constant_pad_nd repeat index index_select lift_fresh
    as_strided copy clamp clamp_min clamp_max nan_to_num masked_fill where merge type_as unfold _reshape_alias positive
    as_strided_scatter slice_scatter repeat_interleave gather unsafe_split unsafe_chunk tile masked_select put index_put
    fill mkldnn_reorder_conv2d_weight"""
)
CONVOLUTION = _names(
    """convolution conv1d conv2d conv3d mkldnn_convolution slow_conv2d_forward _slow_conv2d_forward slow_conv3d
    _convolution thnn_conv2d conv_depthwise3d _conv_depthwise2d slow_conv_transpose2d convolution_overrideable"""
)
MATMUL = CONVOLUTION | _names(
    """mm addmm linear bmm baddbmm matmul einsum addbmm mkldnn_linear addmv mv dot _grouped_mm grouped_mm bilinear
    _trilinear tensordot scaled_mm _scaled_mm lstm mkldnn_rnn_layer _cdist_forward _euclidean_dist cdist"""
)
BIASED = _names("addmm baddbmm addbmm")
PLAIN_PRODUCT = _names("mm addmm linear bmm")
LOOKUP = _names("index index_select gather select slice embedding")
DIVISION = _names("split split_with_sizes chunk unbind unsafe_split unsafe_chunk")
PART = _names("slice narrow select getitem index_select index") | DIVISION
MIXING = _names(
    """_fft_c2c _fft_r2c _fft_c2r avg_pool1d avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d max_pool2d
    max_pool2d_with_indices cumsum cumprod associative_scan scan while_loop upsample_bilinear2d upsample_nearest2d
    upsample_bicubic2d"""
)
COUNTING = _names("cumsum")  # how routers number the tokens of an expert
FUSED_NORM = _names(
    """native_layer_norm layer_norm rms_norm _fused_rms_norm fused_rms_norm native_group_norm group_norm instance_norm
    native_batch_norm batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_impl_index mkldnn_batch_norm
    _batch_norm_with_update batch_norm_with_update _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training"""
)
FUSED_ATTENTION = (
    "scaled_dot_product",
    "flex_attention",
    "flash_attn",
    "flash_attention",
    "efficient_attention",
    "varlen_attn",
)
VECTOR_NORM = _names("linalg_vector_norm vector_norm norm linalg_norm")
REDUCTION = VECTOR_NORM | _names("mean sum var var_mean amax std std_mean")
ROOT = VECTOR_NORM | _names("rsqrt sqrt pow reciprocal std")
ACTIVATION = _names(
    """tanh erf sigmoid gelu silu relu hardtanh softplus mish leaky_relu elu atan sin cos hardsigmoid hardswish relu6
    softsign"""
)
SOFTMAX = _names("_softmax softmax _safe_softmax")
SUM = _names("add sub rsub lerp")
PRODUCT = _names("mul div")
JOIN = _names(
    """cat stack index_put index_add scatter scatter_add scatter_reduce slice_scatter select_scatter copy where
    masked_scatter index_copy"""
)
COMPLEX = _names("view_as_complex complex view_as_real")
SQUARE = _names("pow square abs conj real _conj")
CAST = _names("_to_copy to to_copy")
EMBEDDING = _names("embedding native_embedding _embedding_bag")
EMPTY = _names("empty empty_strided empty_like new_empty new_empty_strided empty_permuted")
FRESH = EMPTY | _names(
    """new_zeros new_ones new_full zeros_like ones_like full_like rand_like randn_like"""
)
OTHER = EMBEDDING | _names(
    """neg exp log log1p expm1 erfinv max min maximum minimum addcmul addcdiv sign square prod topk sort bernoulli
    logsumexp _log_softmax glu prelu _prelu_kernel _weight_norm_interface polar imag tril triu flip diagonal
    linalg_solve outer bucketize nll_loss_forward"""
)
KNOWN = (
    PASS | MATMUL | MIXING | FUSED_NORM | REDUCTION | ROOT | ACTIVATION | SOFTMAX | SUM | PRODUCT | JOIN | COMPLEX
    | SQUARE | CAST | FRESH | OTHER
)  # fmt: skip
