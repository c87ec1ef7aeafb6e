#include "csrc/oracle/program/store.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "csrc/kernels/core/error.h"
#include "csrc/oracle/device/device.h"
#include "csrc/oracle/program/value.h"

namespace step_oracle::program {
namespace {

// First element of a tensor, whose memory the host can reach (CPU, or the virtual card's).
char* memory(const at::Tensor& t) {
  return static_cast<char*>(t.storage().mutable_data()) + t.storage_offset() * static_cast<std::int64_t>(t.itemsize());
}

// Writes row-major bytes into a strided tensor.
void scatter(const std::vector<std::uint8_t>& bytes, const at::Tensor& t) {
  const std::int64_t item = static_cast<std::int64_t>(t.itemsize());
  if (static_cast<std::int64_t>(bytes.size()) != t.numel() * item)
    throw Error(ErrorKind::kCorrupt, fmt::format("{} bytes are kept for a tensor of {}", bytes.size(), t.numel() * item));
  if (t.numel() == 0) return;
  char* base = memory(t);
  if (t.is_contiguous()) {
    std::memcpy(base, bytes.data(), bytes.size());
    return;
  }
  std::vector<std::int64_t> index(static_cast<std::size_t>(t.dim()), 0);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    std::int64_t at = 0;
    for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * t.stride(static_cast<std::int64_t>(d));
    std::memcpy(base + at * item, bytes.data() + i * item, static_cast<std::size_t>(item));
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < t.size(static_cast<std::int64_t>(d))) break;
      index[d] = 0;
    }
  }
}

// Last element that the geometry reaches, in elements; false where that overflows or a stride is negative.
bool last_element(const rec::TensorT& t, std::int64_t& last) {
  last = t.offset;
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    std::int64_t span = 0;
    if (t.strides[d] < 0 || __builtin_mul_overflow(t.sizes[d] - 1, t.strides[d], &span)) return false;
    if (__builtin_add_overflow(last, span, &last)) return false;
  }
  return t.offset >= 0;
}

std::size_t bytes_needed(const rec::TensorT& t) {
  if (t.sizes.size() != t.strides.size())
    throw Error(ErrorKind::kCorrupt, "a tensor with more sizes than strides, or fewer");
  if (rec::numel(t.sizes) == 0) return 0;
  std::int64_t last = 0;
  if (!last_element(t, last) || last >= std::numeric_limits<std::int64_t>::max() / 16)
    throw Error(ErrorKind::kCorrupt, fmt::format("a tensor that reaches outside storage {}", t.storage));
  return static_cast<std::size_t>(last + 1) * rec::size_of(t.dtype);
}

at::Tensor over(const c10::Storage& storage, const rec::TensorT& t) {
  if (const std::size_t needed = bytes_needed(t); needed > storage.nbytes())
    throw Error(ErrorKind::kUnsupported, fmt::format("a tensor needs {} bytes of storage {}, which has {} here", needed,
                                                     t.storage, storage.nbytes()));
  const bool card = storage.device().type() == device::kOracle;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(card ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(scalar_type(t.dtype)));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(t.offset);
  impl->set_sizes_and_strides(t.sizes, t.strides);
  if (t.wrapped_number) impl->set_wrapped_number(true);
  if (t.conj || t.neg)
    throw Error(ErrorKind::kUnsupported, "a tensor with the conjugate or negative bit: real it first (resolve_conj, resolve_neg)");
  return tensor;
}

}  // namespace

Digest digest_of(const at::Tensor& t) {
  StridedBytes bytes;
  bytes.sizes = {t.sizes().data(), t.sizes().size()};
  bytes.strides = {t.strides().data(), t.strides().size()};
  bytes.itemsize = t.itemsize();
  bytes.data = t.numel() ? memory(t) : nullptr;
  return blake3(bytes);
}

Store::Store(const Trace& trace) : trace_(trace) {
  // A generation lives on in the next one, which resize_ makes of it.
  std::map<std::uint64_t, std::uint64_t> last;
  for (const StorageInfo& s : trace.storages) last[s.record.id] = std::max(last[s.record.id], s.last_use);
  for (const StorageInfo& s : trace.storages)
    by_last_use_.push_back({last[s.record.id], {s.record.id, s.record.generation}});
  std::sort(by_last_use_.begin(), by_last_use_.end());
}

c10::Storage Store::blank(const rec::TensorT& t, std::size_t nbytes) const {
  const c10::Device device = mapped_device(t.device);
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt : std::optional(device));
  c10::Allocator* allocator = device.is_cpu() ? c10::GetAllocator(c10::kCPU) : device::allocator();
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, allocator->allocate(nbytes), allocator, true);
  if (nbytes) std::memset(storage.mutable_data(), 0, nbytes);
  return storage;
}

