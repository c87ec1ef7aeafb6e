#include "csrc/record/capture/op_info.h"

#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include <ATen/core/enum_tag.h>

namespace step_oracle::capture {
namespace {

// Arguments that an op writes and whose schema does not say so [reference: torch 2.13 native_functions.yaml, kernels of
// aten/src/ATen/native/Normalization.cpp]. In training mode batch norm updates running_mean and running_var.
struct UndeclaredWrites {
  std::string_view name;
  std::uint8_t first, count;
};
constexpr UndeclaredWrites kUndeclared[] = {
    {"aten::native_batch_norm", 3, 2},
    {"aten::cudnn_batch_norm", 3, 2},
    {"aten::miopen_batch_norm", 3, 2},
    {"aten::_batch_norm_impl_index", 3, 2},
    {"aten::batch_norm_update_stats", 1, 2},
    {"aten::batch_norm_gather_stats", 3, 2},
    {"aten::batch_norm_gather_stats_with_counts", 3, 2},
    {"aten::rrelu_with_noise", 1, 1},
};

// c10d ops return a Work and declare no write. Which arguments are outputs, by position.
struct CollectiveWrites {
  std::string_view name;
  int output;  // argument index; -1: none
};
constexpr CollectiveWrites kCollectives[] = {
    {"c10d::allreduce_", 0},          {"c10d::allreduce_coalesced_", 0},
    {"c10d::broadcast_", 0},          {"c10d::reduce_", 0},
    {"c10d::allgather_", 0},          {"c10d::_allgather_base_", 0},
    {"c10d::allgather_coalesced_", 0}, {"c10d::allgather_into_tensor_coalesced_", 0},
    {"c10d::reduce_scatter_", 0},     {"c10d::_reduce_scatter_base_", 0},
    {"c10d::reduce_scatter_tensor_coalesced_", 0}, {"c10d::gather_", 0},
    {"c10d::scatter_", 0},            {"c10d::alltoall_", 0},
    {"c10d::alltoall_base_", 0},      {"c10d::recv_", 0},
    {"c10d::recv_any_source_", 0},    {"c10d::send", -1},
    {"c10d::barrier", -1},            {"c10d::monitored_barrier_", -1},
    {"c10d::check_for_nan", -1},
};

// Ops whose results are memory that nobody has written.
constexpr std::string_view kEmpty[] = {
    "aten::empty",         "aten::empty_like",         "aten::empty_strided",     "aten::empty_permuted",
    "aten::new_empty",     "aten::new_empty_strided",  "aten::empty_quantized",   "aten::_empty_affine_quantized",
    "aten::_empty_per_channel_affine_quantized",
};

// Results that hold a generator's state only where dropout is drawn, and noise otherwise: numbers among the tensors that
// the op returns (undefined ones and numbers left out).
struct Unfilled {
  std::string_view name;
  std::vector<std::uint8_t> results;
  std::vector<std::uint8_t> never = {};  // noise always
};
const Unfilled kUnfilled[] = {
    {"aten::_scaled_dot_product_efficient_attention", {2, 3}},
    {"aten::_scaled_dot_product_flash_attention", {2}, {3}},
    {"aten::_scaled_dot_product_cudnn_attention", {2, 3}},
};

// In-place ops that do not read what they overwrite (besides every out= overload).
constexpr std::string_view kOverwrites[] = {
    "aten::fill_",       "aten::zero_",        "aten::copy_",          "aten::normal_",     "aten::uniform_",
    "aten::bernoulli_",  "aten::exponential_", "aten::cauchy_",        "aten::log_normal_", "aten::geometric_",
    "aten::random_",     "aten::_foreach_copy_", "aten::_foreach_zero_", "aten::_philox_normal_", "aten::eye_",
    "aten::_philox_uniform_",
};

template <class List>
bool contains(const List& list, std::string_view name) {
  for (const auto& item : list)
    if (item == name) return true;
  return false;
}

std::unique_ptr<OpInfo> make(const c10::OperatorHandle& op) {
  auto info = std::make_unique<OpInfo>();
  const auto& schema = op.schema();
  info->name = schema.name();
  info->overload = schema.overload_name();
  info->arguments = schema.arguments().size();
  info->returns = schema.returns().size();
  bool any_out = false;
  for (const auto& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    info->writes.push_back(writes);
    info->any_write |= writes;
    any_out |= argument.is_out();
  }
  const auto mark = [&](std::size_t first, std::size_t count) {
    info->undeclared.resize(info->arguments);
    for (std::size_t i = first; i < first + count && i < info->arguments; ++i) info->undeclared[i] = !info->writes[i];
  };
  for (const auto& u : kUndeclared)
    if (u.name == info->name) mark(u.first, u.count);
  const std::string_view name = info->name;
  info->passive = name.starts_with("profiler::");
  if (name.starts_with("c10d::")) {
    info->collective = true;
    bool known = false;
    for (const auto& c : kCollectives)
      if (c.name == name) {
        known = true;
        if (c.output >= 0) mark(static_cast<std::size_t>(c.output), 1);
      }
    if (!known) mark(0, info->arguments);  // a new one: every argument may be an output
  }
  info->functional_collective = name.starts_with("_c10d_functional::");
  info->wait_tensor = name == "_c10d_functional::wait_tensor";
  info->geometry_only = op.hasTag(at::Tag::inplace_view);
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    info->view |= alias != nullptr && !alias->isWrite();
  }
  // These alias, and their schemas do not say so.
  info->view |= name == "aten::_unsafe_view" || name == "_c10d_functional::_wrap_tensor_autograd" || info->geometry_only;
  info->fills_views = name == "fsdp::all_gather_copy_in";
  info->composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  info->overwrites = any_out || contains(kOverwrites, name);
  // The tag is missing on _philox_normal_ and _philox_uniform_ in torch 2.13.
  info->random = op.hasTag(at::Tag::nondeterministic_seeded) || name.starts_with("aten::_philox_");
  if (contains(kEmpty, name)) info->fills = Fills::kNo;
  for (const auto& u : kUnfilled)
    if (u.name == name) {
      info->fills = Fills::kByFlags;
      info->unfilled = u.results;
      info->never_filled = u.never;
    }
  return info;
}

struct Table {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<OpInfo>> by_schema;
  std::vector<std::unique_ptr<OpInfo>> retired;
};

}  // namespace

const OpInfo& info_of(const c10::OperatorHandle& op) {
  static Table& table = *new Table;  // never destroyed: ops run until the process ends
  struct Recent {
    const void* key = nullptr;
    const OpInfo* info = nullptr;
  };
  static thread_local Recent recent[256];
  const void* key = &op.schema();
  auto& slot = recent[(reinterpret_cast<std::uintptr_t>(key) >> 6) & 255];
  const auto fits = [&](const OpInfo& info) {
    return info.name == op.operator_name().name && info.overload == op.operator_name().overload_name;
  };
  if (slot.key == key && fits(*slot.info)) return *slot.info;
  std::lock_guard lock(table.mutex);
  auto& entry = table.by_schema[key];
  if (entry && !fits(*entry)) table.retired.push_back(std::move(entry));
  if (!entry) entry = make(op);
  slot = {key, entry.get()};
  return *entry;
}

}  // namespace step_oracle::capture
