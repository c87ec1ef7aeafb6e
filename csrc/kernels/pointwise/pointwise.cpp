// Stages a strided loop as contiguous pieces of one type for the maps of the instruction sets.
#include "csrc/kernels/pointwise/pointwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "csrc/kernels/core/error.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

namespace step_oracle::pointwise {
namespace {

constexpr std::int64_t kBlock = 1024;  // elements staged at a time: a buffer is at most 8 KiB
using Buffer = std::array<std::uint64_t, kBlock>;

int log2_size(DType t) { return __builtin_ctz(static_cast<unsigned>(size_of(t))); }

DType compute_type(Domain domain) {
  return domain == Domain::D ? DType::kF64 : domain == Domain::I ? DType::kI64 : DType::kF32;
}

// Elements [0, n) at `data`, converted to the common type and from there to the type of computation.
class Input {
 public:
  Input(const PointwiseBody& body, const Operand& operand, std::int64_t stride, DType common, DType compute,
        std::uint16_t nan)
      : body_(body), type_(operand.dtype), common_(common), compute_(compute), stride_(stride), nan_(nan) {
    once_ = stride == 0;
    direct_ = type_ == common && common == compute && stride == static_cast<std::int64_t>(size_of(type_));
  }

  const void* at(const char* data, std::int64_t n) {
    if (direct_) return data;
    if (once_) {
      if (filled_ < n) fill(data, n);
      return buffer_.data();
    }
    load(data, n, buffer_);
    return buffer_.data();
  }
  std::int64_t advance(std::int64_t n) const { return n * stride_; }

 private:
  void load(const char* data, std::int64_t n, Buffer& out) {
    const void* from = data;
    Buffer a, b;
    if (stride_ != static_cast<std::int64_t>(size_of(type_))) {
      Buffer& to = type_ == common_ && common_ == compute_ ? out : a;
      body_.gather[log2_size(type_)](data, stride_, to.data(), n);
      from = to.data();
    }
    if (type_ != common_) {
      Buffer& to = common_ == compute_ ? out : b;
      convert(type_, common_, from, to.data(), n);
      if (type_ == DType::kF16 && common_ == DType::kF32) body_.canonical(reinterpret_cast<float*>(to.data()), n);
      from = to.data();
    }
    if (common_ != compute_)
      convert(common_, compute_, from, out.data(), n);
    else if (from != out.data())
      std::memcpy(out.data(), from, static_cast<std::size_t>(n) * size_of(compute_));
  }
  void fill(const char* data, std::int64_t n) {
    Buffer one;
    load(data, 1, one);
    body_.gather[log2_size(compute_)](one.data(), 0, buffer_.data(), n);
    filled_ = n;
  }
  void convert(DType from, DType to, const void* in, void* out, std::int64_t n) {
    body_.convert[static_cast<int>(from)][static_cast<int>(to)](in, out, n, nan_);
  }

  const PointwiseBody& body_;
  DType type_, common_, compute_;
  std::int64_t stride_, filled_ = 0;
  std::uint16_t nan_;
  bool once_, direct_;
  Buffer buffer_;
};

// From the result's type (the type of computation, or bool) through the common type to the operand's.
class Output {
 public:
  Output(const PointwiseBody& body, const Operand& operand, std::int64_t stride, DType result, DType common, bool exact,
         std::uint16_t nan)
      : body_(body), type_(operand.dtype), result_(result), common_(common), stride_(stride), nan_(nan), exact_(exact) {
    direct_ = type_ == result && common == result && stride == static_cast<std::int64_t>(size_of(type_));
  }

  void* begin(char* data) { return direct_ ? static_cast<void*>(data) : buffer_.data(); }
  void end(char* data, std::int64_t n) {
    if (direct_) return;
    const void* from = buffer_.data();
    Buffer a, b;
    if (result_ != common_) {
      if (exact_ && common_ == DType::kBF16)
        body_.narrow_exact(from, a.data(), n);
      else if (exact_ && common_ == DType::kF16)
        body_.narrow_exact_half(from, a.data(), n);
      else
        convert(result_, common_, from, a.data(), n);
      from = a.data();
    }
    const bool dense = stride_ == static_cast<std::int64_t>(size_of(type_));
    if (type_ != common_) {
      void* to = dense ? static_cast<void*>(data) : b.data();
      convert(common_, type_, from, to, n);
      if (!dense) body_.scatter[log2_size(type_)](b.data(), data, stride_, n);
    } else if (dense) {
      std::memcpy(data, from, static_cast<std::size_t>(n) * size_of(type_));
    } else {
      body_.scatter[log2_size(type_)](from, data, stride_, n);
    }
  }
  std::int64_t advance(std::int64_t n) const { return n * stride_; }

