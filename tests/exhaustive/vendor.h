// The vendor's functions, executed on this CPU: the library that build_vendor_library makes.
#pragma once

namespace step_oracle::exhaustive {

// y[i] = f(x[i]) (powf: x[i] to the power of y[i], into z). NaN in any pattern.
#define SO_VENDOR_UNARY(X) \
  X(expf) X(tanhf) X(erff) X(logf) X(exp2f) X(log1pf) X(expm1f) X(sinf) X(cosf) X(rsqrtf) X(log2f) X(log10f) X(erfcf)

using VendorUnary = void (*)(const float* x, float* y, long n);
struct Vendor {
#define SO_X(name) VendorUnary name;
  SO_VENDOR_UNARY(SO_X)
#undef SO_X
  void (*powf)(const float* x, const float* y, float* z, long n);
};

// Throws std::runtime_error where the library or a name in it is missing.
void open_vendor(const char* path);
// What open_vendor read.
const Vendor& vendor();

}  // namespace step_oracle::exhaustive
