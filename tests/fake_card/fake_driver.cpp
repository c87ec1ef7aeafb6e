// CUDA's driver, cuBLASLt's logger and NVML, as far as the recorder calls them. Kernels run as the host's build of their
// source. FAKE_CARD_FAULT names a call that fails, FAKE_CARD_CAPTURING=1 says that a graph is being captured.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/record/device_digest/plan.h"
#include "csrc/record/device_digest/tree.h"
#include "tests/fake_card/fake_queue.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_card {
namespace {
std::recursive_mutex g_mutex;
std::deque<std::function<void()>> g_queue;
void (*g_callback)(int, const char*, const char*) = nullptr;
int g_level = 0;
std::map<std::string, int> g_calls;

int called(const char* name) {
  std::lock_guard lock(g_mutex);
  ++g_calls[name];
  const char* fault = std::getenv("FAKE_CARD_FAULT");
  return fault != nullptr && std::strcmp(fault, name) == 0 ? 719 : 0;
}

struct HostThreads {
  template <class N, class F>
  void each(N n, F&& f) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(n); ++i) f(i);
  }
};
int g_groups, g_tree;  // their addresses are the functions' handles
}  // namespace

void push(std::function<void()> work) {
  std::lock_guard lock(g_mutex);
  g_queue.push_back(std::move(work));
}
void drain() {
  std::lock_guard lock(g_mutex);
  while (!g_queue.empty()) {
    const auto work = std::move(g_queue.front());
    g_queue.pop_front();
    work();
  }
}
void log_line(const char* function, const char* message) {
  if (g_callback != nullptr && g_level >= 2) g_callback(2, function, message);
}
}  // namespace fake_card

using namespace fake_card;
using namespace step_oracle::device_digest;

EXPORT int fake_card_calls(const char* name) { return g_calls[name]; }
EXPORT int cuInit(unsigned) { return called("cuInit"); }
EXPORT int cuDriverGetVersion(int* v) { return *v = 13000, 0; }
EXPORT int cuDeviceGet(int* d, int i) { return *d = i, i == 0 ? 0 : 101; }
EXPORT int cuDeviceGetAttribute(int* v, int a, int) { return *v = a == 75 ? 9 : a == 76 ? 0 : a == 32 ? 1 : 0, 0; }
EXPORT int cuDeviceGetPCIBusId(char* to, int, int) { return std::strcpy(to, "0000:01:00.0"), 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** c, int) { return *c = &g_groups, called("cuDevicePrimaryCtxRetain"); }
EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }
EXPORT int cuCtxPopCurrent_v2(void**) { return 0; }
EXPORT int cuModuleLoadData(void** m, const void*) { return *m = &g_groups, called("cuModuleLoadData"); }
EXPORT int cuModuleGetFunction(void** f, void*, const char* name) {
  *f = std::strcmp(name, "step_oracle_digest_groups") == 0 ? &g_groups : &g_tree;
  return 0;
}
EXPORT int cuLaunchKernel(void* f, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned,
                          void*, void** arguments, void**) {
  if (threads != kThreads) return 1;
  const Batch batch = *static_cast<const Batch*>(arguments[0]);
  push([=] {
    HostThreads host;
    for (U32 b = 0; b < blocks; ++b) {
      Shared shared;
      if (f == &g_groups) group_body(host, shared, batch, b);
      if (f == &g_tree) tree_body(host, batch, b);
    }
  });
  return called("cuLaunchKernel");
}
EXPORT int cuMemHostAlloc(void** p, std::size_t n, unsigned) { return *p = std::calloc(1, n), called("cuMemHostAlloc"); }
EXPORT int cuMemFreeHost(void* p) { return std::free(p), called("cuMemFreeHost"); }
EXPORT int cuMemAllocAsync(std::uint64_t* p, std::size_t n, void*) {
  return *p = reinterpret_cast<std::uintptr_t>(std::malloc(n)), called("cuMemAllocAsync");
}
EXPORT int cuMemFreeAsync(std::uint64_t p, void*) {
  push([p] { std::free(reinterpret_cast<void*>(p)); });
  return 0;
}
EXPORT int cuEventCreate(void** e, unsigned) { return *e = std::malloc(1), called("cuEventCreate"); }
EXPORT int cuEventRecord(void*, void*) { return called("cuEventRecord"); }
EXPORT int cuEventSynchronize(void*) { return drain(), called("cuEventSynchronize"); }
EXPORT int cuEventDestroy_v2(void* e) { return std::free(e), called("cuEventDestroy_v2"); }
EXPORT int cuStreamIsCapturing(void*, int* status) {
  const char* on = std::getenv("FAKE_CARD_CAPTURING");
  return *status = on != nullptr && *on == '1', called("cuStreamIsCapturing");
}
EXPORT int cuGetErrorString(int, const char** text) { return *text = "unspecified launch failure", 0; }

EXPORT int cublasLtLoggerSetCallback(void (*f)(int, const char*, const char*)) { return g_callback = f, 0; }
EXPORT int cublasLtLoggerSetLevel(int level) { return g_level = level, 0; }
EXPORT std::size_t cublasLtGetVersion() { return 130000; }

EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** h) { return *h = &g_tree, bus[0] == '0' ? 0 : 1; }
EXPORT int nvmlDeviceGetMigMode(void*, unsigned* now, unsigned* pending) { return *now = 1, *pending = 1, 0; }
EXPORT int aoti_torch_get_current_cuda_stream(std::int32_t, void** stream) { return *stream = &g_tree, 0; }
