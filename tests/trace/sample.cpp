#include "tests/trace/sample.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace step_oracle::test {
namespace {

class Sample {
 public:
  Sample(TraceWriter& writer, const SampleOptions& options)
      : writer_(writer), options_(options), random_(options.seed) {}

  void run() {
    auto& x = storage(4 * 8, true);
    auto& w = storage(16 * 8, true);
    auto& step = storage(1, true);
    names(rec::Moment::Start, w);
    for (int s = 0; s < options_.steps; ++s) {
      event(rec::EventKind::StepBegin, "step " + std::to_string(s));
      step_of(x, w, step);
      event(rec::EventKind::StepEnd, "step " + std::to_string(s));
      writer_.flush();
    }
    names(rec::Moment::End, w);
  }

 private:
  struct Memory {
    std::uint64_t id;
    std::vector<float> values;
  };

  Memory& storage(std::size_t count, bool entered) {
    auto& m = memory_.emplace_back(std::make_unique<Memory>(Memory{memory_.size() + 1, std::vector<float>(count)}));
    if (entered) fill(*m);
    rec::StorageT record;
    record.id = m->id;
    record.device = "cpu";
    record.nbytes = count * 4;
    record.first_seen = ticket_;
    record.entered = entered;
    writer_.add(record);
    if (entered) {
      rec::StorageInitT init;
      init.id = m->id;
      init.state = rec::DigestState::Known;
      init.digest = digest(*m);
      if (options_.keep_blobs) writer_.blob(init.digest, m->values.data(), count * 4);
      writer_.add(init);
    }
    return *m;
  }

  void fill(Memory& m) {
    std::uniform_real_distribution<float> draw(-1, 1);
    for (float& v : m.values) v = draw(random_);
  }

  static Digest digest(const Memory& m) { return blake3(m.values.data(), m.values.size() * 4); }

  std::unique_ptr<rec::TensorT> tensor(const Memory& m, std::vector<std::int64_t> sizes, bool created = false) {
    auto t = std::make_unique<rec::TensorT>();
    t->storage = m.id;
    t->device = "cpu";
    t->dtype = rec::DType::Float32;
    t->sizes = std::move(sizes);
    t->strides.resize(t->sizes.size());
    std::int64_t stride = 1;
    for (std::size_t d = t->sizes.size(); d-- > 0;) {
      t->strides[d] = stride;
      stride *= t->sizes[d];
    }
    t->created = created;
    (created ? t->after : t->before) = digest(m);
    (created ? t->after_state : t->before_state) = rec::DigestState::Known;
    return t;
  }

  rec::OpT op(const char* name, const char* overload, rec::Phase phase) {
    rec::OpT o;
    o.ticket = ticket_++;
    o.name = name;
    o.overload = overload;
    o.phase = phase;
    o.module_ = "model.fc";
    o.scope = "train.py:12";
    writer_.add(rec::SchemaT{{}, rec::schema_key(o), std::string(name) + "(Tensor self) -> Tensor"});
    return o;
  }

  void step_of(Memory& x, Memory& w, Memory& step) {
    auto mm = op("aten::mm", "", rec::Phase::Forward);
    auto& y = storage(4 * 16, false);
    fill(y);
    mm.sequence = static_cast<std::int64_t>(mm.ticket);
    mm.tensors.push_back(tensor(x, {4, 8}));
    mm.tensors.push_back(tensor(w, {8, 16}));
    mm.tensors.push_back(tensor(y, {4, 16}, true));
    for (std::size_t i : {0, 1}) mm.args.push_back(rec::tensor_value(i));
    mm.returns.push_back(rec::tensor_value(2));
    const auto sequence = mm.sequence;
    writer_.add(std::move(mm));

    auto drop = op("aten::bernoulli_", "float", rec::Phase::Forward);
    auto target = tensor(y, {4, 16});
    target->mutated = true;
    fill(y);
    target->after = digest(y);
    target->after_state = rec::DigestState::Known;
    drop.tensors.push_back(std::move(target));
    drop.args.push_back(rec::tensor_value(0));
    drop.args.push_back(rec::float_value(-0.0));
    drop.args.push_back(rec::text_value(rec::ValueKind::Generator, "cpu"));
    std::vector<rec::ValuePtr> list;
    list.push_back(rec::int_value(-7));
    list.push_back(rec::bool_value(true));
    list.push_back(rec::complex_value(1.5, -2.5));
    list.push_back(rec::enum_value(rec::ValueKind::DType, 6));
    drop.args.push_back(rec::list_value(std::move(list)));
    drop.returns.push_back(rec::tensor_value(0));
    auto g = std::make_unique<rec::GeneratorUseT>();
    g->device = "cpu";
    g->before.assign(16, static_cast<std::uint8_t>(ticket_));
    g->after.assign(16, static_cast<std::uint8_t>(ticket_ + 1));
    drop.generators.push_back(std::move(g));
    writer_.add(std::move(drop));

    auto sgd = op("aten::add_", "Tensor", rec::Phase::Optimizer);
    auto p = tensor(w, {8, 16});
    p->mutated = true;
    fill(w);
    p->after = digest(w);
    p->after_state = rec::DigestState::Known;
    sgd.node = "AddmmBackward0";
    sgd.node_sequence = sequence;
    sgd.tensors.push_back(std::move(p));
    sgd.tensors.push_back(tensor(step, {}));
    for (std::size_t i : {0, 1}) sgd.args.push_back(rec::tensor_value(i));
    sgd.returns.push_back(rec::tensor_value(0));
    writer_.add(std::move(sgd));
    if (options_.collective) all_reduce(w);
    writer_.add(rec::FreedT{{}, y.id, ticket_});
  }

