// Scaled dot product attention: which kernel CUDA would choose on this card, and a refusal where that kernel is not
// modelled. [src aten/src/ATen/native/transformers/cuda/sdp_utils.cpp select_sdp_backend; the file at torch 2.13.0's own
// commit was not at hand: read at the nearest stored versions before and after, which agree on float32]
#include <ATen/Context.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/util/env.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "csrc/oracle/aten/adapter.h"

namespace step_oracle::aten {
namespace {

using sdp::SDPBackend;
using Params = sdp::sdp_params;
constexpr bool kQuiet = false;  // torch's checks explain themselves in warnings when asked to

bool is_half(const Params& p) { return p.query.scalar_type() == at::kHalf || p.query.scalar_type() == at::kBFloat16; }

bool has_dtype(const Params& p, std::initializer_list<at::ScalarType> types) {
  const at::ScalarType t = p.query.scalar_type();
  return t == p.key.scalar_type() && t == p.value.scalar_type() && std::find(types.begin(), types.end(), t) != types.end();
}

bool low_precision(const Params& p, const Card& card) {
  return card.cc_major >= 8 ? has_dtype(p, {at::kHalf, at::kBFloat16}) : has_dtype(p, {at::kHalf});
}

// H100, H200 and B200 try cuDNN first, unless the environment says otherwise.
bool prefers_cudnn(const Card& card) {
  return (card.cc_major == 9 || card.cc_major == 10) && c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") != true;
}

// A closed kernel, refused below; its limits on head sizes follow the cuDNN of the CUDA wheel.
bool can_use_cudnn(const Params& p, const Card& card) {
  const at::Context& context = at::globalContext();
  const bool deterministic = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  if (!context.userEnabledCuDNNSDP() || deterministic || card.cc_major < 8 || !low_precision(p, card)) return false;
  if (!sdp::check_tensor_shapes(p, kQuiet) || !sdp::check_attn_mask_shape(p, kQuiet) ||
      !sdp::check_nonzero_sequence_lengths_dense(p, kQuiet) || !sdp::check_last_dim_stride_equals_1_dense<true>(p, kQuiet) ||
      !sdp::check_batch_size_and_num_heads_dense<true, false>(p, kQuiet))
    return false;
  const std::int64_t d_qk = p.query.size(3), d_v = p.value.size(3), limit = 128;
  const bool wide = card.compute_capability() == 90 && d_qk == 192 && d_v == 128;
  return (wide || (d_qk <= limit && d_v <= limit)) && d_qk % 8 == 0 && d_v % 8 == 0 && p.key.size(2) != 1 &&
         !(p.dropout != 0.0 && p.query.size(2) == 1);
}

bool can_use_flash(const Params& p, const Card& card) {
  if (!sdp::check_runtime_disabled_flash(p, kQuiet) || !sdp::check_tensor_shapes(p, kQuiet) ||
      !sdp::check_for_attn_mask(p, kQuiet))
    return false;
  const std::int64_t d = p.query.size(-1), widest = 256;
  if (d != p.key.size(-1) || d != p.value.size(-1) || d > widest || card.cc_major < 8) return false;
  const int cc = card.compute_capability();
  const bool narrow = cc == 86 || cc == 89;  // their shared memory holds no backward for these head sizes
  if (narrow && sdp::input_requires_grad(p) && ((d > 192 && d <= 224) || (d > 224 && p.dropout > 0.0))) return false;
  if (p.is_causal && p.query.size(-2) != p.key.size(-2)) return false;
  return low_precision(p, card) && sdp::check_batch_size_and_num_heads_dense<true>(p, kQuiet) &&
         sdp::check_nonzero_sequence_lengths_dense(p, kQuiet) &&
         sdp::check_last_dim_stride_equals_1_dense<true>(p, kQuiet);
}

// Elements that the efficient kernel's matrix products load at once.
std::int64_t efficient_alignment(const Params& p, const Card& card) {
  const std::int64_t vector = 128 / (is_half(p) ? 16 : 32);
  if (card.cc_major >= 8) return std::max<std::int64_t>(4, vector);
  return card.cc_major >= 7 && is_half(p) ? vector : 1;
}

bool can_use_efficient(const Params& p, const Card& card) {
  if (!sdp::check_runtime_disabled_mem_efficient(p, kQuiet) || !sdp::check_tensor_shapes(p, kQuiet)) return false;
  const std::int64_t d_qk = p.query.size(-1), d_v = p.value.size(-1), alignment = efficient_alignment(p, card);
  if (d_qk != p.key.size(-1) || d_qk <= 0 || d_v <= 0 || d_qk % alignment != 0 || d_v % alignment != 0) return false;
  return sdp::check_nonzero_sequence_lengths_dense(p, kQuiet) &&
         sdp::check_last_dim_stride_equals_1_dense<false>(p, kQuiet) &&
         sdp::check_batch_size_and_num_heads_dense<false>(p, kQuiet) &&
         (card.cc_major >= 8 ? has_dtype(p, {at::kHalf, at::kFloat, at::kBFloat16})
                             : has_dtype(p, {at::kHalf, at::kFloat}));
}

// The user's order, or the default one; on cards that prefer cuDNN the default has it first.
auto priority_order(const Card& card) {
  auto order = at::globalContext().sDPPriorityOrder();
  const std::array torchs{SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math,
                          SDPBackend::cudnn_attention};
  if (prefers_cudnn(card) && std::equal(torchs.begin(), torchs.end(), order.begin())) {
    order = {SDPBackend::cudnn_attention, SDPBackend::flash_attention, SDPBackend::efficient_attention,
             SDPBackend::math, SDPBackend::overrideable};
  }
  return order;
}

SDPBackend select(const Params& p) {
  const Card& card = card_of(p.query);
  for (const SDPBackend backend : priority_order(card)) {
    switch (backend) {
      case SDPBackend::cudnn_attention:
        if (can_use_cudnn(p, card)) return backend;
        break;
      case SDPBackend::flash_attention:
        if (can_use_flash(p, card)) return backend;
        break;
      case SDPBackend::efficient_attention:
        if (can_use_efficient(p, card)) return backend;
        break;
      case SDPBackend::math:
        if (at::globalContext().userEnabledMathSDP()) return backend;
        break;
      default: break;
    }
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

std::int64_t choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double>,
                    bool enable_gqa) {
  TORCH_CHECK_NOT_IMPLEMENTED(!query.is_nested() && !key.is_nested() && !value.is_nested(),
                              "oracle: attention over nested tensors is not modelled. Use padded tensors and a mask.");
  return static_cast<std::int64_t>(select({query, key, value, mask, dropout, is_causal, enable_gqa}));
}

// torch's composite sends flash attention of any device but CUDA and XPU to the CPU's operator.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  const auto backend =
      static_cast<SDPBackend>(choice(query, key, value, mask, dropout, is_causal, scale, enable_gqa));
  if (backend != SDPBackend::flash_attention) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  }
  const std::int64_t d = query.size(-1);
  const auto padded = [&](const at::Tensor& t) { return d % 8 == 0 ? t : at::constant_pad_nd(t, {0, 8 - d % 8}, 0); };
  const double s = scale.value_or(1.0 / std::sqrt(static_cast<double>(d)));
  const at::Tensor out = std::get<0>(at::_scaled_dot_product_flash_attention(padded(query), padded(key), padded(value),
                                                                             dropout, is_causal, false, s));
  return out.size(-1) == d ? out : out.slice(-1, 0, d);
}

// A fused kernel that is chosen on a card and not modelled here.
void refuse_fused(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "oracle: ", device::card(-1).name, " would run '", op.operator_name(),
      "', which is not modelled yet. Wrap the call in torch.nn.attention.sdpa_kernel(SDPBackend.MATH), on the card as "
      "here: the math path is.");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {
           "_scaled_dot_product_cudnn_attention",
           "_scaled_dot_product_cudnn_attention_backward",
           "_cudnn_attention_forward",
       }) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_fused>());
  }
  m.impl("_fused_sdp_choice", SO_ADAPTER(choice));
  m.impl("scaled_dot_product_attention", SO_ADAPTER(attention));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("scaled_dot_product_attention", SO_ADAPTER(attention)); }

}  // namespace
}  // namespace step_oracle::aten

namespace at::native {
namespace {
std::int64_t oracle_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value,
                               const std::optional<Tensor>& mask, double dropout, bool is_causal,
                               std::optional<double> scale, bool enable_gqa) {
  return step_oracle::aten::choice(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}
}  // namespace
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &oracle_sdp_choice)
}  // namespace at::native