 private:
  void convert(DType from, DType to, const void* in, void* out, std::int64_t n) {
    body_.convert[static_cast<int>(from)][static_cast<int>(to)](in, out, n, nan_);
  }
  const PointwiseBody& body_;
  DType type_, result_, common_;
  std::int64_t stride_;
  std::uint16_t nan_;
  bool exact_, direct_;
  Buffer buffer_;
};

// The type that an input is rounded to before it is computed with.
DType common_of(const Params& p, int operand, DType compute) {
  return compute == DType::kF32 && p.opmath_operands >> operand & 1 ? compute : p.common;
}

// A run whose operands are all read and written in place needs no pieces.
bool all_direct(const Params& p, DType compute, DType result, const std::int64_t* stride) {
  const DType common = p.row->kind == Kind::test ? DType::kBool : p.common;
  if (common != result) return false;
  for (int k = 0; k < p.loop.operands; ++k) {
    const DType type = p.loop.operand[k].dtype, wanted = k == 0 ? result : compute;
    if (type != wanted || stride[k] != static_cast<std::int64_t>(size_of(type))) return false;
    if (k > 0 && p.common != compute) return false;
  }
  return true;
}

void run_map(const PointwiseBody& body, MapFn fn, const Params& p, char* const* data, const std::int64_t* stride,
             std::int64_t n) {
  const Row& row = *p.row;
  const DType compute = compute_type(row.domain);
  const DType result = row.kind == Kind::test ? DType::kBool : compute;
  if (all_direct(p, compute, result, stride)) {
    const void* in[3] = {data[1], row.inputs > 1 ? data[2] : nullptr, row.inputs > 2 ? data[3] : nullptr};
    fn(data[0], in, n, p.scalars);
    return;
  }
  const DType out_common = row.kind == Kind::test ? DType::kBool : p.common;
  const Operand* op = p.loop.operand;
  Output out(body, op[0], stride[0], result, out_common, row.kind == Kind::exact, p.bf16_nan);
  const int last = row.inputs;
  Input x(body, op[1], stride[1], common_of(p, 1, compute), compute, p.bf16_nan);
  Input y(body, op[std::min(2, last)], stride[std::min(2, last)], common_of(p, std::min(2, last), compute), compute,
          p.bf16_nan);
  Input z(body, op[std::min(3, last)], stride[std::min(3, last)], common_of(p, std::min(3, last), compute), compute,
          p.bf16_nan);
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t m = std::min(kBlock, n - i);
    const void* in[3] = {x.at(data[1] + x.advance(i), m), nullptr, nullptr};
    if (last > 1) in[1] = y.at(data[2] + y.advance(i), m);
    if (last > 2) in[2] = z.at(data[3] + z.advance(i), m);
    char* to = data[0] + out.advance(i);
    fn(out.begin(to), in, m, p.scalars);
    out.end(to, m);
  }
}

}  // namespace

void map(const Params& p) {
  if (p.loop.operands != p.row->inputs + 1)
    throw Error(ErrorKind::kInternal, fmt::format("pointwise: '{}' takes {} inputs; the loop has {} operands",
                                                  p.row->name, p.row->inputs, p.loop.operands));
  const auto& body = SO_BODY(pointwise_body);
  const auto index = static_cast<int>(p.row->index);
  const bool half = p.row->domain == Domain::H && p.common == DType::kF16;
  const MapFn fn = half ? body.maps_half[index] : body.maps[index];
  for_each_run(p.loop, [&](char* const* data, const std::int64_t* stride, std::int64_t n) {
    run_map(body, fn, p, data, stride, n);
  });
}

}  // namespace step_oracle::pointwise
