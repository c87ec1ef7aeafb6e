// The functions of CUDA's libraries that the recorder calls, as their documentation declares them. Internal to device*.cpp.
//
//   Source [spec CUDA Driver API 13.0; NVRTC 13.0; cuBLAS 13.0 "cuBLASLt logging"; NVML 13; torch/csrc/inductor/aoti_torch/c/shim.h@v2.13.0]
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace step_oracle::capture {

using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuModule = void*;
using CuFunction = void*;
using CuStream = void*;
using CuEvent = void*;
using CuAddress = std::uint64_t;

struct Driver {
  CuResult (*init)(unsigned) = nullptr;
  CuResult (*driver_version)(int*) = nullptr;
  CuResult (*device_get)(CuDevice*, int) = nullptr;
  CuResult (*device_attribute)(int*, int, CuDevice) = nullptr;
  CuResult (*device_bus)(char*, int, CuDevice) = nullptr;
  CuResult (*retain)(CuContext*, CuDevice) = nullptr;
  CuResult (*push)(CuContext) = nullptr;
  CuResult (*pop)(CuContext*) = nullptr;
  CuResult (*module_load)(CuModule*, const void*) = nullptr;
  CuResult (*get_function)(CuFunction*, CuModule, const char*) = nullptr;
  CuResult (*launch)(CuFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream, void**,
                     void**) = nullptr;
  CuResult (*host_alloc)(void**, std::size_t, unsigned) = nullptr;
  CuResult (*host_free)(void*) = nullptr;
  CuResult (*alloc_async)(CuAddress*, std::size_t, CuStream) = nullptr;
  CuResult (*free_async)(CuAddress, CuStream) = nullptr;
  CuResult (*event_create)(CuEvent*, unsigned) = nullptr;
  CuResult (*event_record)(CuEvent, CuStream) = nullptr;
  CuResult (*event_wait)(CuEvent) = nullptr;
  CuResult (*event_destroy)(CuEvent) = nullptr;
  CuResult (*is_capturing)(CuStream, int*) = nullptr;
  CuResult (*error_text)(CuResult, const char**) = nullptr;

  // Null where the driver is not here; `why` says what is missing.
  static const Driver* get(std::string* why = nullptr);
  // Throws Error{kIo} with the driver's own words.
  void check(CuResult result, const char* what) const;
};

// Torch's current stream on the device; false where torch's CUDA build is not loaded.
bool current_stream(int device, CuStream* stream);

// An image of the digest's kernels for the device: built in, or compiled by NVRTC for compute capability `cc` (90).
// Throws Error{kUnsupported} with what is missing.
std::string digest_image(int cc);

// dlopen of the first name that is there, or null. `loaded`: only where it is in the process already.
void* open_first(std::initializer_list<const char*> names, bool loaded = false);

}  // namespace step_oracle::capture
