// One recording: from start to stop, what the ops of the watched threads did, as records on their way to a sink.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "csrc/record/capture/op_info.h"
#include "csrc/record/capture/outbox.h"
#include "csrc/record/capture/storages.h"

namespace c10d {
class Work;
}

namespace step_oracle::capture {

enum class Keep : std::uint8_t { kDigests, kState, kAll };

struct RecordingOptions {
  Keep keep = Keep::kDigests;
  bool cuda = false;          // the recorded ops run on a CUDA card
  bool card_digests = true;   // there: digests are computed on the card, where that is possible
  bool on_card = false;  // the recorded ops run on a card, and the host's only prepare for them
  bool digests = true;    // false: metadata only (benches)
  bool paranoid = false;  // every argument before and after every op, at once: finds writes that nobody declared
  int workers = 1;
  // A storage that enters is digested whole up to this size, or where the view at hand is a quarter of it.
  std::int64_t whole_storage_bytes = 64ll << 20;
};

struct Named {
  std::string name;
  rec::NameRole role;
  at::Tensor tensor;             // or
  std::optional<c10::IValue> value;
};

struct Summary {
  std::uint64_t card_launches = 0;  // of the card's own digests; 0: they were taken on the host
  std::uint64_t ops = 0, digests = 0, hashed = 0, storages = 0, file_bytes = 0, fakes = 0, waits = 0;
  double seconds = 0;
  double overhead_seconds = 0;  // of it, the recorder's, on the threads that ran ops
  bool complete = true;
  std::string reason;
};

class Recording {
 public:
  Recording(std::unique_ptr<Sink> sink, RecordingOptions options);
  ~Recording();

  // Runs the op and records it. Throws what the op throws.
  void run(const c10::OperatorHandle& op, const OpInfo& info, c10::DispatchKeySet next, torch::jit::Stack* stack);

  void names(rec::Moment moment, const std::vector<Named>& entries);
  void event(rec::EventKind kind, std::string text, std::int64_t value = 0);
  // The trace will say that it is not complete. The first reason stands.
  void incomplete(std::string reason);
  // Ops run in a thread that is not watched.
  void unseen_op(const char* name);

  // The calling thread: where it is in the tree of modules; its autograd numbers start here.
  void begin_thread();
  void enter_module(const std::string* name);
  void leave_module(const std::string* name);
  const std::string* intern(const std::string& name);
  void optimizer(bool on) { in_optimizer_ += on ? 1 : -1; }
  void create_graph(bool on) { creating_graph_ += on ? 1 : -1; }
  // DDP: its modules fill memory behind torch's back (bucket indices), and number their buckets from each forward on.
  void ddp_module(const std::string* name);
  void ddp_forward();
  // The program begins to wait for a collective; it came back.
  void waits(const c10d::Work* work, bool begins);

  // Settles what is in flight, waits for digests, closes the sink. Throws the sink's error.
  Summary stop();
  Summary summary() const;
  Sink& sink() { return *sink_; }
  // Returns when every pending digest is known: for memory that is about to change in a way that no op shows.
  void know_all();
  // Memory may have changed in ways that no op showed: nothing that was known of it holds.
  void doubt_all();
  // A scalar that backward is called on.
  void loss(const std::string& name, const at::Tensor& t);
  // The module that the calling thread is in; empty outside.
  std::string module() const;

 private:
  struct Use;
  struct Call;
  struct InFlight;
  class Locked;

  // A sink that fails must not disturb the program: its first error is thrown by stop().
  void keep_bytes(const Digest& digest, const StridedBytes& bytes) noexcept;
  void begin(Call& call);
  void finish(Call& call, const char* error);
  void read_arguments(Call& call);
  std::unique_ptr<rec::ValueT> value_of(const c10::IValue& v, Call& call, std::size_t argument);
  std::unique_ptr<rec::ValueT> result_of(const c10::IValue& v, Call& call);
  void locate(Call& call);
  void link(Call& call);
  void look_up_generator(Call& call);
  // Throws NotImplementedError inside a CUDA graph's capture, where nothing runs yet.
  void refuse_capture(const Call& call);
  void refuse_capture(c10::DeviceIndex device, const std::string& op);
  void flush_cards();
  void read_generator(const at::Generator& generator, std::vector<std::uint8_t>& bytes, Digest& digest);

  // Under the mutex.
  StorageState* describe(const at::Tensor& t, rec::TensorT& out, std::uint64_t ticket, bool made);
  void enter(StorageState& s, const at::Tensor& t);
  void announce(const StorageState& s, const std::string& device, std::uint64_t ticket);
  bool keeps_result(const Call& call, const at::Tensor& t) const;
  SlotPtr digest(StorageState& s, const at::Tensor& t, bool keep);
  SlotPtr digest(StorageState& s, const at::Tensor& t, const Geometry& g, bool keep);
  // The state for a digest, and the digest itself into `blanks` where there are bytes: those in memory, in row-major
  // order; the conj and neg bits stand beside them.
  rec::DigestState ask(std::vector<Blank>& blanks, std::size_t index, Blank::Field field, const at::Tensor& t,
                       StorageState* s, bool keep);
  void ask_before(Call& call, std::size_t index);
  void write_arguments(Call& call);
  void take_results(Call& call);
  void add_event(rec::EventKind kind, std::uint64_t ticket, std::string text, std::int64_t value = 0);
  void compare(Call& call);

  // Collectives.
  void find_completed(Call& call);
  void describe_collective(Call& call);
  void note_gradients(Call& call);
  void launch(Call& call);
  bool program_waits(const StorageState& s) const;
  void settle(InFlight& flight, std::uint64_t ticket, bool finished);
  void arrived(Call& call);
  void finish_flights();

  const RecordingOptions options_;
  std::unique_ptr<Sink> sink_;
  std::unique_ptr<Hashing> hashing_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<CardDigests> cards_;  // null: the host computes the digests
  std::uint64_t launches_ = 0;  // of cards_, once it is gone
  bool lt_log_ = false;
  std::mutex mutex_;
  Storages storages_;
  const std::uint64_t session_;
  const int pid_;
  std::atomic<std::uint64_t> tickets_{0};
  std::atomic<std::uint64_t> recorded_{0}, fakes_{0}, waits_{0};
  std::atomic<int> in_optimizer_{0}, creating_graph_{0};
  std::atomic<std::uint32_t> threads_{0};
  std::atomic<std::int64_t> overhead_ns_{0};
  std::atomic<int> flights_pending_{0};
  std::vector<std::shared_ptr<InFlight>> flights_;
  // (thread << 48) ^ autograd's number -> the module of the op that owns it (null: none)
  std::unordered_map<std::uint64_t, const std::string*> owners_;
  std::set<std::string> strings_;
  std::set<std::string> unseen_;
  std::set<const std::string*> ddp_modules_;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;  // names
  struct Bucket {
    int index = -1;
    std::map<std::int64_t, std::pair<std::string, std::int64_t>> parts;  // offset -> parameter, elements
  };
  std::unordered_map<std::uint64_t, Bucket> buckets_;  // by storage: what gradients were put there
  int next_bucket_ = 0;
  std::string reason_;
  std::mutex keep_mutex_;
  std::exception_ptr keep_error_;
  bool stopped_ = false;
  std::chrono::steady_clock::time_point begun_;
  double seconds_ = 0;
};

}  // namespace step_oracle::capture
