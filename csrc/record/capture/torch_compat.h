// Everything that leans on torch's internals. What was read and measured is for torch 2.13; 2.11 and 2.12 compile, for a
// card's machine that has them (scripts/card_probe), and another release is refused here. step_oracle/record.py refuses a
// torch other than the one that this was built with.
//
// The key: DispatchKey::Fake lies below Python, functorch, autograd and autocast and above every backend, so a boxed
// fallback there sees casts, real in-place ops, views and factories, once each. torch 2.13 registers nothing on it.
#pragma once
#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>  // to 2.12
#endif
#include <torch/headeronly/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 13
#error "csrc/record/capture is written for torch 2.13, and compiles with 2.11: check this header against the new release, and run tests/python/test_record_*.py"
#endif

namespace step_oracle::capture {

inline constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// The keys an op still has to pass below ours.
inline c10::DispatchKeySet below_key(c10::DispatchKeySet ks) {
  return ks & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

inline bool watched_here() { return c10::impl::tls_is_dispatch_key_included(kKey); }
inline void watch_here(bool on) { c10::impl::tls_set_dispatch_key_included(kKey, on); }

// For the recorder's own calls into torch: backend kernels only, so nothing of it is recorded, differentiated or cast.
struct OwnCalls : c10::impl::ForceDispatchKeyGuard {
  OwnCalls()
      : c10::impl::ForceDispatchKeyGuard(
            c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                c10::DispatchKeySet({kKey, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})) {}
};

// FakeTensor, a wrapper subclass, functionalization's and functorch's wrappers: a tensor whose bytes are elsewhere.
inline bool is_wrapper(const at::TensorBase& t) {
  return t.key_set().has_any(c10::DispatchKeySet(
      {c10::DispatchKey::Python, kKey, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
       c10::DispatchKey::FuncTorchGradWrapper}));
}

// A composite op reaches the key undecomposed where autograd is switched off (inference mode): it must decompose above
// us, or its parts would not be seen.
inline bool decomposes_below(const c10::OperatorHandle& op, c10::DispatchKeySet next) {
  return !op.hasKernelForAnyDispatchKey(next) && !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// The number that autograd's newest node on this thread took; -1 before the first.
inline std::int64_t newest_sequence() { return static_cast<std::int64_t>(at::sequence_number::peek()) - 1; }
// Nodes that accumulate into a leaf carry this number.
inline constexpr std::uint64_t kNoSequence = UINT64_MAX;

}  // namespace step_oracle::capture
