// The values of a trace as torch's IValues, with the trace's devices mapped to this process's.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "csrc/record/trace/records.h"

namespace step_oracle::program {

// "cuda:1" and "oracle:1" are the virtual card of the same index; "cpu" and "meta" are themselves. Throws kUnsupported
// for a device that is neither.
c10::Device mapped_device(const std::string& recorded);

c10::ScalarType scalar_type(rec::DType dtype);

// What a Value needs to become an IValue.
struct Resolver {
  std::function<at::Tensor(std::size_t index)> tensor;              // OpT::tensors[index]
  std::function<at::Generator(const std::string& device)> generator;
};

// `type` is the schema's; lists become typed lists as the boxed calling convention wants them. Throws kUnsupported for
// what a trace cannot hold (streams, process groups, raw storages).
c10::IValue to_ivalue(const rec::ValueT& value, const c10::TypePtr& type, const Resolver& resolver);

// Walks a replayed result and the recorded one together. `see` gets each tensor with its index in OpT::tensors; a
// result that is a tensor in one and not in the other goes to `differs` with a sentence.
void pair_tensors(const c10::IValue& actual, const rec::ValueT& recorded,
                  const std::function<void(const at::Tensor&, std::size_t index)>& see,
                  const std::function<void(const std::string&)>& differs);

}  // namespace step_oracle::program
