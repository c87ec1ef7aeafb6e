#include "csrc/record/capture/bind_recording.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

#include "csrc/kernels/core/error.h"
#include "csrc/record/capture/interposer.h"
#include "csrc/record/capture/torch_compat.h"

namespace py = pybind11;
using namespace step_oracle;
using namespace step_oracle::capture;

namespace {

rec::EnvironmentT environment_of(const py::dict& d) {
  rec::EnvironmentT e;
  const auto text = [&](const char* key, std::string& to) {
    if (d.contains(key)) to = py::cast<std::string>(d[key]);
  };
  const auto number = [&](const char* key, auto& to) {
    if (d.contains(key)) to = py::cast<std::remove_reference_t<decltype(to)>>(d[key]);
  };
  text("recorder", e.recorder);
  text("device", e.device);
  text("driver", e.driver);
  text("cuda", e.cuda);
  text("cublas", e.cublas);
  text("cublaslt", e.cublaslt);
  text("cudnn", e.cudnn);
  text("nccl", e.nccl);
  text("torch", e.torch);
  text("torch_commit", e.torch_commit);
  text("python", e.python);
  text("host_isa", e.host_isa);
  text("cpu", e.cpu);
  number("threads", e.threads);
  number("interop_threads", e.interop_threads);
  number("pid", e.pid);
  number("rank", e.rank);
  number("world", e.world);
  number("created", e.created);
  if (d.contains("argv")) e.argv = py::cast<std::vector<std::string>>(d["argv"]);
  if (d.contains("switches"))
    for (const auto& [key, value] : py::cast<py::dict>(d["switches"])) {
      auto field = std::make_unique<rec::FieldT>();
      field->key = py::cast<std::string>(key);
      field->value = py::cast<std::string>(value);
      e.switches.push_back(std::move(field));
    }
  if (d.contains("cards"))
    for (const auto& item : py::cast<py::list>(d["cards"])) {
      const auto c = py::cast<py::dict>(item);
      auto card = std::make_unique<rec::CardT>();
      card->index = py::cast<int>(c["index"]);
      card->name = py::cast<std::string>(c["name"]);
      card->sms = py::cast<int>(c["sms"]);
      card->threads_per_sm = py::cast<int>(c["threads_per_sm"]);
      card->cc_major = py::cast<int>(c["cc_major"]);
      card->cc_minor = py::cast<int>(c["cc_minor"]);
      card->memory = py::cast<std::uint64_t>(c["memory"]);
      if (c.contains("ecc")) card->ecc = static_cast<std::int8_t>(py::cast<int>(c["ecc"]));
      if (c.contains("mig")) card->mig = static_cast<std::int8_t>(py::cast<int>(c["mig"]));
      e.cards.push_back(std::move(card));
    }
  return e;
}

Keep keep_of(const std::string& name) {
  if (name == "digests") return Keep::kDigests;
  if (name == "state") return Keep::kState;
  if (name == "all") return Keep::kAll;
  throw Error(ErrorKind::kBadInput, "keep='" + name + "' is not known: give 'digests', 'state' or 'all'.");
}

py::dict summary_of(const Summary& s) {
  py::dict d;
  d["ops"] = s.ops;
  d["digests"] = s.digests;
  d["card_launches"] = s.card_launches;
  d["bytes_digested"] = s.hashed;
  d["storages"] = s.storages;
  d["file_bytes"] = s.file_bytes;
  d["seconds"] = s.seconds;
  d["overhead_seconds"] = s.overhead_seconds;
  d["complete"] = s.complete;
  d["reason"] = s.reason;
  d["waits"] = s.waits;
  d["ops_without_bytes"] = s.fakes;
  return d;
}

py::dict tensor_of(const rec::TensorT& t) {
  const auto digest = [](const Digest& d, rec::DigestState state) -> py::object {
    if (state == rec::DigestState::Known) return py::str(d.hex());
    return py::none();
  };
  py::dict d;
  d["storage"] = t.storage;
  d["generation"] = t.generation;
  d["version"] = t.version;
  d["device"] = t.device;
  d["dtype"] = rec::name_of(t.dtype);
  d["sizes"] = t.sizes;
  d["strides"] = t.strides;
  d["before"] = digest(t.before, t.before_state);
  d["before_state"] = rec::name_of(t.before_state);
  d["after"] = digest(t.after, t.after_state);
  d["after_state"] = rec::name_of(t.after_state);
  d["mutated"] = t.mutated;
  d["undeclared"] = t.undeclared;
  d["created"] = t.created;
  return d;
}

// The records of a recording into memory, for tests.
struct Shown {
  py::list ops, settled, events, names, plans;
  void operator()(const std::unique_ptr<rec::OpT>& op) {
    py::dict d;
    d["ticket"] = op->ticket;
    d["name"] = rec::display_name(*op);
    d["thread"] = op->thread;
    d["phase"] = rec::name_of(op->phase);
    d["module"] = op->module_;
    d["node"] = op->node;
    d["sequence"] = op->sequence;
    d["node_sequence"] = op->node_sequence;
    d["error"] = op->error;
    py::list tensors, generators;
    for (const auto& t : op->tensors)
      if (t) tensors.append(tensor_of(*t));
    for (const auto& g : op->generators) {
      py::dict use;
      use["device"] = g->device;
      use["before"] = g->before_digest.hex();
      use["after"] = g->after_digest.hex();
      generators.append(use);
    }
    d["tensors"] = tensors;
    d["generators"] = generators;
    ops.append(d);
  }
  void operator()(const rec::EventT& e) {
    py::dict d;
    d["ticket"] = e.ticket;
    d["kind"] = static_cast<int>(e.kind);
    d["text"] = e.text;
    events.append(d);
  }
  void operator()(const rec::NamesT& n) {
    for (const auto& entry : n.entries)
      names.append(py::make_tuple(static_cast<int>(n.moment), entry->name,
                                  entry->tensor ? py::object(tensor_of(*entry->tensor)) : py::none()));
  }
  void operator()(const rec::SettledT& s) {
    py::list digests;
    for (const auto& t : s.tensors) digests.append(py::make_tuple(t->index, t->after.hex()));
    settled.append(py::make_tuple(s.op, s.ticket, digests));
  }
  void operator()(const rec::PlanT& p) {
    py::dict d;
    d["op"] = p.op;
    d["library"] = p.library;
    d["line"] = p.line;
    plans.append(d);
  }
  template <class Other>
  void operator()(const Other&) {}
};

py::dict shown(Recording& recording) {
  auto* sink = dynamic_cast<MemorySink*>(&recording.sink());
  if (sink == nullptr) throw Error(ErrorKind::kBadInput, "records() is for recordings into memory: load the file instead.");
  Shown show;
  for (const auto& r : sink->records) std::visit(show, r);
  py::dict d;
  d["ops"] = show.ops;
  d["events"] = show.events;
  d["names"] = show.names;
  d["settled"] = show.settled;
  d["plans"] = show.plans;
  return d;
}

rec::NameRole role_of(const std::string& name) {
  if (name == "parameter") return rec::NameRole::Parameter;
  if (name == "buffer") return rec::NameRole::Buffer;
  if (name == "optimizer") return rec::NameRole::Optimizer;
  if (name == "gradient") return rec::NameRole::Gradient;
  if (name == "input") return rec::NameRole::Input;
  if (name == "output") return rec::NameRole::Output;
  if (name == "loss") return rec::NameRole::Loss;
  throw Error(ErrorKind::kBadInput, "'" + name + "' is not a role.");
}

std::vector<Named> named_of(const py::list& entries) {
  std::vector<Named> out;
  for (const auto& item : entries) {
    const auto entry = py::cast<py::tuple>(item);
    Named named{py::cast<std::string>(entry[0]), role_of(py::cast<std::string>(entry[1])), {}, {}};
    const py::object value = entry[2];
    if (THPVariable_Check(value.ptr())) {
      named.tensor = THPVariable_Unpack(value.ptr());
    } else if (py::isinstance<py::int_>(value)) {
      named.value = c10::IValue(py::cast<std::int64_t>(value));
    } else {
      named.value = c10::IValue(py::cast<double>(value));
    }
    out.push_back(std::move(named));
  }
  return out;
}

std::shared_ptr<Recording> make(const py::object& path, const std::string& keep, const py::dict& environment,
                                bool digests, bool paranoid, int workers, bool card_digests) {
  RecordingOptions options;
  options.keep = keep_of(keep);
  options.digests = digests;
  options.paranoid = paranoid;
  options.workers = workers;
  options.card_digests = card_digests;
  auto env = environment_of(environment);
  env.keep = static_cast<rec::Keep>(options.keep);
  options.cuda = env.device == "cuda";
  options.on_card = env.device == "oracle" || env.device == "cuda";
  std::unique_ptr<Sink> sink;
  if (path.is_none()) {
    sink = std::make_unique<MemorySink>(true);
  } else {
    sink = std::make_unique<FileSink>(py::cast<std::string>(path), env);
  }
  return std::make_shared<Recording>(std::move(sink), options);
}

const std::string* name_at(std::uintptr_t handle) { return reinterpret_cast<const std::string*>(handle); }

}  // namespace

