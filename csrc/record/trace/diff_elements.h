// The first element in which two tensors differ, where the traces keep their bytes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "csrc/record/trace/diff.h"

namespace step_oracle::elements {

enum class Side { kBefore, kAfter };

// The logical bytes: the digest's blob, or cut out of the initial bytes of a storage that nothing has written.
std::optional<std::vector<std::uint8_t>> bytes_of(const Trace& trace, const rec::TensorT& t, Side side, bool unwritten);

// Fills coordinates, patterns and ulps. Returns how the values are related where there is something to say ("the same
// values in another order", "17 of 1024 elements"); empty where the bytes are not kept.
std::string compare(const Trace& a, const rec::TensorT& ta, const Trace& b, const rec::TensorT& tb, Side side,
                    bool unwritten, TraceDivergence& out);

// "float32[4, 8]"
std::string geometry(const rec::TensorT& t);
// What differs: dtype, shape, or values (with digests); empty where nothing does.
std::string difference(const rec::TensorT& ta, const rec::TensorT& tb, Side side);

}  // namespace step_oracle::elements
