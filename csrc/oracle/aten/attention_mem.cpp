// Memory-efficient attention as CUDA's operators call it: checks, layouts, the generator, the number of key splits.
// [src aten/src/ATen/native/transformers/cuda/attention.cu, attention_backward.cu]
#include <ATen/ExpandUtils.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "csrc/kernels/attention/dq_order.h"
#include "csrc/kernels/attention/mem_efficient.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/choices.h"
#include "csrc/oracle/aten/races.h"

namespace step_oracle::aten {
namespace {

using attention::BiasStrides;
using attention::Mask;
using attention::Strides;
using OptTensor = std::optional<at::Tensor>;
using Int = std::int64_t;

Strides strides_of(const at::Tensor& t) { return {t.stride(0), t.stride(1), t.stride(2)}; }

Mask mask_of(Int custom_mask_type) {
  switch (custom_mask_type) {
    case 0:
      return Mask::kNone;
    case 1:
      return Mask::kCausalTopLeft;
    case 2:
      return Mask::kCausalBottomRight;
    default:
      TORCH_CHECK(false, "Invalid value for `custom_mask_type`");
  }
}

bool given(const OptTensor& t) { return t.has_value() && t->defined(); }

void refuse_variants(std::string_view op, const OptTensor& cu_seqlens_q, const OptTensor& seqlen_k,
                     std::optional<Int> window_size) {
  if (given(cu_seqlens_q) || given(seqlen_k))
    refuse(op, "over sequences packed into one batch is not modelled", "Use padded tensors and a mask");
  if (window_size.value_or(0) != 0)
    refuse(op, fmt::format("with a window of {} keys is not modelled", *window_size), "Use a mask");
}

// Query, key, value as [batch, position, head, dim].
void check_inputs(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4);
  TORCH_CHECK(query.size(0) == key.size(0) && query.size(0) == value.size(0));
  TORCH_CHECK(key.size(1) == value.size(1));
  TORCH_CHECK(query.size(2) == key.size(2) && query.size(2) == value.size(2));
  TORCH_CHECK(query.size(3) == key.size(3));
  for (const at::Tensor& t : {query, key, value}) {
    TORCH_CHECK(t.scalar_type() == query.scalar_type(), "Expected query, key and value to be of one dtype");
    TORCH_CHECK(t.numel() == 0 || t.stride(-1) == 1, "Expected the last dimension to be contiguous");
  }
}

attention::MemShape shape_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             std::string_view op) {
  return {card_of(query).compute_capability(),
          dtype_of(query, op),
          query.size(0),
          query.size(2),
          query.size(1),
          key.size(1),
          query.size(3),
          value.size(3)};
}

// [batch, heads, queries, keys], the last dimension contiguous, of the query's type.
at::Tensor checked_bias(const at::Tensor& bias, const at::Tensor& query, const at::Tensor& key) {
  TORCH_CHECK(bias.scalar_type() == query.scalar_type(), "invalid dtype for bias - should match query's dtype");
  const at::Tensor b = bias.expand({query.size(0), query.size(2), query.size(1), key.size(1)});
  TORCH_CHECK(b.numel() == 0 || b.stride(3) == 1 || b.size(3) == 1, "attn_bias: the last dimension must be contiguous");
  return b;
}
BiasStrides bias_strides(const at::Tensor& b) { return {b.stride(0), b.stride(1), b.stride(2)}; }

