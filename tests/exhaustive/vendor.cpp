#include "tests/exhaustive/vendor.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace step_oracle::exhaustive {
namespace {

Vendor g_vendor;

void* symbol(void* library, const char* name) {
  void* at = dlsym(library, (std::string("array_") + name).c_str());
  if (at == nullptr) throw std::runtime_error(std::string("the vendor's library has no ") + name);
  return at;
}

}  // namespace

void open_vendor(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
#define SO_X(name) g_vendor.name = reinterpret_cast<VendorUnary>(symbol(library, #name));
  SO_VENDOR_UNARY(SO_X)
#undef SO_X
  g_vendor.powf = reinterpret_cast<decltype(g_vendor.powf)>(symbol(library, "powf"));
}

const Vendor& vendor() { return g_vendor; }

}  // namespace step_oracle::exhaustive
