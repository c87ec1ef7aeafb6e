#include "csrc/record/capture/device_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "csrc/kernels/core/error.h"
#include "csrc/record/capture/device.h"

extern "C" const char step_oracle_digest_fatbin[], step_oracle_digest_fatbin_end[], step_oracle_digest_source[];

namespace step_oracle::capture {
namespace {

template <class F>
bool find(void* library, F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

struct Loaded {
  Driver driver;
  std::string why;
  Loaded() {
    void* library = open_first({"libcuda.so.1", "libcuda.so"});
    if (library == nullptr) {
      why = "NVIDIA's driver (libcuda.so.1) is not installed on this machine.";
      return;
    }
    Driver& d = driver;
    const char* missing = nullptr;
    const auto need = [&](auto& f, const char* name) {
      if (!find(library, f, name) && missing == nullptr) missing = name;
    };
    need(d.init, "cuInit");
    need(d.driver_version, "cuDriverGetVersion");
    need(d.device_get, "cuDeviceGet");
    need(d.device_attribute, "cuDeviceGetAttribute");
    need(d.device_bus, "cuDeviceGetPCIBusId");
    need(d.retain, "cuDevicePrimaryCtxRetain");
    need(d.push, "cuCtxPushCurrent_v2");
    need(d.pop, "cuCtxPopCurrent_v2");
    need(d.module_load, "cuModuleLoadData");
    need(d.get_function, "cuModuleGetFunction");
    need(d.launch, "cuLaunchKernel");
    need(d.host_alloc, "cuMemHostAlloc");
    need(d.host_free, "cuMemFreeHost");
    need(d.alloc_async, "cuMemAllocAsync");
    need(d.free_async, "cuMemFreeAsync");
    need(d.event_create, "cuEventCreate");
    need(d.event_record, "cuEventRecord");
    need(d.event_wait, "cuEventSynchronize");
    need(d.event_destroy, "cuEventDestroy_v2");
    need(d.is_capturing, "cuStreamIsCapturing");
    need(d.error_text, "cuGetErrorString");
    if (missing != nullptr) {
      why = fmt::format("NVIDIA's driver on this machine is too old: it lacks {}; CUDA 12 or newer has it.", missing);
    } else if (const CuResult r = d.init(0); r != 0) {
      why = fmt::format("NVIDIA's driver does not start (cuInit gives {}): nvidia-smi says more.", r);
    }
  }
};

// NVRTC beside torch's CUDA build, where pip's packages put it.
void* open_nvrtc() {
  if (void* found = open_first({"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})) return found;
  void* torch = open_first({"libtorch_cuda.so"}, true);
  Dl_info info{};
  void* symbol = torch == nullptr ? nullptr : dlsym(torch, "aoti_torch_get_current_cuda_stream");
  if (symbol == nullptr || dladdr(symbol, &info) == 0) return nullptr;
  const std::string path = info.dli_fname;
  const auto lib = path.substr(0, path.rfind('/'));
  for (const char* there : {"/../../nvidia/cu13/lib/libnvrtc.so.13", "/../../nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
                            "/libnvrtc.so.13", "/libnvrtc.so.12"})
    if (void* found = dlopen((lib + there).c_str(), RTLD_LAZY)) return found;
  return nullptr;
}

// [spec NVRTC 13.0]
std::string compile(int cc) {
  void* library = open_nvrtc();
  int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*build)(void*, int, const char* const*) = nullptr;
  int (*log_size)(void*, std::size_t*) = nullptr;
  int (*log)(void*, char*) = nullptr;
  int (*size)(void*, std::size_t*) = nullptr;
  int (*image)(void*, char*) = nullptr;
  int (*destroy)(void**) = nullptr;
  if (library == nullptr || !find(library, create, "nvrtcCreateProgram") || !find(library, build, "nvrtcCompileProgram") ||
      !find(library, log_size, "nvrtcGetProgramLogSize") || !find(library, log, "nvrtcGetProgramLog") ||
      !find(library, size, "nvrtcGetCUBINSize") || !find(library, image, "nvrtcGetCUBIN") ||
      !find(library, destroy, "nvrtcDestroyProgram"))
    throw Error(ErrorKind::kUnsupported,
                "This step-oracle was built without nvcc, and NVRTC (libnvrtc.so) is not here to compile the digest's "
                "kernels: install CUDA's nvrtc package, or build again with nvcc.");
  void* program = nullptr;
  std::string out;
  const std::string arch = fmt::format("--gpu-architecture=sm_{}", cc);
  const char* options[] = {arch.c_str(), "--std=c++17"};
  int failed = create(&program, step_oracle_digest_source, "digest.cu", 0, nullptr, nullptr);
  if (failed == 0) failed = build(program, 2, options);
  std::size_t bytes = 0;
  if (failed == 0 && size(program, &bytes) == 0) {
    out.resize(bytes);
    failed = image(program, out.data());
  }
  if (failed != 0 || out.empty()) {
    std::string text;
    if (program != nullptr && log_size(program, &bytes) == 0) {
      text.resize(bytes);
      log(program, text.data());
    }
    throw Error(ErrorKind::kUnsupported, fmt::format("NVRTC does not compile the digest's kernels for compute capability "
                                                     "{}.{} (error {}): {}", cc / 10, cc % 10, failed, text.c_str()));
  }
  destroy(&program);
  return out;
}

}  // namespace

void* open_first(std::initializer_list<const char*> names, bool loaded) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_LAZY | (loaded ? RTLD_NOLOAD : 0))) return library;
  return nullptr;
}

const Driver* Driver::get(std::string* why) {
  static const Loaded& loaded = *new Loaded;
  if (why != nullptr) *why = loaded.why;
  return loaded.why.empty() ? &loaded.driver : nullptr;
}

void Driver::check(CuResult result, const char* what) const {
  if (result == 0) return;
  const char* text = nullptr;
  if (error_text(result, &text) != 0 || text == nullptr) text = "an error without a name";
  throw Error(ErrorKind::kIo, fmt::format("The card's digest failed: {} gives {} ({}).", what, result, text));
}

bool current_stream(int device, CuStream* stream) {
  using Get = int (*)(std::int32_t, void**);
  static const Get get = [] {
    void* torch = open_first({"libtorch_cuda.so"}, true);
    return torch == nullptr ? nullptr : reinterpret_cast<Get>(dlsym(torch, "aoti_torch_get_current_cuda_stream"));
  }();
  return get != nullptr && get(device, stream) == 0;
}

std::string digest_image(int cc) {
  const auto built_in = static_cast<std::size_t>(step_oracle_digest_fatbin_end - step_oracle_digest_fatbin);
  if (built_in > 0) return {step_oracle_digest_fatbin, built_in};
  return compile(cc);
}

// --- cuBLASLt's log ---------------------------------------------------------------------------------------------------

namespace {

thread_local std::vector<std::string>* t_lines = nullptr;
std::mutex g_log_mutex;
int g_log_users = 0;

// [spec cuBLAS 13.0: cublasLtLoggerCallback_t]
void on_line(int level, const char* function, const char* message) {
  constexpr const char* kLevels[] = {"Off", "Error", "Trace", "Hint", "Info", "Api"};
  if (t_lines == nullptr) return;
  // As the library heads a line of its own file, without time and process: step-oracle plan from-log reads both.
  t_lines->push_back(fmt::format("[cublasLt][{}][{}] {}", kLevels[std::clamp(level, 0, 5)], function, message));
}

bool set_log(bool on) {
  void* library = open_first({"libcublasLt.so.13", "libcublasLt.so.12"}, true);
  int (*callback)(void (*)(int, const char*, const char*)) = nullptr;
  int (*level)(int) = nullptr;
  if (library == nullptr || !find(library, callback, "cublasLtLoggerSetCallback") ||
      !find(library, level, "cublasLtLoggerSetLevel"))
    return false;
  constexpr int kTrace = 2;  // calls that launch kernels log their parameters
  return callback(on ? &on_line : nullptr) == 0 && level(on ? kTrace : 0) == 0;
}

}  // namespace

LtLog::LtLog(std::vector<std::string>& lines) : before_(t_lines) { t_lines = &lines; }
LtLog::~LtLog() { t_lines = before_; }

bool LtLog::switch_on() {
  std::lock_guard lock(g_log_mutex);
  if (g_log_users == 0 && !set_log(true)) return false;
  ++g_log_users;
  return true;
}

void LtLog::switch_off() {
  std::lock_guard lock(g_log_mutex);
  if (g_log_users > 0 && --g_log_users == 0) set_log(false);
}

// --- facts ------------------------------------------------------------------------------------------------------------

CardFacts card_facts(int index) {
  constexpr int kEcc = 32;  // CU_DEVICE_ATTRIBUTE_ECC_ENABLED
  CardFacts facts;
  const Driver* d = Driver::get();
  CuDevice device = 0;
  if (d == nullptr || d->device_get(&device, index) != 0) return facts;
  if (d->driver_version(&facts.driver) != 0) facts.driver = 0;
  int on = 0;
  if (d->device_attribute(&on, kEcc, device) == 0) facts.ecc = on != 0;
  char bus[32] = {};
  void* nvml = open_first({"libnvidia-ml.so.1"});
  int (*init)() = nullptr;
  int (*by_bus)(const char*, void**) = nullptr;
  int (*mode)(void*, unsigned*, unsigned*) = nullptr;
  void* handle = nullptr;
  unsigned now = 0, pending = 0;
  if (nvml == nullptr || !find(nvml, init, "nvmlInit_v2") || !find(nvml, by_bus, "nvmlDeviceGetHandleByPciBusId_v2") ||
      !find(nvml, mode, "nvmlDeviceGetMigMode") || d->device_bus(bus, sizeof bus, device) != 0 || init() != 0 ||
      by_bus(bus, &handle) != 0)
    return facts;
  constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED: a card that cannot be divided
  const int got = mode(handle, &now, &pending);
  if (got == 0) facts.mig = now != 0;
  if (got == kNotSupported) facts.mig = 0;
  return facts;
}

}  // namespace step_oracle::capture
