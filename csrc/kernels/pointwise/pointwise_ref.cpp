// The definition: one thread an element. Loads convert operand by operand to the common type, then to the type of
// computation; the row's expression; the result is rounded to the common type, then converted to the output's type.
#include <cstring>

#include "csrc/kernels/pointwise/element.h"
#include "csrc/kernels/pointwise/formulas.h"
#include "csrc/kernels/pointwise/pointwise_body.h"

namespace step_oracle::pointwise::ref {
namespace {

// A value while it is in flight: one of the three types of computation.
struct Value {
  enum { kFloat, kDouble, kInt } type;
  float f = 0;
  double d = 0;
  std::int64_t i = 0;
};
Value made(float f) { return {Value::kFloat, f, 0, 0}; }
Value made(double d) { return {Value::kDouble, 0, d, 0}; }
Value made(std::int64_t i) { return {Value::kInt, 0, 0, i}; }

Value load(const char* p, DType type) {
  switch (type) {
#define SO_X(name, T)             \
  case DType::name: {             \
    T x;                          \
    std::memcpy(&x, p, sizeof x); \
    return made(value_of(x));     \
  }
    SO_FOR_EACH_DTYPE(SO_X)
#undef SO_X
  }
  return made(0.0f);
}

void store_as(const Value& v, DType type, char* p, std::uint16_t nan) {
  switch (type) {
#define SO_X(name, T)                  \
  case DType::name: {                  \
    T x;                               \
    if (v.type == Value::kFloat)       \
      store(v.f, x, Nan16{nan});       \
    else if (v.type == Value::kDouble) \
      store(v.d, x, Nan16{nan});       \
    else                               \
      store(v.i, x, Nan16{nan});       \
    std::memcpy(p, &x, sizeof x);      \
    break;                             \
  }
    SO_FOR_EACH_DTYPE(SO_X)
#undef SO_X
  }
}

Value through(const Value& v, DType type, std::uint16_t nan) {
  char bytes[8];
  store_as(v, type, bytes, nan);
  return load(bytes, type);
}
// A cast of float16 to float32 is an addition to zero on the card: its NaN is the card's.
Value loaded_for_cast(const char* p, DType from, DType to) {
  Value v = load(p, from);
  if (from == DType::kF16 && to == DType::kF32) v.f = canonical(v.f);
  return v;
}

struct Arguments {
  Value in[3];
  const Scalars* scalars;
  bool half;
};
float get(const Value& v, float) { return v.f; }
double get(const Value& v, double) { return v.d; }
std::int64_t get(const Value& v, std::int64_t) { return v.i; }
float scalar(const Scalars& s, int k, float) { return s.f[k]; }
double scalar(const Scalars& s, int k, double) { return s.d[k]; }
std::int64_t scalar(const Scalars& s, int k, std::int64_t) { return s.i[k]; }

template <Domain>
struct TypeOf {
  using T = float;
};
template <>
struct TypeOf<Domain::D> {
  using T = double;
};
template <>
struct TypeOf<Domain::I> {
  using T = std::int64_t;
};

#define SO_MAP(name, domain, inputs, kind, ...)                                                   \
  Value eval_##name##_##domain(const Arguments& a) {                                              \
    using T = TypeOf<Domain::domain>::T;                                                          \
    [[maybe_unused]] const auto r = [&](float v) {                                                \
      return a.half ? widen(narrow_half(v)) : widen(narrow(v, 0x7fff));                           \
    };                                                                                            \
    [[maybe_unused]] const T x = get(a.in[0], T{}), y = get(a.in[1], T{}), z = get(a.in[2], T{}); \
    [[maybe_unused]] const T s = scalar(*a.scalars, 0, T{}), t = scalar(*a.scalars, 1, T{});      \
    const auto v = __VA_ARGS__;                                                                   \
    if (Kind::kind == Kind::test) return made(static_cast<std::int64_t>(v));                      \
    return made(Kind::kind == Kind::arith ? canonical(static_cast<T>(v)) : static_cast<T>(v));    \
  }
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP

using EvalFn = Value (*)(const Arguments&);
constexpr EvalFn kEval[] = {
#define SO_MAP(name, domain, inputs, kind, ...) &eval_##name##_##domain,
#include "csrc/kernels/pointwise/maps.inc"
#undef SO_MAP
};

void addresses(const Loop& loop, std::int64_t index, char** data) {
  for (int k = 0; k < loop.operands; ++k) {
    data[k] = static_cast<char*>(loop.operand[k].data);
    std::int64_t rest = index;
    for (int d = 0; d < loop.ndim; ++d) {
      data[k] += rest % loop.shape[d] * loop.operand[k].stride[d];
      rest /= loop.shape[d];
    }
  }
}

}  // namespace

void map(const Params& p) {
  const Row& row = *p.row;
  char* data[kMaxOperands];
  for (std::int64_t i = 0; i < p.loop.numel(); ++i) {
    addresses(p.loop, i, data);
    Arguments a{{made(0.0f), made(0.0f), made(0.0f)}, &p.scalars, p.common == DType::kF16};
    for (int k = 0; k < row.inputs; ++k) {
      const DType type = p.loop.operand[k + 1].dtype;
      const Value loaded = load(data[k + 1], type);
      const bool opmath = row.domain != Domain::D && row.domain != Domain::I && p.opmath_operands >> (k + 1) & 1;
      const DType common = opmath ? DType::kF32 : p.common;
      a.in[k] = type == common ? loaded : through(loaded_for_cast(data[k + 1], type, common), common, p.bf16_nan);
    }
    const Value v = kEval[static_cast<int>(row.index)](a);
    const DType common = row.kind == Kind::test ? DType::kBool : p.common, out = p.loop.operand[0].dtype;
    char bytes[8];
    if (row.kind == Kind::exact && common == DType::kBF16) {
      const Brain b = narrow_exact(v.f);
      std::memcpy(bytes, &b, 2);
    } else if (row.kind == Kind::exact && common == DType::kF16) {
      const Half h = narrow_half_exact(v.f);
      std::memcpy(bytes, &h, 2);
    } else {
      store_as(v, common, bytes, p.bf16_nan);
    }
    if (common == out)
      std::memcpy(data[0], bytes, size_of(out));
    else
      store_as(load(bytes, common), out, data[0], p.bf16_nan);
  }
}

void copy(const Loop& loop, std::uint16_t bf16_nan) {
  char* data[kMaxOperands];
  for (std::int64_t i = 0; i < loop.numel(); ++i) {
    addresses(loop, i, data);
    const DType to = loop.operand[0].dtype, from = loop.operand[1].dtype;
    if (to == from)
      std::memcpy(data[0], data[1], size_of(to));
    else
      store_as(loaded_for_cast(data[1], from, to), to, data[0], bf16_nan);
  }
}

}  // namespace step_oracle::pointwise::ref
