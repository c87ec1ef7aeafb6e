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
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "csrc/kernels/gemm/plain.h"
#include "csrc/kernels/gemm/tensor_core.h"
#include "csrc/oracle/aten/adapter.h"
#include "csrc/oracle/aten/structured.h"
#include "csrc/oracle/plan/active.h"

namespace step_oracle::aten {
namespace {

// How the products of an op are added; kTensorCore: as gemm::AdderClass of the card says.
enum class Class { kFp32Chain, kFp64Chain, kTensorCore };

// The class of these factors on the card; NotImplementedError where it is not known. TF32 needs a card that has it and
// torch's switch (allow_tf32, fp32_precision, set_float32_matmul_precision); without either, float32 is the FMA chain.
Class class_of(const at::Tensor& a, const at::Tensor& b, std::string_view op) {
  const at::ScalarType type = a.scalar_type();
  if (b.scalar_type() != type) require_dtype(b, type, op, "mat2");
  const int capability = card_of(a).compute_capability();
  const NumericSwitches switches = numeric_switches();
  switch (type) {
    case at::kFloat: {
      constexpr int kFirstWithTf32 = 80;  // [spec CUDA C++ Programming Guide, "Compute Capability 8.x"]
      if (capability < kFirstWithTf32 || !switches.allow_tf32) return Class::kFp32Chain;
      gemm::adder_class(capability, DType::kF32);
      return Class::kTensorCore;
    }
    case at::kDouble:
      return Class::kFp64Chain;
    case at::kHalf:
      if (switches.allow_fp16_accumulation)
        refuse(op, "would accumulate in float16, and which products do on a card is not known",
               "Set torch.backends.cuda.matmul.allow_fp16_accumulation = False");
      [[fallthrough]];
    case at::kBFloat16:
      gemm::adder_class(capability, dtype_of(type, op));
      return Class::kTensorCore;
    default:
      unsupported_dtype(op, type);
  }
}

// The last two dimensions of t as a matrix; a third is the batch.
gemm::Strides strides_of(const at::Tensor& t) { return {t.stride(-2), t.stride(-1), t.dim() == 3 ? t.stride(0) : 0}; }

// What is added to the product. C may be the result; it is not read where beta is 0.
struct Addend {
  plan::EpilogueKind kind = plan::EpilogueKind::kNone;
  double alpha = 1.0, beta = 0.0;
  at::Tensor c;  // kBeta: as large as the result; kBias: one value a column
};

// The plan that the card's table has for this product; the class default, one pass, where it has none.
gemm::Plan plan_of(plan::Op op, const at::Tensor& a, const at::Tensor& b, plan::EpilogueKind epilogue, Class how) {
  const NumericSwitches switches = numeric_switches();
  plan::Key key;
  key.op = op, key.dtype = dtype_of(a, "mm"), key.epilogue = epilogue;
  key.tf32 = key.dtype == DType::kF32 && how == Class::kTensorCore;
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
  p.epilogue.alpha = static_cast<float>(add.alpha), p.epilogue.beta = static_cast<float>(add.beta);
  if (add.kind == plan::EpilogueKind::kBeta && p.epilogue.beta != 0.0f) p.epilogue.c = matrix(add.c);
  if (add.kind == plan::EpilogueKind::kBias) p.epilogue.bias = add.c.const_data_ptr<float>();
  gemm::run(p, plan);
}

void multiply_tensor_core(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend& add,
                          const gemm::Plan& plan) {
  gemm::TensorCoreParams p;
  p.m = a.size(-2), p.n = b.size(-1), p.k = a.size(-1), p.batch = a.dim() == 3 ? a.size(0) : 1;
  p.factors = p.results = dtype_of(a, "mm");
  p.adder = gemm::adder_class(card_of(a).compute_capability(), p.factors);
  p.a = a.const_data_ptr(), p.a_strides = strides_of(a);
  p.b = b.const_data_ptr(), p.b_strides = strides_of(b);
  p.d = out.mutable_data_ptr(), p.d_strides = strides_of(out);
  p.alpha = static_cast<float>(add.alpha), p.beta = static_cast<float>(add.beta);
  if (add.kind == plan::EpilogueKind::kBeta && p.beta != 0.0f)
    p.c = add.c.const_data_ptr(), p.c_strides = strides_of(add.c);
  if (add.kind == plan::EpilogueKind::kBias) p.bias = add.c.const_data_ptr();
  gemm::run(p, plan);
}

template <class Params>
Params plain_params(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  Params p;
  p.m = a.size(-2), p.n = b.size(-1), p.k = a.size(-1), p.batch = a.dim() == 3 ? a.size(0) : 1;
  p.a = static_cast<decltype(p.a)>(a.const_data_ptr()), p.b = static_cast<decltype(p.b)>(b.const_data_ptr());
  p.d = static_cast<decltype(p.d)>(out.mutable_data_ptr());
  p.a_strides = strides_of(a), p.b_strides = strides_of(b), p.d_strides = strides_of(out);
  return p;
}

void multiply_f64(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, const Addend& add) {
  auto p = plain_params<gemm::Fp64Params>(a, b, out);
  const bool bias = add.kind == plan::EpilogueKind::kBias;
  p.alpha = add.alpha, p.beta = bias ? 1.0 : add.beta;
  if (bias) p.c = add.c.const_data_ptr<double>(), p.c_strides = {0, 1, 0};
  if (add.kind == plan::EpilogueKind::kBeta && p.beta != 0.0)
    p.c = add.c.const_data_ptr<double>(), p.c_strides = strides_of(add.c);
  gemm::fp64_chain(p);
}

void multiply(plan::Op op, Class how, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
              const Addend& add = {}) {
  if (how == Class::kFp64Chain) return multiply_f64(a, b, out, add);
  const gemm::Plan plan = plan_of(op, a, b, add.kind, how);
  how == Class::kFp32Chain ? multiply_f32(a, b, out, add, plan) : multiply_tensor_core(a, b, out, add, plan);
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
void accumulate(plan::Op op, Class how, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                const at::Scalar& alpha, const at::Tensor& out) {
  if (out.numel() == 0) return;
  if (a.size(-1) == 0) return scale_only(self, beta, out);
  using enum plan::EpilogueKind;
  if (op == plan::Op::kAddmm && takes_bias_epilogue(self, a, b, beta, out))
    return multiply(op, how, a, b, out, {kBias, alpha.to<double>(), 0.0, self});
  // cuBLAS is given the factors in the type that it computes in.
  const bool twice = how == Class::kFp64Chain;
  const double b_scale = twice ? beta.to<double>() : static_cast<double>(beta.to<float>());
  multiply(op, how, a, b, out, {b_scale != 0.0 ? kBeta : kNone, alpha.to<double>(), b_scale, self.expand(out.sizes())});
}

at::Tensor& mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  const Class how = class_of(self, mat2, "mm");
  Structured<at::meta::structured_mm> op(out);
  op.meta(self, mat2);
  multiply(plan::Op::kMm, how, self, mat2, op.output(0));
  op.finish();
  return out;
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  const Class how = class_of(mat1, mat2, "addmm");
  require_dtype(self, mat1.scalar_type(), "addmm", "self");
  Structured<at::meta::structured_addmm> op(out);
  op.meta(self, mat1, mat2, beta, alpha);
  accumulate(plan::Op::kAddmm, how, self, mat1, mat2, beta, alpha, op.output(0));
  op.finish();
  return out;
}

// cuBLASLt's RELU_BIAS: max(x, 0) in float32 before the one rounding, which gives the bytes of a ReLU after it. The GELU
// of GELU_BIAS is an approximation of closed code.
at::Tensor& addmm_activation_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                 const at::Scalar& beta, const at::Scalar& alpha, bool use_gelu, at::Tensor& out) {
  if (use_gelu)
    refuse("_addmm_activation", "fuses a GELU into the matrix product, and cuBLASLt's approximation of it is not known",
           "Call addmm, then gelu (nn.TransformerEncoder: torch.backends.mha.set_fastpath_enabled(False))");
  addmm_out(self, mat1, mat2, beta, alpha, out);
  at::relu_(out);
  return out;
}

at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  const Class how = class_of(self, mat2, "bmm");
  Structured<at::meta::structured_bmm> op(out);
  op.meta(self, mat2);
  multiply(plan::Op::kBmm, how, self, mat2, op.output(0));
  op.finish();
  return out;
}