  void all_reduce(Memory& w) {
    auto launch = op("c10d::allreduce_", "", rec::Phase::Backward);
    auto t = tensor(w, {8, 16});
    t->mutated = true;
    t->after_state = rec::DigestState::Pending;
    launch.tensors.push_back(std::move(t));
    launch.collective = std::make_unique<rec::CollectiveT>();
    launch.collective->kind = "allreduce";
    launch.collective->ranks = {0, 1};
    launch.collective->bucket = 0;
    launch.collective->bucket_sizes = {128};
    rec::SettledT done;
    done.op = launch.ticket;
    done.ticket = ticket_;
    fill(w);
    auto u = std::make_unique<rec::SettledTensorT>();
    u->after = digest(w);
    u->state = rec::DigestState::Known;
    done.tensors.push_back(std::move(u));
    writer_.add(std::move(launch));
    writer_.add(std::move(done));
    rec::PlanT plan;
    plan.op = done.op;
    plan.library = "cublaslt";
    plan.line = "algo 21 tile 20";
    writer_.add(std::move(plan));
  }

  void names(rec::Moment moment, const Memory& w) {
    rec::NamesT n;
    n.moment = moment;
    auto entry = std::make_unique<rec::NameT>();
    entry->name = "fc.weight";
    entry->tensor = tensor(w, {8, 16}, moment == rec::Moment::End);
    n.entries.push_back(std::move(entry));
    writer_.add(std::move(n));
  }

  void event(rec::EventKind kind, std::string text) {
    rec::EventT e;
    e.ticket = ticket_;
    e.kind = kind;
    e.text = std::move(text);
    writer_.add(std::move(e));
  }

  TraceWriter& writer_;
  const SampleOptions options_;
  std::mt19937_64 random_;
  std::uint64_t ticket_ = 1;
  std::vector<std::unique_ptr<Memory>> memory_;
};

}  // namespace

rec::EnvironmentT sample_environment() {
  rec::EnvironmentT e;
  e.recorder = "0.1.0";
  e.device = "cpu";
  e.torch = "2.13.0";
  e.host_isa = "AVX2";
  e.threads = 2;
  e.keep = rec::Keep::State;
  e.argv = {"train.py", "--steps", "3"};
  auto card = std::make_unique<rec::CardT>();
  card->name = "h100-pcie";
  card->sms = 114;
  card->threads_per_sm = 2048;
  card->cc_major = 9;
  e.cards.push_back(std::move(card));
  auto tf32 = std::make_unique<rec::FieldT>();
  tf32->key = "allow_tf32";
  tf32->value = "false";
  e.switches.push_back(std::move(tf32));
  return e;
}

void write_sample(TraceWriter& writer, const SampleOptions& options) { Sample(writer, options).run(); }

void close_sample(TraceWriter& writer) {
  rec::EndT end;
  end.complete = true;
  writer.close(std::move(end));
}

namespace {

struct Folder {
  pid_t owner = ::getpid();
  // Thousands of small files: in memory where the system offers it.
  std::filesystem::path path =
      (std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()) /
      std::filesystem::path("step_oracle_trace_" + std::to_string(owner));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() {
    std::error_code ignored;
    if (::getpid() == owner) std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::string temporary_path(const std::string& name) {
  static const Folder folder;
  return (folder.path / name).string();
}

std::string sample_file(const std::string& name, const SampleOptions& options) {
  const auto path = temporary_path(name);
  WriterOptions small;
  small.batch = 4;  // several frames, so that there are some to cut and to swap
  small.flush_ms = 1000;
  TraceWriter writer(path, sample_environment(), small);
  write_sample(writer, options);
  close_sample(writer);
  return path;
}

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace step_oracle::test
