#include "csrc/record/trace/check.h"

#include <flatbuffers/minireflect.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "csrc/kernels/core/error.h"

namespace step_oracle::check {
namespace {

constexpr flatbuffers::uoffset_t kMaxDepth = 40, kMaxTables = 8u << 20;
constexpr std::uint64_t kGrowth = 16;  // what honest records stay far below: nothing in them is shared but vtables

// Counts the bytes that the records take when every offset is followed, and stops where they are too many.
class Expansion : public flatbuffers::IterationVisitor {
 public:
  explicit Expansion(std::uint64_t budget) : left_(budget) {}
  void StartSequence() override { spend(16); }
  void Field(std::size_t, std::size_t, flatbuffers::ElementaryType, bool, const flatbuffers::TypeTable*, const char*,
             const std::uint8_t* value) override {
    if (value) spend(8);
  }
  void Element(std::size_t, flatbuffers::ElementaryType, const flatbuffers::TypeTable*, const std::uint8_t*) override {
    spend(8);
  }
  void String(const flatbuffers::String* s) override { spend(s->size()); }

 private:
  void spend(std::uint64_t n) {
    if (n > left_) corrupt("records that share their parts over and over");
    left_ -= n;
  }
  std::uint64_t left_;
};

template <class E>
bool known_enum(E value, E last) {
  return static_cast<unsigned>(value) <= static_cast<unsigned>(last);
}

void digest_state(rec::DigestState s, const std::string& where) {
  if (!known_enum(s, rec::DigestState::Pending))
    corrupt(fmt::format("{}: digest state {}", where, static_cast<int>(s)));
}

// The last element that the geometry reaches, in elements from the storage's start; false where that overflows or is
// negative.
bool reach(const rec::TensorT& t, std::int64_t& low, std::int64_t& high) {
  low = high = t.offset;
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    std::int64_t span = 0;
    if (__builtin_mul_overflow(t.sizes[d] - 1, t.strides[d], &span)) return false;
    if (__builtin_add_overflow(span < 0 ? low : high, span, span < 0 ? &low : &high)) return false;
  }
  return low >= 0;
}

void value(const rec::ValueT& v, std::size_t tensors, std::size_t depth, const std::string& where) {
  using K = rec::ValueKind;
  if (!known_enum(v.kind, K::Unknown)) corrupt(fmt::format("{}: a value of kind {}", where, static_cast<int>(v.kind)));
  if (depth > kMaxNesting) corrupt(fmt::format("{}: lists nested deeper than {}", where, kMaxNesting));
  if (v.kind == K::Tensor && (v.i < 0 || static_cast<std::uint64_t>(v.i) >= tensors))
    corrupt(fmt::format("{}: tensor {} of {}", where, v.i, tensors));
  if (v.kind == K::Bool && v.i != 0 && v.i != 1) corrupt(fmt::format("{}: a bool of {}", where, v.i));
  if (v.kind == K::DType && (v.i < 0 || v.i > 255 || !rec::size_of(static_cast<rec::DType>(v.i))))
    corrupt(fmt::format("{}: dtype {}", where, v.i));
  if (v.kind != K::List && !v.list.empty()) corrupt(fmt::format("{}: a list in a value that is none", where));
  for (const auto& item : v.list) value(*item, tensors, depth + 1, where);
}

}  // namespace

void corrupt(const std::string& what) { throw Error(ErrorKind::kCorrupt, what); }

const rec::Records* verified(frame::View payload, std::uint64_t number) {
  flatbuffers::Verifier::Options options;
  options.max_depth = kMaxDepth;
  options.max_tables = kMaxTables;
  flatbuffers::Verifier verifier(payload.data(), payload.size(), options);
  if (!rec::VerifyRecordsBuffer(verifier)) corrupt(fmt::format("frame {} does not hold well-formed records", number));
  Expansion expansion(kGrowth * payload.size() + (64 << 10));
  flatbuffers::IterateFlatBuffer(payload.data(), rec::RecordsTypeTable(), &expansion);
  return rec::GetRecords(payload.data());
}

void storage(const rec::StorageT& s, Storages& known) {
  if (s.id == 0) corrupt("a storage has id 0");
  if (s.nbytes >> 62) corrupt(fmt::format("storage {} has {} bytes", s.id, s.nbytes));
  if (!known.emplace(std::pair(s.id, s.generation), s.nbytes).second)
    corrupt(fmt::format("storage {} generation {} is declared twice", s.id, s.generation));
}

