#include "csrc/record/capture/bind_trace.h"

#include <pybind11/stl.h>

#include "csrc/kernels/core/error.h"
#include "csrc/record/trace/diff.h"
#include "csrc/record/trace/nan.h"
#include "csrc/record/trace/reader.h"

namespace py = pybind11;
using namespace step_oracle;

namespace {

void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const Error& e) {
    switch (e.kind()) {
      case ErrorKind::kBadInput:
        PyErr_SetString(PyExc_ValueError, e.what());
        return;
      case ErrorKind::kUnsupported:
        PyErr_SetString(PyExc_NotImplementedError, e.what());
        return;
      default:
        break;
    }
    const py::object type = py::module_::import("step_oracle").attr("StepOracleError");
    PyErr_SetString(type.ptr(), e.what());
  }
}

// Names and scopes come from anywhere: what is not UTF-8 is replaced, never an error.
py::object text(const std::string& s) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "replace"));
}

py::object digest(const Digest& d, rec::DigestState state) {
  if (state == rec::DigestState::Known) return py::str(d.hex());
  return py::none();
}

py::object value(const rec::ValueT& v) {
  using K = rec::ValueKind;
  switch (v.kind) {
    case K::Bool:
      return py::bool_(v.i != 0);
    case K::Int:
      return py::int_(v.i);
    case K::Float:
      return py::float_(rec::float_of(v));
    case K::String:
    case K::Device:
      return text(v.text);
    case K::DType:
      return py::str(rec::name_of(static_cast<rec::DType>(v.i)));
    case K::List: {
      py::list out;
      for (const auto& item : v.list) out.append(value(*item));
      return out;
    }
    default:
      break;
  }
  py::dict out;
  switch (v.kind) {
    case K::Complex:
      out["complex"] = py::make_tuple(rec::float_bits_re(v), rec::float_bits_im(v));
      break;
    case K::Layout:
      out["layout"] = v.i;
      break;
    case K::MemoryFormat:
      out["memory_format"] = v.i;
      break;
    case K::Generator:
      out["generator"] = text(v.text);
      break;
    case K::Tensor:
      out["tensor"] = v.i;
      break;
    case K::Storage:
      out["storage"] = v.i;
      break;
    case K::Unknown:
      out["unknown"] = text(v.text);
      break;
    default:
      return py::none();
  }
  return out;
}

py::list values(const std::vector<rec::ValuePtr>& list) {
  py::list out;
  for (const auto& v : list) out.append(value(*v));
  return out;
}

py::dict tensor(const rec::TensorT& t) {
  py::dict out;
  out["storage"] = t.storage;
  out["generation"] = t.generation;
  out["version"] = t.version;
  out["device"] = text(t.device);
  out["dtype"] = rec::name_of(t.dtype);
  out["layout"] = static_cast<int>(t.layout);
  out["shape"] = t.sizes;
  out["strides"] = t.strides;
  out["offset"] = t.offset;
  out["before"] = digest(t.before, t.before_state);
  out["before_state"] = rec::name_of(t.before_state);
  out["after"] = digest(t.after, t.after_state);
  out["after_state"] = rec::name_of(t.after_state);
  for (const auto& [key, flag] : {std::pair("mutated", t.mutated),
                                  {"undeclared", t.undeclared},
                                  {"created", t.created},
                                  {"wrapped_number", t.wrapped_number},
                                  {"requires_grad", t.requires_grad},
                                  {"conj", t.conj},
                                  {"neg", t.neg}})
    out[key] = flag;
  return out;
}

