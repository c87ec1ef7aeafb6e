// What one op needs from its beginning to its end. Internal to the recording.
#pragma once
#include <Python.h>

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "csrc/record/capture/recording.h"
#include "csrc/record/capture/torch_compat.h"

namespace step_oracle::capture {

// A tensor among the arguments.
struct Recording::Use {
  const at::Tensor* tensor;  // on the stack: valid until the op takes its arguments
  const c10::TensorImpl* identity;
  at::Tensor kept;           // written ones: needed after the op
  StorageState* storage = nullptr;
  bool declared = false, undeclared = false;
  bool writes() const { return declared || undeclared; }
};

struct Recording::Call {
  Call(const c10::OperatorHandle& o, const OpInfo& i, torch::jit::Stack* s) : op(o), info(i), stack(s) {}

  const c10::OperatorHandle& op;
  const OpInfo& info;
  torch::jit::Stack* stack;
  std::unique_ptr<rec::OpT> record;
  std::vector<Use> uses;             // the first tensors of the record
  std::vector<std::pair<rec::ValueT*, c10::Storage>> storages;  // arguments that are storages
  std::vector<at::Tensor> results;   // the tensors after them
  std::vector<Blank> blanks;
  std::vector<std::shared_ptr<InFlight>> done;  // collectives found complete before the lock
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<std::string> log_lines;  // cuBLASLt's
  at::Generator generator;
  bool has_meta = false, has_real = false;
  bool draws = true;         // false: a dropout probability of 0
  bool training = true;      // batch norm's flag
  std::int64_t sequence = -1;
  std::int64_t node_thread = -1;
  const std::string* module = nullptr;
  const c10::TensorImpl* accumulates = nullptr;  // the leaf whose gradient the current node accumulates
  std::vector<SlotPtr> before;       // paranoid: by argument tensor
  std::uint64_t ticket() const { return record->ticket; }
};

struct Recording::InFlight {
  std::uint64_t ticket;                           // of the launch
  c10::intrusive_ptr<c10d::Work> work;            // null: functional, ends with wait_tensor
  std::vector<std::pair<std::uint32_t, at::Tensor>> outputs;  // index in the op's tensors
  bool on_host = true;
  bool waiting = false, waited = false;           // the program is in wait(), came back from it
  std::string op;
};

// The recording's mutex. Who holds the GIL gives it up before waiting, so a holder of the mutex may take the GIL.
class Recording::Locked {
 public:
  explicit Locked(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    if (Py_IsInitialized() && PyGILState_Check()) thread_ = PyEval_SaveThread();
    lock_.lock();
  }
  ~Locked() {
    lock_.unlock();
    if (thread_ != nullptr) PyEval_RestoreThread(thread_);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  PyThreadState* thread_ = nullptr;
};

// What a thread knows about its place, per recording.
struct ThreadPlace {
  std::uint64_t session = 0;
  std::uint32_t number = 0;
  std::int64_t owned = -1;  // autograd numbers up to this one have an owner
  std::vector<const std::string*> modules;
};
ThreadPlace& thread_place();

// The tensor's bytes, contiguous, in the host's memory, by the backend's own copy.
at::Tensor on_host(const at::Tensor& t);

}  // namespace step_oracle::capture