void tensor(const rec::TensorT& t, const Storages& known, const std::string& where) {
  digest_state(t.before_state, where);
  digest_state(t.after_state, where);
  if (!rec::size_of(t.dtype)) corrupt(fmt::format("{}: dtype {}", where, static_cast<int>(t.dtype)));
  if (!known_enum(t.layout, rec::Layout::Jagged))
    corrupt(fmt::format("{}: layout {}", where, static_cast<int>(t.layout)));
  if (t.sizes.size() > kMaxDims) corrupt(fmt::format("{}: {} dimensions", where, t.sizes.size()));
  const std::int64_t n = rec::numel(t.sizes);
  if (n < 0) corrupt(fmt::format("{}: sizes [{}] are negative or overflow", where, fmt::join(t.sizes, ", ")));
  if (t.layout != rec::Layout::Strided) return;
  if (t.storage == 0) {
    if (t.before_state == rec::DigestState::Known || t.after_state == rec::DigestState::Known)
      corrupt(fmt::format("{}: a digest of a tensor without a storage", where));
    return;
  }
  if (t.sizes.size() != t.strides.size())
    corrupt(fmt::format("{}: {} sizes and {} strides", where, t.sizes.size(), t.strides.size()));
  const auto at = known.find({t.storage, t.generation});
  if (at == known.end())
    corrupt(fmt::format("{}: storage {} generation {} is not declared", where, t.storage, t.generation));
  if (t.before_state != rec::DigestState::Known && t.after_state != rec::DigestState::Known) return;
  if (t.dtype == rec::DType::QUInt4x2 || t.dtype == rec::DType::QUInt2x4) return;  // several elements a byte
  std::int64_t low = 0, high = 0;
  const auto item = static_cast<std::uint64_t>(rec::size_of(t.dtype));
  if (n > 0 && (!reach(t, low, high) || static_cast<std::uint64_t>(high) >= at->second / item))
    corrupt(fmt::format("{}: sizes [{}], strides [{}], offset {} of {} reach outside a storage of {} bytes", where,
                        fmt::join(t.sizes, ", "), fmt::join(t.strides, ", "), t.offset, rec::name_of(t.dtype),
                        at->second));
}

void op(const rec::OpT& op, const Storages& known) {
  const std::string where = fmt::format("op {} ({})", op.ticket, rec::display_name(op));
  if (op.name.empty()) corrupt(where + " has no name");
  if (!known_enum(op.phase, rec::Phase::Recompute))
    corrupt(fmt::format("{}: phase {}", where, static_cast<int>(op.phase)));
  for (std::size_t i = 0; i < op.tensors.size(); ++i)
    tensor(*op.tensors[i], known, fmt::format("{}, tensor {}", where, i));
  for (const auto& v : op.args) value(*v, op.tensors.size(), 0, where);
  for (const auto& v : op.returns) value(*v, op.tensors.size(), 0, where);
  for (const auto& g : op.generators)
    if (g->before.size() > 16 || g->after.size() > 16) corrupt(where + ": a generator state longer than 16 bytes");
}

void name(const rec::NameT& n, const Storages& known) {
  const std::string where = fmt::format("the name '{}'", n.name);
  if (!known_enum(n.role, rec::NameRole::Loss)) corrupt(fmt::format("{}: role {}", where, static_cast<int>(n.role)));
  if (n.tensor) tensor(*n.tensor, known, where);
  if (n.value) value(*n.value, 0, 0, where);
}

void init(const rec::StorageInitT& i, const Storages& known) {
  const std::string where = fmt::format("the initial bytes of storage {} generation {}", i.id, i.generation);
  digest_state(i.state, where);
  if (!known.contains({i.id, i.generation})) corrupt(where + ": the storage is not declared");
}

void environment(const rec::EnvironmentT& e) {
  if (!known_enum(e.keep, rec::Keep::All)) corrupt(fmt::format("keep mode {}", static_cast<int>(e.keep)));
}

void event(const rec::EventT& e) {
  if (!known_enum(e.kind, rec::EventKind::NotSeen))
    corrupt(fmt::format("an event of kind {}", static_cast<int>(e.kind)));
}

}  // namespace step_oracle::check