void Store::grow(const c10::Storage& storage, const rec::TensorT& t) const {
  const StorageInfo* info = trace_.storage(t.storage, t.generation);
  if (!info || info->record.nbytes <= storage.nbytes()) return;
  c10::Storage larger = blank(t, info->record.nbytes);
  if (storage.nbytes()) std::memcpy(larger.mutable_data(), storage.data(), storage.nbytes());
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(larger.set_data_ptr(c10::DataPtr(nullptr, storage.device())));
  impl->set_nbytes(info->record.nbytes);
}

c10::Storage Store::enter(const rec::TensorT& t) {
  const StorageInfo* info = trace_.storage(t.storage, t.generation);
  if (!info || !info->record.entered)
    throw Error(ErrorKind::kCorrupt,
                fmt::format("storage {} is read before anything makes it: an undeclared read, so the trace is not a program",
                            t.storage));
  c10::Storage storage = blank(t, info->record.nbytes);
  if (info->init.state == rec::DigestState::Known) {
    if (!trace_.has_blob(info->init.digest))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("the trace does not keep the bytes that storage {} had at the start; record with "
                              "keep=\"state\" to replay", t.storage));
    const auto bytes = trace_.blob(info->init.digest);
    if (bytes.size() != info->record.nbytes)
      throw Error(ErrorKind::kCorrupt, fmt::format("storage {} has {} bytes and {} are kept", t.storage, info->record.nbytes, bytes.size()));
    std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
    ++reads.declared;
  } else if (info->init.state != rec::DigestState::NeverWritten) {
    partial_[key(t)];
  }
  return storage;
}

at::Tensor Store::tensor(const rec::TensorT& t) {
  if (t.storage == 0 || t.layout != rec::Layout::Strided)
    throw Error(ErrorKind::kUnsupported, "a tensor without memory of its own (meta, sparse, a wrapper subclass)");
  auto it = live_.find(key(t));
  if (it == live_.end()) {
    // resize_ leaves the storage and makes a new generation of it.
    const auto before = t.generation ? live_.find({t.storage, t.generation - 1}) : live_.end();
    it = live_.emplace(key(t), before != live_.end() ? before->second : enter(t)).first;
    if (before != live_.end()) grow(it->second, t);
  }
  at::Tensor tensor = over(it->second, t);
  if (const auto p = partial_.find(key(t)); p != partial_.end() && t.before_state == rec::DigestState::Known)
    bring(p->second, t, tensor);
  return tensor;
}

void Store::bring(Partial& partial, const rec::TensorT& t, const at::Tensor& tensor) {
  if (!partial.brought.insert({t.offset, t.sizes, t.strides}).second) return;
  if (partial.written || !trace_.has_blob(t.before))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("the trace keeps {} this part of storage {} (it is large, and was read in parts); record with "
                            "keep=\"state\", and the whole of it used in the recorded block, to replay",
                            partial.written ? "no initial bytes of" : "no bytes of", t.storage));
  scatter(trace_.blob(t.before), tensor);
  ++reads.declared;
}

void Store::wrote(const Key& k) {
  if (const auto p = partial_.find(k); p != partial_.end()) p->second.written = true;
}

void Store::adopt(const rec::TensorT& t, const at::Tensor& actual) { live_[key(t)] = actual.storage(); }

void Store::restore(const rec::TensorT& t, const Digest& digest) { scatter(trace_.blob(digest), over(live_.at(key(t)), t)); }

void Store::carry(const rec::TensorT& t, const Digest& digest) {
  if (!live(key(t))) {
    const StorageInfo* info = trace_.storage(t.storage, t.generation);
    live_.emplace(key(t), blank(t, std::max<std::size_t>(info ? info->record.nbytes : 0, bytes_needed(t))));
  }
  restore(t, digest);
  ++reads.carried;
}

void Store::set_doubtful(const Key& k, bool doubtful) {
  if (doubtful)
    doubtful_.insert(k);
  else
    doubtful_.erase(k);
}

void Store::release(std::uint64_t ticket, const std::set<std::uint64_t>& keep) {
  for (; released_ < by_last_use_.size() && by_last_use_[released_].first < ticket; ++released_) {
    const Key& k = by_last_use_[released_].second;
    if (!keep.count(k.first)) live_.erase(k);
  }
}

}  // namespace step_oracle::program