// Tensor cores load four elements at once, and the kernels refuse what does not lie so; their pointers are compared as
// numbers of bytes [src gemm_kernel_utils.h kMinimumAlignment, kernel_forward.h and kernel_backward.h check_supported].
void check_alignment(const attention::MemShape& s, const char* name, const at::Tensor& t, at::IntArrayRef dims) {
  const Int least = s.type == DType::kF32 && s.compute_capability < 80 ? 1 : 4;
  TORCH_CHECK(reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % static_cast<std::uintptr_t>(least) == 0, name,
              " is not correctly aligned: it begins ", t.storage_offset(), " elements into its storage. Give a copy.");
  for (const Int dim : dims)
    TORCH_CHECK(t.stride(dim) % least == 0, name, " is not correctly aligned: its stride(", dim, ") is ", t.stride(dim),
                " elements, and the kernels of compute capability ", s.compute_capability / 10, ".",
                s.compute_capability % 10, " need a multiple of ", least, ". Give them a contiguous tensor.");
}
void check_alignments(const attention::MemShape& s, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& bias, bool forward) {
  if (s.batch * s.heads * s.queries * s.keys == 0) return;  // no kernel runs
  c10::SmallVector<Int, 3> dims{1}, of_bias;  // [batch, position, head, value]; [batch, head, query, key]
  if (s.heads > 1) dims.push_back(2), of_bias.push_back(1);
  if (s.batch > 1 && !forward) dims.push_back(0);
  if (s.batch > 1) of_bias.push_back(0);
  if (s.queries > 1) of_bias.push_back(2);
  check_alignment(s, "query", query, dims), check_alignment(s, "key", key, dims);
  check_alignment(s, "value", value, dims);
  if (bias.defined()) check_alignment(s, "attn_bias", bias, of_bias);
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Forward run_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptTensor& bias,
                    double dropout_p, Mask mask, bool compute_logsumexp, std::optional<double> scale,
                    std::string_view op) {
  check_inputs(query, key, value);
  attention::MemForward p;
  p.shape = shape_of(query, key, value, op);
  const attention::MemShape& s = p.shape;
  const at::TensorOptions number = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
  at::Tensor seed = at::zeros({}, number), offset = at::zeros({}, number);
  if (dropout_p != 0.0) {
    const device::Philox start =
        take_philox(std::nullopt, static_cast<std::uint64_t>(s.batch * s.heads * s.queries * s.keys));
    p.dropout = {static_cast<float>(dropout_p), start.seed, start.offset};
    seed.fill_(static_cast<Int>(start.seed)), offset.fill_(static_cast<Int>(start.offset));
  }
  const at::Tensor out = at::empty({s.batch, s.queries, s.heads, s.value_dim}, query.options());
  const Int rows = compute_logsumexp ? attention::padded_queries(s.queries) : 0;
  const at::Tensor logsumexp = at::empty({s.batch, s.heads, rows}, query.options().dtype(at::kFloat));
  p.query = query.const_data_ptr(), p.key = key.const_data_ptr(), p.value = value.const_data_ptr();
  p.query_strides = strides_of(query), p.key_strides = strides_of(key), p.value_strides = strides_of(value);
  at::Tensor b;
  if (given(bias)) {
    b = checked_bias(*bias, query, key);
    p.bias = b.const_data_ptr(), p.bias_strides = bias_strides(b);
  }
  check_alignments(s, query, key, value, b, true);
  p.mask = mask;
  p.scale = static_cast<float>(sdp::calculate_scale(query, scale).expect_float());
  p.out = out.mutable_data_ptr(), p.out_strides = strides_of(out);
  p.logsumexp = rows ? static_cast<float*>(logsumexp.mutable_data_ptr()) : nullptr;
  // One query over heads that share keys: the kernel walks heads as queries and drops the mask, having cut the keys.
  if (s.queries == 1 && key.stride(2) == 0 && value.stride(2) == 0 && !compute_logsumexp && mask != Mask::kNone)
    refuse(op, "of one query with a causal mask over heads that share their keys is not modelled",
           "Leave is_causal out: one query sees what it is given");
  attention::mem_forward(p);
  return {out, logsumexp, seed, offset};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptTensor& bias,
    const OptTensor& cu_seqlens_q, const OptTensor&, std::optional<c10::SymInt>, std::optional<c10::SymInt>,
    double dropout_p, Int custom_mask_type, bool compute_logsumexp, std::optional<double> scale,
    const OptTensor& seqlen_k, std::optional<Int> window_size) {
  constexpr std::string_view op = "_efficient_attention_forward";
  refuse_variants(op, cu_seqlens_q, seqlen_k, window_size);
  auto [out, logsumexp, seed, offset] =
      run_forward(query, key, value, bias, dropout_p, mask_of(custom_mask_type), compute_logsumexp, scale, op);
  return {out, logsumexp, seed, offset, c10::SymInt(query.size(1)), c10::SymInt(key.size(1))};
}

Forward sdpa_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptTensor& bias,
                     bool compute_logsumexp, double dropout_p, bool is_causal, std::optional<double> scale) {
  auto [out, logsumexp, seed, offset] =
      run_forward(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias, dropout_p,
                  is_causal ? Mask::kCausalTopLeft : Mask::kNone, compute_logsumexp, scale,
                  "_scaled_dot_product_efficient_attention");
  return {out.transpose(1, 2), logsumexp, seed, offset};
}

// --- backward ---

Int tile_count(Int n, Int size) { return (n + size - 1) / size; }

// [src attention_backward.cu "Keys splitting heuristic"]
Int splits_of(const attention::MemShape& s, bool dropout, std::optional<Int> wanted) {
  const attention::MemTiles tiles = attention::mem_backward_tiles(s, dropout);
  Int splits = tile_count(s.keys, tiles.keys);
  if (wanted) {
    splits = std::min(splits, *wanted);
  } else {
    if (s.batch * s.heads >= 256 && s.keys <= 2 * tiles.keys) splits = 1;
    if (attention::mem_keeps_grads_in_workspace(s, dropout)) splits = std::min(splits, 200 / (s.batch * s.heads));
  }
  if (numeric_switches().deterministic) {
    TORCH_CHECK(wanted.value_or(1) <= 1,
                "Using `num_splits_key > 1` makes the algorithm non-deterministic, and pytorch's deterministic mode is "
                "enabled");
    return 1;
  }
  return std::max<Int>(splits, 1);
}

