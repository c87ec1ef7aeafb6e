// The storages of a running program: made when first used, kept as long as their last use, known by the trace's ids.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

// Reads from the recording, counted: a verifier never reads the answer from it.
struct Reads {
  std::uint64_t declared = 0;  // initial contents of storages that existed before the program began, generator states
  std::uint64_t inputs = 0;    // op-local: inputs put back after a mismatch, so that the next op is judged by itself
  std::uint64_t carried = 0;   // results of ops that step-oracle does not compute (the host's, races)
};

class Store {
 public:
  explicit Store(const Trace& trace);

  using Key = std::pair<std::uint64_t, std::uint32_t>;  // storage id, generation
  static Key key(const rec::TensorT& t) { return {t.storage, t.generation}; }

  // The recorded tensor over its live storage. Brings in a storage that entered the program (a declared read). Throws
  // Error for a storage that the program neither made nor declares, or whose bytes the trace does not keep.
  at::Tensor tensor(const rec::TensorT& t);
  bool live(const Key& k) const { return live_.count(k) != 0; }
  const c10::Storage& storage(const Key& k) const { return live_.at(k); }
  // A result of the program: its storage is the recorded id's from here on.
  void adopt(const rec::TensorT& t, const at::Tensor& actual);
  // A large storage that is not here as a whole.
  bool partial(const Key& k) const { return partial_.count(k) != 0; }
  // The program has written the storage: what of it the recording keeps part by part is read no more.
  void wrote(const Key& k);
  // Overwrites the recorded tensor's elements with the bytes of a digest that the trace keeps.
  void restore(const rec::TensorT& t, const Digest& digest);
  // Makes a storage for a result that was not computed, zero-filled, and restores it.
  void carry(const rec::TensorT& t, const Digest& digest);

  // A storage whose bytes are not the recorded ones (after a mismatch, or an op that is not modelled).
  void set_doubtful(const Key& k, bool doubtful);
  bool doubtful(const Key& k) const { return doubtful_.count(k) != 0; }

  // Forgets the storages whose last use is before `ticket`, except those whose ids `keep` names. Tickets only go up.
  void release(std::uint64_t ticket, const std::set<std::uint64_t>& keep);

  Reads reads;

 private:
  c10::Storage enter(const rec::TensorT& t);
  c10::Storage blank(const rec::TensorT& t, std::size_t nbytes) const;
  // A large storage, of which the trace keeps the parts that the program reads and not the whole.
  struct Partial {
    using Part = std::tuple<std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;  // offset, sizes, strides
    std::set<Part> brought;
    bool written = false;  // by the program
  };
  void bring(Partial& partial, const rec::TensorT& t, const at::Tensor& tensor);
  // An out= op that resizes its argument is recorded with the size that it gave it.
  void grow(const c10::Storage& storage, const rec::TensorT& t) const;

  const Trace& trace_;
  std::map<Key, c10::Storage> live_;
  std::set<Key> doubtful_;
  std::map<Key, Partial> partial_;
  std::vector<std::pair<std::uint64_t, Key>> by_last_use_;
  std::size_t released_ = 0;  // of by_last_use_
};

// The digest of a tensor of this process (CPU or virtual card), over its logical bytes.
Digest digest_of(const at::Tensor& t);

}  // namespace step_oracle::program