at::Tensor& baddbmm_out(const at::Tensor& self, const at::Tensor& batch1, const at::Tensor& batch2,
                        const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const Class how = class_of(batch1, batch2, "baddbmm");
  require_dtype(self, batch1.scalar_type(), "baddbmm", "self");
  Structured<at::meta::structured_baddbmm> op(out);
  op.meta(self, batch1, batch2, beta, alpha);  // copies self into the result where beta is not 0
  accumulate(plan::Op::kBaddbmm, how, op.output(0), batch1, batch2, beta, alpha, op.output(0));
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
  const Class how = mat.scalar_type() == at::kFloat ? Class::kFp32Chain : class_of(mat, vec, "addmv");
  require_dtype(vec, mat.scalar_type(), "addmv", "vec");
  require_dtype(self, mat.scalar_type(), "addmv", "self");
  Structured<at::meta::structured_addmv> op(out);
  op.meta(self, mat, vec, beta, alpha);
  const at::Tensor& result = op.output(0);
  if (mat.numel() == 0) {
    scale_only(self, beta, result);
  } else {
    accumulate(plan::Op::kAddmv, how, self.expand(result.sizes()).unsqueeze(1), mat, vec.unsqueeze(1), beta, alpha,
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
  const bool twice = self.scalar_type() == at::kDouble;
  if (!twice) require_dtype(self, at::kFloat, "dot", "self");
  const at::Tensor result = at::empty({}, self.options());
  const at::Tensor row = self.unsqueeze(0), column = other.unsqueeze(1), place = result.view({1, 1});
  twice ? multiply_f64(row, column, place, {}) : multiply_f32(row, column, place, {}, {});
  return result;
}

at::Tensor vdot_vectors(const at::Tensor& self, const at::Tensor& other) { return dot_vectors(self, other); }

// int8 products, exact; the sizes that CUDA takes [src Blas.cpp, _int_mm_out_cuda].
at::Tensor& int_mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  TORCH_CHECK(self.dim() == 2, "Expected self to be of dimension 2 but got ", self.dim());
  TORCH_CHECK(mat2.dim() == 2, "Expected mat2 to be of dimension 2 but got ", mat2.dim());
  TORCH_CHECK(self.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", self.size(0));
  TORCH_CHECK(self.size(1) > 0 && self.size(1) % 8 == 0,
              "self.size(1) needs to be greater than 0 and a multiple of 8, but got ", self.size(1));
  TORCH_CHECK(self.size(1) == mat2.size(0), "self.size(1) needs to match mat2.size(0) but got ", self.size(1), " and ",
              mat2.size(0));
  TORCH_CHECK(mat2.size(1) > 0 && mat2.size(1) % 8 == 0,
              "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got ", mat2.size(1));
  TORCH_CHECK(self.dtype() == at::kChar, "Expected self dtype to be of type int8 but got ", self.dtype());
  TORCH_CHECK(mat2.dtype() == at::kChar, "Expected mat2 dtype to be of type int8 but got ", mat2.dtype());
  TORCH_CHECK(out.dtype() == at::kInt, "Expected result dtype to be of type kInt but got ", out.dtype());
  TORCH_CHECK(out.dim() == 2 && out.size(0) == self.size(0) && out.size(1) == mat2.size(1),
              "Expected the result to be of size ", self.size(0), " x ", mat2.size(1), " but got ", out.sizes());
  TORCH_CHECK(out.is_contiguous(), "Expected result to be contiguous.");
  gemm::int8_exact(plain_params<gemm::Int8Params>(self, mat2, out));
  return out;
}
at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2, "_int_mm: expected matrices, but got ", self.dim(), "D and ",
              mat2.dim(), "D tensors");
  at::Tensor out = at::empty({self.size(0), mat2.size(1)}, self.options().dtype(at::kInt));
  return int_mm_out(self, mat2, out);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
#define SO_OP(name, fn, klass) m.impl(name, SO_ADAPTER(fn));
#include "csrc/oracle/ops/gemm.inc"
#undef SO_OP
}

}  // namespace step_oracle::aten