at::Tensor empty_grad(const at::Tensor& like) { return at::empty(like.sizes(), like.options()); }

at::Tensor empty_bias_grad(const at::Tensor& bias) {
  constexpr Int kAlignment = 16;
  std::vector<Int> sizes = bias.sizes().vec();
  const Int last = sizes.back();
  sizes.back() = tile_count(last, kAlignment) * kAlignment;
  return at::empty(sizes, bias.options()).slice(-1, 0, last);
}

constexpr std::string_view kDqOrder = "dq_order", kBackward = "_efficient_attention_backward";

// The orders of arrival, tile by tile: (batch, head, query tile).
OpenChoice open_order(const attention::MemBackward& p, std::string_view op, Int call) {
  const auto orders = std::make_shared<const attention::DqOrders>(attention::dq_orders(p));
  const std::size_t query_tiles = orders->rows.size();
  const Int heads = p.shape.heads, queries = p.shape.queries;
  const Int tile = attention::mem_backward_tiles(p.shape, p.dropout.p > 0.0f).queries;
  const auto row = [orders, query_tiles](std::size_t part, int variant) -> const attention::DqOrder& {
    return orders->rows[part % query_tiles][static_cast<std::size_t>(variant)];
  };
  attention::MemBackward geometry;  // the call without its tensors
  geometry.shape = p.shape, geometry.mask = p.mask, geometry.dropout = p.dropout, geometry.key_splits = p.key_splits;
  OpenChoice open;
  open.choice = {std::string(op), std::string(kDqOrder), call, ""};
  open.race = attention::mem_is_race(p);
  open.whole = orders->whole;
  open.all = orders->all;
  for (Int head = 0; head < p.shape.batch * heads; ++head)
    for (const auto& rows : orders->rows) open.variants.push_back(static_cast<int>(rows.size()));
  open.value = [geometry, row](const std::vector<int>& variants) {
    std::vector<const attention::DqOrder*> rows;
    for (std::size_t part = 0; part < variants.size(); ++part) rows.push_back(&row(part, variants[part]));
    return attention::dq_order_text(geometry, attention::dq_order_from(geometry, rows));
  };
  open.variant = [row](std::size_t part, int variant) { return attention::dq_row_text(row(part, variant)); };
  open.part = [heads, query_tiles](std::size_t part) {
    const std::size_t head = part / query_tiles;
    return fmt::format("batch {} head {} query tile {}", head / static_cast<std::size_t>(heads),
                       head % static_cast<std::size_t>(heads), part % query_tiles);
  };
  const Int head_dim = op == kBackward ? 1 : 0;  // of a batch's dQ: behind the positions, or before them
  open.elements = [=](const at::Tensor& dq, std::size_t part) {
    const auto head = static_cast<Int>(part / query_tiles), first = static_cast<Int>(part % query_tiles) * tile;
    return dq.select(0, head / heads).select(head_dim, head % heads).narrow(0, first, std::min(tile, queries - first));
  };
  return open;
}

// The order that was chosen; empty, the one of blocks in step: assumed for two key tiles, a stand-in for a race.
attention::DqOrder order_of_arrival(const attention::MemBackward& p, std::string_view op) {
  const Asked asked = ask(op, kDqOrder);
  if (asked.value) return attention::dq_order_of(p, *asked.value);
  if (attention::mem_is_race(p))
    on_race(op,
            fmt::format("adds the parts of {} thread blocks to a query's gradient in the order of their arrival, which "
                        "is not defined for three and more key tiles",
                        p.key_splits),
            "Call torch.use_deterministic_algorithms(True), on the card as here: one block then takes all keys; or say "
            "which order it was (step_oracle.choices)",
            std::vector<std::size_t>{0});
  leave_open([&] { return open_order(p, op, asked.call); });
  return {};
}

