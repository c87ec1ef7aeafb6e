// Matrix products as CUDA's Blas.cpp calls them: which product, which epilogue, where nothing is computed.
//
// The stock CUDA path is what a virtual card follows: cuBLAS and cuBLASLt, no TunableOp, and none of torch._native's
// Triton overrides (on a card: TORCH_DISABLE_NATIVE_JIT=1). One of those, for bmm with k == 1, stores a * b without the
// sum's +0, so that a product of -0 keeps its sign there and loses it here.
#include "csrc/kernels/gemm/gemm.h"

#include <ATen/ops/addbmm_native.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_meta.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "csrc/kernels/gemm/tensor_core.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/structured.h"
#include "csrc/oracle/plan/active.h"

namespace step_oracle::aten {
namespace {

// Whether the class of these factors is known on the card; else NotImplementedError.
void require_class(const at::Tensor& a, const at::Tensor& b, std::string_view op) {
  const at::ScalarType type = a.scalar_type();
  if (b.scalar_type() != type) require_dtype(b, type, op, "mat2");
  const Card& card = card_of(a);
  const NumericSwitches switches = numeric_switches();
  switch (type) {
    case at::kFloat: {
      constexpr int kFirstWithTf32 = 80;  // [spec CUDA C++ Programming Guide, "Compute Capability 8.x"]
      if (card.compute_capability() >= kFirstWithTf32 && switches.allow_tf32)
        refuse(op, fmt::format("would use TF32 on {}, and the TF32 class is not modelled yet", card.name),
               "Set torch.backends.cuda.matmul.allow_tf32 = False");
      return;
    }
    case at::kHalf:
      if (switches.allow_fp16_accumulation)
        refuse(op, "would accumulate in float16, and that adder is not modelled yet",
               "Set torch.backends.cuda.matmul.allow_fp16_accumulation = False");
      [[fallthrough]];
    case at::kBFloat16:
      gemm::adder_class(card.compute_capability(), dtype_of(type, op));
      return;
    default:
      unsupported_dtype(op, type);
  }
}

// The last two dimensions of t as a matrix; a third is the batch.
gemm::Strides strides_of(const at::Tensor& t) { return {t.stride(-2), t.stride(-1), t.dim() == 3 ? t.stride(0) : 0}; }

// What is added to the product. C may be the result; it is not read where beta is 0.
struct Addend {
  plan::EpilogueKind kind = plan::EpilogueKind::kNone;
  float alpha = 1.0f, beta = 0.0f;
  at::Tensor c;  // kBeta: as large as the result; kBias: one value a column
};

// The plan that the card's table has for this product; the class default, one pass, where it has none.
gemm::Plan plan_of(plan::Op op, const at::Tensor& a, const at::Tensor& b, plan::EpilogueKind epilogue) {
  const NumericSwitches switches = numeric_switches();
  plan::Key key;
  key.op = op, key.dtype = dtype_of(a, "mm"), key.epilogue = epilogue;
  key.a_transposed = a.stride(-1) != 1 && a.size(-1) > 1, key.b_transposed = b.stride(-1) != 1 && b.size(-1) > 1;
  if (key.dtype == DType::kBF16) key.reduced_precision = switches.allow_bf16_reduced_precision;
  if (key.dtype == DType::kF16) key.reduced_precision = switches.allow_fp16_reduced_precision;
  key.m = a.size(-2), key.n = b.size(-1), key.k = a.size(-1), key.batch = a.dim() == 3 ? a.size(0) : 1;
  return plan::choose(a.device().index(), card_of(a).name, key);
}

void multiply_f32(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend& add,
                  const gemm::Plan& plan) {
  const auto matrix = [](const at::Tensor& t) {
    const gemm::Strides s = strides_of(t);
    return gemm::Matrix{t.const_data_ptr<float>(), s.row, s.col, s.batch};
  };
  const gemm::Strides d = strides_of(out);
  gemm::Params p;
  p.m = a.size(-2), p.n = b.size(-1), p.k = a.size(-1), p.batch = a.dim() == 3 ? a.size(0) : 1;
  p.a = matrix(a), p.b = matrix(b), p.d = {out.mutable_data_ptr<float>(), d.row, d.col, d.batch};
  p.epilogue.alpha = add.alpha, p.epilogue.beta = add.beta;
  if (add.kind == plan::EpilogueKind::kBeta && add.beta != 0.0f) p.epilogue.c = matrix(add.c);
  if (add.kind == plan::EpilogueKind::kBias) p.epilogue.bias = add.c.const_data_ptr<float>();
  gemm::run(p, plan);
}

void multiply_16bit(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend& add,
                    const gemm::Plan& plan) {
  gemm::TensorCoreParams p;
  p.m = a.size(-2), p.n = b.size(-1), p.k = a.size(-1), p.batch = a.dim() == 3 ? a.size(0) : 1;
  p.factors = p.results = dtype_of(a, "mm");
  p.adder = gemm::adder_class(card_of(a).compute_capability(), p.factors);
  p.a = static_cast<const std::uint16_t*>(a.const_data_ptr()), p.a_strides = strides_of(a);
  p.b = static_cast<const std::uint16_t*>(b.const_data_ptr()), p.b_strides = strides_of(b);
  p.d = out.mutable_data_ptr(), p.d_strides = strides_of(out);
  p.alpha = add.alpha, p.beta = add.beta;
  if (add.kind == plan::EpilogueKind::kBeta && add.beta != 0.0f)
    p.c = add.c.const_data_ptr(), p.c_strides = strides_of(add.c);
  if (add.kind == plan::EpilogueKind::kBias) p.bias = add.c.const_data_ptr();
  gemm::run(p, plan);
}

void multiply(plan::Op op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend& add = {}) {
  const gemm::Plan plan = plan_of(op, a, b, add.kind);
  a.scalar_type() == at::kFloat ? multiply_f32(a, b, out, add, plan) : multiply_16bit(a, b, out, add, plan);
}

// beta * self where k == 0: CUDA asks no BLAS there, and mul keeps the sign of a zero.
void scale_only(const at::Tensor& self, const at::Scalar& beta, const at::Tensor& out) {
  at::Tensor result = out;
  if (beta.toComplexDouble() == 0.0) {
    result.zero_();
  } else {
    at::mul_out(result, self.expand(out.sizes()), at::scalar_tensor(beta, self.scalar_type()));
  }
}

// Where addmm goes to cuBLASLt with the bias in the epilogue [src Blas.cpp, isInputCompliesAddmmCudaLt]; elsewhere self
// is copied into the result and cuBLAS is called with beta.
bool takes_bias_epilogue(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                         const at::Tensor& out) {
  return beta.toComplexDouble() == 1.0 && out.dim() == 2 && out.is_contiguous() && !out.is_same(self) &&
         self.is_contiguous() && (self.dim() == 1 || self.squeeze().dim() == 1) && self.size(-1) == b.size(1) &&
         a.size(0) > 1 && a.size(1) > 1 && b.size(1) > 1;
}

// out = alpha * a b + beta * self.
void accumulate(plan::Op op, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                const at::Scalar& alpha, const at::Tensor& out) {
  if (out.numel() == 0) return;
  if (a.size(-1) == 0) return scale_only(self, beta, out);
  using enum plan::EpilogueKind;
  if (op == plan::Op::kAddmm && takes_bias_epilogue(self, a, b, beta, out))
    return multiply(op, a, b, out, {kBias, alpha.to<float>(), 0.0f, self});
  const float b_scale = beta.to<float>();
  multiply(op, a, b, out, {b_scale != 0.0f ? kBeta : kNone, alpha.to<float>(), b_scale, self.expand(out.sizes())});
}

at::Tensor& mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  require_class(self, mat2, "mm");
  Structured<at::meta::structured_mm> op(out);
  op.meta(self, mat2);
  multiply(plan::Op::kMm, self, mat2, op.output(0));
  op.finish();
  return out;
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  require_class(mat1, mat2, "addmm");
  require_dtype(self, mat1.scalar_type(), "addmm", "self");
  Structured<at::meta::structured_addmm> op(out);
  op.meta(self, mat1, mat2, beta, alpha);
  accumulate(plan::Op::kAddmm, self, mat1, mat2, beta, alpha, op.output(0));
  op.finish();
  return out;
}

at::Tensor& addmm_activation_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&,
                                 const at::Scalar&, bool, at::Tensor&) {
  refuse("_addmm_activation", "fuses an activation into the matrix product, and cuBLASLt's epilogue is not modelled",
         "Call addmm, then relu or gelu (nn.TransformerEncoder: torch.backends.mha.set_fastpath_enabled(False))");
}

