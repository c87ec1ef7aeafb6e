// What a trace says of an op (where it ran, what it may leave unwritten), and whether it is a program at all.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "csrc/record/trace/reader.h"

namespace step_oracle::program {

bool on_card(const std::string& device);
bool same_geometry(const rec::TensorT& a, const rec::TensorT& b);
// The indices of the tensors in a value.
void each_tensor(const rec::ValueT& v, const std::function<void(std::size_t)>& see);
// By the arguments that the op is called with: what else the record lists decides nothing.
bool is_host_op(const rec::OpT& op);
// Only such an op may be carried: what the card holds is computed, or is not verified.
bool stays_on_host(const rec::OpT& op);
// Results that the recorder may call never written: what these ops return is memory that nobody wrote, or (attention)
// a generator's state where no dropout is drawn.
bool leaves_noise(const rec::OpT& op);

// Throws Error for a trace that a replay cannot run: recorded on the CPU, not complete, bytes not kept.
void refuse_what_is_no_program(const Trace& trace);

}  // namespace step_oracle::program