Forward run_backward(const at::Tensor& grad_out_, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const OptTensor& bias, const at::Tensor& out, const at::Tensor& logsumexp,
                     double dropout_p, const at::Tensor& seed, const at::Tensor& offset, Mask mask,
                     bool bias_requires_grad, std::optional<double> scale, std::optional<Int> num_splits,
                     bool shared_storage, std::string_view op) {
  check_inputs(query, key, value);
  const at::Tensor grad_out = grad_out_.contiguous();
  attention::MemBackward p;
  p.shape = shape_of(query, key, value, op);
  const attention::MemShape& s = p.shape;
  at::Tensor grad_query, grad_key, grad_value, grad_bias, b;
  if (shared_storage) {
    TORCH_CHECK(s.queries == s.keys && s.head_dim == s.value_dim,
                "`shared_storage_dqdkdv` is only supported when Q/K/V have the same sequence length and embed dim");
    const at::Tensor chunk = at::empty({s.batch, s.queries, 3, s.heads, s.head_dim}, query.options());
    grad_query = chunk.select(2, 0), grad_key = chunk.select(2, 1), grad_value = chunk.select(2, 2);
  } else {
    grad_query = empty_grad(query), grad_key = empty_grad(key), grad_value = empty_grad(value);
  }
  if (given(bias)) {
    b = checked_bias(*bias, query, key);
    p.bias = b.const_data_ptr(), p.bias_strides = bias_strides(b);
    if (bias_requires_grad) {
      grad_bias = empty_bias_grad(b);
      p.grad_bias = grad_bias.mutable_data_ptr(), p.grad_bias_strides = bias_strides(grad_bias);
    }
  }
  check_alignments(s, query, key, value, b, false);
  if (dropout_p != 0.0)
    p.dropout = {static_cast<float>(dropout_p), static_cast<std::uint64_t>(seed.item<Int>()),
                 static_cast<std::uint64_t>(offset.item<Int>())};
  // float32: the kernel is given delta, made by operators of its own.
  const at::Tensor delta = s.type == DType::kF32
                               ? at::sum(at::mul(grad_out, out), at::IntArrayRef{-1}).transpose(-2, -1).contiguous()
                               : at::empty({s.batch, s.heads, s.queries}, query.options().dtype(at::kFloat));
  p.query = query.const_data_ptr(), p.key = key.const_data_ptr(), p.value = value.const_data_ptr();
  p.out = out.const_data_ptr(), p.grad_out = grad_out.const_data_ptr();
  p.query_strides = strides_of(query), p.key_strides = strides_of(key), p.value_strides = strides_of(value);
  p.out_strides = strides_of(out), p.grad_out_strides = strides_of(grad_out);
  p.mask = mask;
  p.scale = static_cast<float>(sdp::calculate_scale(query, scale).expect_float());
  TORCH_CHECK(logsumexp.dim() == 3 && logsumexp.size(2) >= s.queries, "logsumexp has ", logsumexp.sizes(),
              ": the forward must be asked for it");
  const at::Tensor lse = logsumexp.contiguous();
  p.logsumexp = static_cast<const float*>(lse.const_data_ptr()), p.logsumexp_pitch = lse.size(2);
  p.delta = static_cast<float*>(delta.mutable_data_ptr());
  p.grad_query = grad_query.mutable_data_ptr(), p.grad_key = grad_key.mutable_data_ptr();
  p.grad_value = grad_value.mutable_data_ptr();
  p.grad_query_strides = strides_of(grad_query), p.grad_key_strides = strides_of(grad_key);
  p.grad_value_strides = strides_of(grad_value);
  p.key_splits = splits_of(s, dropout_p != 0.0, num_splits);
  if (p.key_splits > 1 && s.batch * s.heads * s.queries * s.keys > 0) p.dq_order = order_of_arrival(p, op);
  attention::mem_backward(p);
  return {grad_query, grad_key, grad_value, grad_bias};
}

Forward backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const OptTensor& bias, const at::Tensor& out, const OptTensor& cu_seqlens_q, const OptTensor&, Int,
                 Int, const at::Tensor& logsumexp, double dropout_p, const at::Tensor& seed, const at::Tensor& offset,
                 Int custom_mask_type, bool bias_requires_grad, std::optional<double> scale,
                 std::optional<Int> num_splits, std::optional<Int> window_size, bool shared_storage) {
  if (!grad_out.defined()) return {};
  refuse_variants(kBackward, cu_seqlens_q, std::nullopt, window_size);
  return run_backward(grad_out, query, key, value, bias, out, logsumexp, dropout_p, seed, offset,
                      mask_of(custom_mask_type), bias_requires_grad, scale, num_splits, shared_storage, kBackward);
}

Forward sdpa_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& bias, const at::Tensor& out,
                      const at::Tensor& logsumexp, const at::Tensor& seed, const at::Tensor& offset, double dropout_p,
                      std::array<bool, 4> wanted, bool is_causal, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  auto [grad_query, grad_key, grad_value, grad_bias] =
      run_backward(grad_out.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2),
                   bias.defined() ? OptTensor(bias) : std::nullopt, out.transpose(1, 2), logsumexp, dropout_p, seed,
                   offset, is_causal ? Mask::kCausalTopLeft : Mask::kNone, wanted[3], scale, std::nullopt, false,
                   "_scaled_dot_product_efficient_attention_backward");
  return {grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2), grad_bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER_ANY_DEVICE(fn));
#include "csrc/oracle/ops/attention_mem.inc"
#undef SO_OP
}

}  // namespace
}  // namespace step_oracle::aten