void bind_recording(py::module_& m) {
  m.attr("TORCH_VERSION") = TORCH_VERSION;
  m.def("install", &install);
  m.def("set_empty", &set_empty, "For the bench: a fallback that looks at nothing, on the calling thread.");
  m.def("watch_thread", &watch_thread);
  // BLAKE3 of CUDA tensors by the card's own kernels; None where the card cannot.
  m.def("card_digests", [](const py::list& tensors) -> py::object {
    std::string why;
    const auto cards = CardDigests::open(why);
    if (!cards) return py::none();
    std::vector<CardDigests::Asked> asked;
    for (const auto& item : tensors) {
      const at::Tensor t = THPVariable_Unpack(item.ptr());
      const StridedBytes bytes{t.const_data_ptr(), t.sizes(), t.strides(), t.itemsize()};
      const auto one = t.is_cuda() ? cards->ask(t.device().index(), bytes) : std::nullopt;
      if (!one) return py::none();
      asked.push_back(*one);
    }
    cards->flush();
    py::list out;
    for (const auto& one : asked) out.append(one.batch->wait(one.index).hex());
    return out;
  });
  m.def("card_facts", [](int device) {
    const CardFacts f = card_facts(device);
    py::dict d;
    d["ecc"] = f.ecc;
    d["mig"] = f.mig;
    d["driver_cuda"] = f.driver;
    return d;
  });
  m.def("is_running", [] { return running() != nullptr; });
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Recording, std::shared_ptr<Recording>>(m, "Recording")
      .def(py::init(&make), py::arg("path"), py::arg("keep"), py::arg("environment"), py::arg("digests") = true,
           py::arg("paranoid") = false, py::arg("workers") = 1, py::arg("card_digests") = true)
      .def("start", [](std::shared_ptr<Recording> r) { start(std::move(r)); })
      .def("detach", [](Recording& r) { return detach(r); }, NoGil())
      .def("stop", [](Recording& r) {
        Summary s;
        {
          py::gil_scoped_release no_gil;
          s = r.stop();
        }
        return summary_of(s);
      })
      .def("summary", [](const Recording& r) { return summary_of(r.summary()); })
      .def("names", [](Recording& r, bool end, const py::list& entries) {
        const auto named = named_of(entries);
        py::gil_scoped_release no_gil;
        r.names(end ? rec::Moment::End : rec::Moment::Start, named);
      })
      .def("note", [](Recording& r, const std::string& text) { r.event(rec::EventKind::Note, text); }, NoGil())
      .def("step", [](Recording& r, bool end) { r.event(end ? rec::EventKind::StepEnd : rec::EventKind::StepBegin, ""); }, NoGil())
      .def("loss", [](Recording& r, const std::string& name, const py::object& t) {
        const at::Tensor tensor = THPVariable_Unpack(t.ptr());
        py::gil_scoped_release no_gil;
        r.loss(name, tensor);
      })
      .def("module", &Recording::module)
      .def("doubt_all", &Recording::doubt_all, NoGil())
      .def("incomplete", &Recording::incomplete, NoGil())
      .def("intern", [](Recording& r, const std::string& name) { return reinterpret_cast<std::uintptr_t>(r.intern(name)); })
      .def("enter", [](Recording& r, std::uintptr_t name) { r.enter_module(name_at(name)); })
      .def("leave", [](Recording& r, std::uintptr_t name) { r.leave_module(name_at(name)); })
      .def("optimizer", &Recording::optimizer)
      .def("create_graph", &Recording::create_graph)
      .def("ddp_module", [](Recording& r, std::uintptr_t name) { r.ddp_module(name_at(name)); })
      .def("ddp_forward", &Recording::ddp_forward)
      .def("waits", [](Recording& r, const c10d::Work& work, bool begins) { r.waits(&work, begins); })
      .def("know_all", &Recording::know_all, NoGil())
      .def("records", &shown);
}