at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  require_class(self, mat2, "bmm");
  Structured<at::meta::structured_bmm> op(out);
  op.meta(self, mat2);
  multiply(plan::Op::kBmm, self, mat2, op.output(0));
  op.finish();
  return out;
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  require_class(batch1, batch2, "baddbmm");
  require_dtype(self, batch1.scalar_type(), "baddbmm", "self");
  Structured<at::meta::structured_baddbmm> op(out);
  op.meta(self, batch1, batch2, beta, alpha);  // copies self into the result where beta is not 0
  accumulate(plan::Op::kBaddbmm, op.output(0), batch1, batch2, beta, alpha, op.output(0));
  op.finish();
  return out;
}

// CUDA registers these three, and they are loops over addmm_ there: the same host code.
at::Tensor& addbmm_out(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                       const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return at::native::addbmm_out(self, batch1, batch2, beta, alpha, out);
}
at::Tensor& addbmm_inplace(at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2, const at::Scalar& beta,
                           const at::Scalar& alpha) {
  return at::native::addbmm_(self, batch1, batch2, beta, alpha);
}
at::Tensor addbmm(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2, const at::Scalar& beta,
                  const at::Scalar& alpha) {
  return at::native::addbmm(self, batch1, batch2, beta, alpha);
}

at::Tensor& addmv_out(const at::Tensor& self, const at::Tensor& mat, const at::Tensor& vec, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  // float32: cuBLAS gemv, which has no TF32 form. 16-bit: PyTorch asks gemm with one column.
  if (mat.scalar_type() != at::kFloat) require_class(mat, vec, "addmv");
  require_dtype(vec, mat.scalar_type(), "addmv", "vec");
  require_dtype(self, mat.scalar_type(), "addmv", "self");
  Structured<at::meta::structured_addmv> op(out);
  op.meta(self, mat, vec, beta, alpha);
  const at::Tensor& result = op.output(0);
  if (mat.numel() == 0) {
    scale_only(self, beta, result);
  } else {
    accumulate(plan::Op::kAddmv, self.expand(result.sizes()).unsqueeze(1), mat, vec.unsqueeze(1), beta, alpha,
               result.unsqueeze(1));
  }
  op.finish();
  return out;
}

at::Tensor dot_vectors(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(), "] and src [",
              other.numel(), "] to have the same number of elements, but got ", self.numel(), " and ", other.numel(),
              " elements respectively");
  require_dtype(self, at::kFloat, "dot", "self");
  const at::Tensor result = at::empty({}, self.options());
  multiply_f32(self.unsqueeze(0), other.unsqueeze(1), result.view({1, 1}), {}, {});
  return result;
}

at::Tensor vdot_vectors(const at::Tensor& self, const at::Tensor& other) { return dot_vectors(self, other); }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/gemm.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
