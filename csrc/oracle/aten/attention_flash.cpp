// FlashAttention-2: torch's own operators over it, as CUDA has them.
// [src aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu, flash_attn/flash_api.cpp]
#include <ATen/Context.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "csrc/kernels/attention/flash.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/choices.h"
#include "csrc/oracle/aten/races.h"

namespace step_oracle::aten {
namespace {

using at::Tensor;
using attention::FlashShape;
using OptTensor = std::optional<Tensor>;
constexpr std::string_view kForward = "_flash_attention_forward", kBackward = "_flash_attention_backward";

attention::Strides strides_of(const Tensor& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }

const std::uint16_t* halves(const Tensor& t) { return static_cast<const std::uint16_t*>(t.const_data_ptr()); }
std::uint16_t* mutable_halves(const Tensor& t) { return static_cast<std::uint16_t*>(t.mutable_data_ptr()); }

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "FlashAttention takes tensors of 4 dimensions");
  TORCH_CHECK(q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16,
              "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(k.scalar_type() == q.scalar_type(), "query and key must have the same dtype");
  TORCH_CHECK(v.scalar_type() == q.scalar_type(), "query and value must have the same dtype");
  TORCH_CHECK(q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1,
              "Input tensor must have contiguous last dimension");
  TORCH_CHECK(q.size(3) % 8 == 0, "head_size must be a multiple of 8, this is ensured by padding!");
  TORCH_CHECK(q.size(3) <= 256, "FlashAttention only supports head dimension at most 256");
  TORCH_CHECK(k.sizes() == at::IntArrayRef({q.size(0), k.size(1), k.size(2), q.size(3)}) && v.sizes() == k.sizes(),
              "FlashAttention: key ", k.sizes(), " and value ", v.sizes(), " do not fit query ", q.sizes());
  TORCH_CHECK(q.size(2) == 0 || (k.size(2) != 0 && q.size(2) % k.size(2) == 0),
              "Number of heads in key/value must divide number of heads in query");
}

FlashShape shape_of(const Tensor& q, const Tensor& k, bool causal, std::string_view op) {
  FlashShape s;
  s.compute_capability = card_of(q).compute_capability();
  s.type = dtype_of(q, op);
  s.batch = q.size(0), s.queries = q.size(1), s.heads = q.size(2), s.head_dim = q.size(3);
  s.keys = k.size(1), s.key_heads = k.size(2), s.causal = causal;
  return s;
}

void refuse_windows(std::optional<std::int64_t> left, std::optional<std::int64_t> right, std::string_view op) {
  if (left.value_or(-1) >= 0 || right.value_or(-1) >= 0)
    refuse(op, "with a sliding window is not modelled", "Give no window_size_left and window_size_right");
}

// The philox state of a launch with dropout is [seed, offset]; without dropout nobody writes it.
Tensor random_state(const Tensor& q) { return at::empty({2}, q.options().dtype(at::kUInt64)); }

constexpr std::string_view kLogsumexp = "logsumexp";

// The composition that was chosen; without a choice the compiled kernels' one.
attention::FlashLogsumexp logsumexp_form() {
  static constexpr auto& kForms = attention::kFlashLogsumexps;
  const Asked asked = ask(kForward, kLogsumexp);
  if (asked.value) {
    const auto* const found = std::find(std::begin(kForms), std::end(kForms), *asked.value);
    TORCH_CHECK_VALUE(found != std::end(kForms), "logsumexp: '", *asked.value, "' is none of ",
                      fmt::format("'{}'", fmt::join(kForms, "', '")));
    return static_cast<attention::FlashLogsumexp>(found - std::begin(kForms));
  }
  leave_open([&] {
    OpenChoice open;
    open.choice = {std::string(kForward), std::string(kLogsumexp), asked.call, ""};
    open.result = 1;
    open.whole.assign(std::begin(kForms), std::end(kForms));
    open.variants = {static_cast<int>(open.whole.size())};
    open.value = [](const std::vector<int>& variants) { return std::string(kForms[variants[0]]); };
    open.variant = [](std::size_t, int variant) { return std::string(kForms[variant]); };
    open.part = [](std::size_t) { return std::string("all rows"); };
    open.elements = [](const Tensor& logsumexp, std::size_t) { return logsumexp; };
    return open;
  });
  return attention::FlashLogsumexp::kFused;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptTensor& cum_seq_q, const OptTensor& cum_seq_k,
    std::int64_t, std::int64_t, double dropout_p, bool is_causal, bool return_debug_mask, std::optional<double> scale,
    std::optional<std::int64_t> window_left, std::optional<std::int64_t> window_right, const OptTensor& seqused_k,
    const OptTensor& alibi_slopes, const OptTensor& block_table, std::optional<std::int64_t> num_splits) {
  const auto given = [](const OptTensor& t) { return t && t->defined(); };
  if (given(cum_seq_q) || given(cum_seq_k) || given(seqused_k) || given(block_table))
    refuse(kForward, "over sequences of several lengths is not modelled", "Pad the sequences to one length");
  if (given(alibi_slopes)) refuse(kForward, "with ALiBi is not modelled", "Give no alibi_slopes");
  if (num_splits) refuse(kForward, "with a given number of splits is not modelled", "Give no num_splits");
  if (return_debug_mask) refuse(kForward, "does not give the debug mask", "Set return_debug_mask to False");
  refuse_windows(window_left, window_right, kForward);
  check_inputs(query, key, value);
  TORCH_CHECK(dropout_p >= 0.0 && dropout_p < 1.0, "FlashAttention: dropout p is ", dropout_p,
              "; give 0 or more and less than 1");

  // One query of several heads a key head: the heads stand as queries.
  const std::int64_t batch = query.size(0), heads = query.size(2), key_heads = key.size(2), dim = query.size(3);
  const bool swapped = batch > 0 && query.size(1) == 1 && heads > key_heads && dropout_p == 0.0;
  const Tensor q = swapped ? query.reshape({batch, key_heads, heads / key_heads, dim}).transpose(1, 2) : query;
  // With one query the causal mask leaves all keys.
  const FlashShape s = shape_of(q, key, is_causal && query.size(1) != 1, kForward);
  Tensor out = at::empty_like(q);
  Tensor logsumexp = at::empty({s.batch, s.heads, s.queries}, q.options().dtype(at::kFloat));
  const Tensor state = random_state(q), unused = at::empty({}, q.options().dtype(at::kUInt64));

  attention::FlashForward p;
  p.shape = s;
  p.query = halves(q), p.key = halves(key), p.value = halves(value);
  p.query_strides = strides_of(q), p.key_strides = strides_of(key), p.value_strides = strides_of(value);
  p.scale = static_cast<float>(sdp::calculate_scale(query, scale).expect_float());
  p.dropout.p = static_cast<float>(dropout_p);
  p.out = mutable_halves(out), p.out_strides = strides_of(out);
  p.logsumexp = logsumexp.mutable_data_ptr<float>();
  if (dropout_p > 0.0 && s.batch > 0) {
    const device::Philox start = take_philox(std::nullopt, static_cast<std::uint64_t>(s.batch * s.heads * 32));
    p.dropout.seed = start.seed, p.dropout.offset = start.offset;
    std::uint64_t* const words = state.mutable_data_ptr<std::uint64_t>();
    words[0] = start.seed, words[1] = start.offset;
  } else {
    p.key_splits = attention::flash_key_splits(s, card_of(q).sms);
  }
  p.logsumexp_form = logsumexp_form();
  attention::flash_forward(p);
  if (swapped) {
    out = out.transpose(1, 2).reshape({batch, 1, heads, dim});
    logsumexp = logsumexp.reshape({batch, heads, 1});
  }
  return {out, logsumexp, state, unused, at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> scaled_dot_product_flash(
    const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
    bool return_debug_mask, std::optional<double> scale) {
  const std::int64_t queries = query.size(2), keys = key.size(2);
  TORCH_CHECK(keys == value.size(2), "Key and Value must have the same sequence length");
  auto [out, logsumexp, seed, offset, mask] = at::_flash_attention_forward(
      query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), std::nullopt, std::nullopt, queries, keys,
      dropout_p, is_causal, return_debug_mask, scale, std::nullopt, std::nullopt);
  return {out.transpose(1, 2), logsumexp, Tensor(), Tensor(), queries, keys, seed, offset, mask};
}

// The default algorithm adds to dQ in the order in which the card's blocks finish.
void check_race(const FlashShape& s, bool drops, bool deterministic) {
  if (deterministic || !attention::flash_races(s, drops)) return;
  const std::int64_t keys = attention::flash_backward_tiles(s, drops).keys;
  on_race(
      kBackward,
      fmt::format("over {} keys adds to the gradient of the query from {} key tiles by atomic additions, whose order "
                  "is not defined",
                  s.keys, (s.keys + keys - 1) / keys),
      "Call torch.use_deterministic_algorithms(True)", std::vector<std::size_t>{0});
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_out_, const Tensor& query, const Tensor& key,
                                                  const Tensor& value, const Tensor& out_, const Tensor& logsumexp,
                                                  const Tensor& cum_seq_q, const Tensor& cum_seq_k, std::int64_t,
                                                  std::int64_t, double dropout_p, bool is_causal, const Tensor& state,
                                                  const Tensor&, std::optional<double> scale,
                                                  std::optional<std::int64_t> window_left,
                                                  std::optional<std::int64_t> window_right) {
  if (cum_seq_q.defined() || cum_seq_k.defined())
    refuse(kBackward, "over sequences of several lengths is not modelled", "Pad the sequences to one length");
  refuse_windows(window_left, window_right, kBackward);
  const Tensor grad_out = grad_out_.contiguous(), out = out_.contiguous();
  check_inputs(query, key, value);
  TORCH_CHECK(out.scalar_type() == query.scalar_type(), "query and out must have the same dtype");
  TORCH_CHECK(grad_out.scalar_type() == query.scalar_type(), "query and dout must have the same dtype");
  TORCH_CHECK(grad_out.sizes() == query.sizes() && out.sizes() == query.sizes(), "FlashAttention: the gradient ",
              grad_out.sizes(), " and the output ", out.sizes(), " do not fit query ", query.sizes());
  const FlashShape s = shape_of(query, key, is_causal, kBackward);
  const at::Context& context = at::globalContext();
  const bool deterministic = context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly();
  Tensor dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  if (s.batch == 0) return {dq, dk, dv};
  const bool drops = dropout_p > 0.0, grouped = s.heads != s.key_heads;
  check_race(s, drops, deterministic);
  const auto by_head = [&](const Tensor& t) {
    return grouped ? at::empty({s.batch, s.keys, s.heads, s.head_dim}, query.options()) : t;
  };
  const Tensor dk_by_head = by_head(dk), dv_by_head = by_head(dv);

  attention::FlashBackward p;
  p.shape = s;
  p.query = halves(query), p.key = halves(key), p.value = halves(value);
  p.out = halves(out), p.grad_out = halves(grad_out);
  p.query_strides = strides_of(query), p.key_strides = strides_of(key), p.value_strides = strides_of(value);
  p.out_strides = strides_of(out), p.grad_out_strides = strides_of(grad_out);
  p.scale = static_cast<float>(sdp::calculate_scale(query, scale).expect_float());
  p.dropout.p = static_cast<float>(dropout_p);
  if (drops) {
    TORCH_CHECK(state.numel() == 2 && state.scalar_type() == at::kUInt64,
                "FlashAttention: the generator's state of the forward, [seed, offset], is missing");
    const std::uint64_t* const words = state.const_data_ptr<std::uint64_t>();
    p.dropout.seed = words[0], p.dropout.offset = words[1];
  }
  const Tensor lse = logsumexp.contiguous();
  p.logsumexp = lse.const_data_ptr<float>();
  p.dq_buffers = deterministic ? attention::flash_dq_buffers(s, card_of(query).sms) : 1;
  p.grad_query = mutable_halves(dq), p.grad_query_strides = strides_of(dq);
  p.grad_key = mutable_halves(dk_by_head), p.grad_key_strides = strides_of(dk_by_head);
  p.grad_value = mutable_halves(dv_by_head), p.grad_value_strides = strides_of(dv_by_head);
  attention::flash_backward(p);
  if (grouped) {
    const auto by_group = [&](const Tensor& t) {
      return t.reshape({s.batch, s.keys, s.key_heads, s.heads / s.key_heads, s.head_dim});
    };
    at::sum_out(dk, by_group(dk_by_head), {3});
    at::sum_out(dv, by_group(dv_by_head), {3});
  }
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor, Tensor> scaled_dot_product_flash_backward(
    const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& out,
    const Tensor& logsumexp, const Tensor& cum_seq_q, const Tensor& cum_seq_k, std::int64_t max_q, std::int64_t max_k,
    double dropout_p, bool is_causal, const Tensor& seed, const Tensor& offset, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  auto [dq, dk, dv] = at::_flash_attention_backward(
      grad_out.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), out.transpose(1, 2),
      logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, seed, offset, scale);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/attention_flash.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