std::string generator_state(const std::vector<std::uint8_t>& bytes, const Digest& d) {
  if (bytes.empty()) return "blake3:" + d.hex();
  std::string out;
  for (std::uint8_t b : bytes) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

py::object collective(const rec::CollectiveT* c) {
  if (!c) return py::none();
  py::dict out;
  out["kind"] = text(c->kind);
  out["group"] = text(c->group);
  out["ranks"] = c->ranks;
  out["reduce"] = text(c->reduce);
  out["async"] = c->async;
  out["root"] = c->root;
  out["bucket"] = c->bucket;
  out["bucket_sizes"] = c->bucket_sizes;
  py::list names;
  for (const auto& n : c->bucket_parameters) names.append(text(n));
  out["bucket_parameters"] = names;
  return out;
}

py::dict short_op(const Trace& trace, std::size_t i) {
  const rec::OpT& op = trace.ops.at(i);
  py::dict out;
  out["index"] = i;
  out["op"] = text(rec::display_name(op));
  out["phase"] = rec::name_of(op.phase);
  out["module"] = text(op.module_);
  out["scope"] = text(op.scope);
  out["thread"] = op.thread;
  return out;
}

py::dict whole_op(const Trace& trace, std::size_t i) {
  const rec::OpT& op = trace.ops.at(i);
  py::dict out = short_op(trace, i);
  out["ticket"] = op.ticket;
  out["args"] = values(op.args);
  out["returns"] = values(op.returns);
  py::list tensors, generators;
  for (const auto& t : op.tensors) tensors.append(tensor(*t));
  out["tensors"] = tensors;
  for (const auto& g : op.generators) {
    py::dict use;
    use["device"] = text(g->device);
    use["before"] = generator_state(g->before, g->before_digest);
    use["after"] = generator_state(g->after, g->after_digest);
    generators.append(use);
  }
  out["generators"] = generators;
  out["sequence"] = op.sequence;
  out["node"] = text(op.node);
  out["node_sequence"] = op.node_sequence;
  out["collective"] = collective(op.collective.get());
  out["error"] = text(op.error);
  const auto schema = trace.schemas.find(rec::schema_key(op));
  out["schema"] = schema == trace.schemas.end() ? py::str("") : text(schema->second);
  return out;
}

py::dict environment(const rec::EnvironmentT& e) {
  py::dict out;
  const std::pair<const char*, const std::string*> texts[] = {
      {"recorder", &e.recorder},         {"device", &e.device}, {"driver", &e.driver},     {"cuda", &e.cuda},
      {"cublas", &e.cublas},
      {"cublaslt", &e.cublaslt},         {"cudnn", &e.cudnn},   {"nccl", &e.nccl},         {"torch", &e.torch},
      {"torch_commit", &e.torch_commit}, {"python", &e.python}, {"host_isa", &e.host_isa}, {"cpu", &e.cpu}};
  for (const auto& [key, s] : texts) out[key] = text(*s);
  py::list cards, argv;
  for (const auto& c : e.cards) {
    py::dict card;
    card["index"] = c->index;
    card["name"] = text(c->name);
    card["sms"] = c->sms;
    card["threads_per_sm"] = c->threads_per_sm;
    card["compute_capability"] = std::to_string(c->cc_major) + "." + std::to_string(c->cc_minor);
    card["memory"] = c->memory;
    card["ecc"] = static_cast<int>(c->ecc);
    card["mig"] = static_cast<int>(c->mig);
    cards.append(card);
  }
  out["cards"] = cards;
  py::dict switches;
  for (const auto& s : e.switches) switches[text(s->key)] = text(s->value);
  out["switches"] = switches;
  out["threads"] = e.threads;
  out["interop_threads"] = e.interop_threads;
  out["keep"] = e.keep == rec::Keep::Digests ? "digests" : e.keep == rec::Keep::State ? "state" : "all";
  for (const auto& a : e.argv) argv.append(text(a));
  out["argv"] = argv;
  out["pid"] = e.pid;
  out["rank"] = e.rank;
  out["world"] = e.world;
  out["created"] = e.created;
  return out;
}

py::list names(const std::vector<rec::NameT>& list) {
  py::list out;
  for (const auto& n : list) {
    py::dict row;
    row["name"] = text(n.name);
    row["role"] = rec::name_of(n.role);
    row["tensor"] = n.tensor ? py::object(tensor(*n.tensor)) : py::none();
    row["value"] = n.value ? value(*n.value) : py::none();
    out.append(row);
  }
  return out;
}

py::list storages(const Trace& trace) {
  py::list out;
  for (const auto& s : trace.storages) {
    py::dict row;
    row["id"] = s.record.id;
    row["generation"] = s.record.generation;
    row["device"] = text(s.record.device);
    row["nbytes"] = s.record.nbytes;
    row["entered"] = s.record.entered;
    row["first_seen"] = s.record.first_seen;
    row["last_use"] = s.last_use;
    row["freed_at"] = s.freed ? py::object(py::int_(s.freed_at)) : py::none();
    row["initial"] = digest(s.init.digest, s.init.state);
    row["initial_state"] = rec::name_of(s.init.state);
    out.append(row);
  }
  return out;
}

const char* name_of(rec::EventKind kind) {
  switch (kind) {
    case rec::EventKind::Note:
      return "note";
    case rec::EventKind::StepBegin:
      return "step begin";
    case rec::EventKind::StepEnd:
      return "step end";
    case rec::EventKind::Loss:
      return "loss";
    case rec::EventKind::NotSeen:
      return "not seen";
  }
  return "?";
}

py::list events(const Trace& trace) {
  py::list out;
  for (const auto& e : trace.events) {
    py::dict row;
    row["index"] = trace.op_index(e.ticket);
    row["kind"] = name_of(e.kind);
    row["text"] = text(e.text);
    if (e.kind == rec::EventKind::Loss) {
      rec::ValueT v;
      v.i = e.value;
      row["value"] = rec::float_of(v);
    }
    out.append(row);
  }
  return out;
}

py::list plans(const Trace& trace) {
  py::list out;
  for (const auto& p : trace.plans) {
    py::dict row, fields;
    row["index"] = trace.op_index(p.op);
    row["library"] = text(p.library);
    for (const auto& f : p.fields) fields[text(f->key)] = text(f->value);
    row["fields"] = fields;
    row["line"] = text(p.line);
    out.append(row);
  }
  return out;
}

py::list completions(const Trace& trace) {
  py::list out;
  for (const auto& s : trace.settled) {
    py::dict row;
    row["launch"] = trace.op_index(s.op);
    row["before_op"] = trace.op_index(s.ticket);
    py::list digests;
    for (const auto& t : s.tensors) digests.append(py::make_tuple(t->index, digest(t->after, t->state)));
    row["tensors"] = digests;
    out.append(row);
  }
  return out;
}

py::object index(std::int64_t i) { return i < 0 ? py::object(py::none()) : py::int_(i); }
py::object text_or_none(const std::string& s) { return s.empty() ? py::object(py::none()) : text(s); }

py::dict divergence(const TraceDivergence& d) {
  py::dict out;
  out["index"] = index(d.index);
  out["index_b"] = index(d.index_b);
  out["op"] = text_or_none(d.op);
  out["module"] = text(d.module);
  out["output"] = text_or_none(d.output);
  out["input"] = text_or_none(d.input);
  out["coordinates"] = d.has_coordinates ? py::object(py::cast(d.coordinates)) : py::none();
  out["expected"] = text(d.expected);
  out["actual"] = text(d.actual);
  out["ulps"] = d.ulps ? py::object(py::int_(*d.ulps)) : py::none();
  out["kind"] = text(d.kind);
  out["cause"] = text(d.cause);
  return out;
}

py::list notes(const std::vector<TraceOpNote>& list) {
  py::list out;
  for (const auto& n : list) {
    py::dict row;
    row["index"] = n.index;
    row["op"] = text(n.op);
    row["module"] = text(n.module);
    if (!n.text.empty()) row["text"] = text(n.text);
    out.append(row);
  }
  return out;
}

py::dict state(const TraceStateComparison& s) {
  py::dict out;
  out["compared"] = s.compared;
  out["equal"] = s.equal;
  py::list different;
  for (const auto& d : s.different) different.append(py::make_tuple(text(d.name), text(d.text)));
  out["different"] = different;
  return out;
}

py::dict compare(const Trace& a, const Trace& b) {
  TraceDiff d;
  {
    py::gil_scoped_release nogil;
    d = diff(a, b);
  }
  py::dict out;
  out["equal"] = d.equal;
  out["first"] = d.first ? py::object(divergence(*d.first)) : py::none();
  py::list roots, environment, not_complete;
  for (const auto& r : d.roots) roots.append(divergence(r));
  out["root"] = roots;
  out["knock_on"] = d.knock_on;
  out["aligned"] = d.aligned;
  out["equal_ops"] = d.equal_ops;
  out["only_a_count"] = d.only_a_count;
  out["only_b_count"] = d.only_b_count;
  out["only_a"] = notes(d.only_a);
  out["only_b"] = notes(d.only_b);
  for (const auto& f : d.environment) {
    py::dict row;
    row["field"] = text(f.field);
    row["a"] = text(f.a);
    row["b"] = text(f.b);
    environment.append(row);
  }
  out["environment"] = environment;
  out["start"] = state(d.start);
  out["end"] = state(d.end);
  out["layouts"] = notes(d.layouts);
  out["arguments"] = notes(d.arguments);
  out["never_written_a"] = notes(d.never_written_a);
  out["never_written_b"] = notes(d.never_written_b);
  for (const auto& s : d.not_complete) not_complete.append(text(s));
  out["not_complete"] = not_complete;
  return out;
}

// py::class_ has no const holder; nothing here writes.
std::shared_ptr<Trace> open(const std::string& path) { return std::const_pointer_cast<Trace>(Trace::open(path)); }

py::bytes blob(const Trace& trace, const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  {
    py::gil_scoped_release nogil;
    bytes = trace.blob(Digest::from_hex(hex));
  }
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

py::object first_nan_of(const Trace& trace) {
  std::optional<NanSite> site;
  {
    py::gil_scoped_release nogil;
    site = first_nan(trace);
  }
  if (!site) return py::none();
  py::dict out = short_op(trace, site->index);
  out["tensor"] = site->tensor;
  out["entered"] = site->entered;
  return out;
}

}  // namespace

void bind_trace(py::module_& m) {
  py::register_local_exception_translator(&translate);
  py::class_<Trace, std::shared_ptr<Trace>>(m, "Trace", py::module_local())
      .def_property_readonly("path", [](const Trace& t) { return text(t.path); })
      .def_readonly("version", &Trace::version)
      .def_readonly("bytes", &Trace::bytes)
      .def_readonly("complete", &Trace::complete)
      .def_property_readonly("reason", [](const Trace& t) { return text(t.reason); })
      .def_property_readonly("op_count", [](const Trace& t) { return t.ops.size(); })
      .def_property_readonly("tensor_count", &Trace::tensor_count)
      .def_property_readonly("blob_count", &Trace::blob_count)
      .def_property_readonly("seconds", [](const Trace& t) { return t.end.seconds; })
      .def_property_readonly("hashed", [](const Trace& t) { return t.end.hashed; })
      .def_property_readonly("environment", [](const Trace& t) { return environment(t.environment); })
      .def_property_readonly("names_start", [](const Trace& t) { return names(t.names_start); })
      .def_property_readonly("names_end", [](const Trace& t) { return names(t.names_end); })
      .def_property_readonly("storages", &storages)
      .def_property_readonly("events", &events)
      .def_property_readonly("plans", &plans)
      .def_property_readonly("completions", &completions)
      .def("op", &whole_op)
      .def("short_op", &short_op)
      .def("has_blob", [](const Trace& t, const std::string& hex) { return t.has_blob(Digest::from_hex(hex)); })
      .def("blob", &blob)
      .def("first_nan", &first_nan_of)
      .def("check_blobs", [](const Trace& t) { return check_blobs(t); }, py::call_guard<py::gil_scoped_release>());
  m.def("diff_traces", &compare);
  m.def("open_trace", &open, py::call_guard<py::gil_scoped_release>());
}
