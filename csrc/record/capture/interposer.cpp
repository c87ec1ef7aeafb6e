#include "csrc/record/capture/interposer.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <pthread.h>
#include <torch/library.h>

#include <atomic>
#include <thread>

#include "csrc/kernels/core/error.h"
#include "csrc/record/capture/torch_compat.h"

namespace step_oracle::capture {
namespace {

// The running recording. Readers count themselves in, so that detach() can wait for the ops that hold it.
std::atomic<Recording*> g_running{nullptr};
std::atomic<int> g_inside{0};
std::shared_ptr<Recording> g_owner;  // guarded by g_mutex
std::mutex g_mutex;
std::atomic<bool> g_empty{false};
at::CallbackHandle g_watch = 0;

struct Inside {
  Recording* recording;
  Inside() {
    g_inside.fetch_add(1);
    recording = g_running.load();
    if (recording == nullptr) g_inside.fetch_sub(1);
  }
  ~Inside() {
    if (recording != nullptr) g_inside.fetch_sub(1);
  }
};

void every_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto next = below_key(keys);
  const Inside inside;
  if (inside.recording == nullptr) {
    if (g_empty.load(std::memory_order_relaxed)) {
      const c10::impl::ExcludeDispatchKeyGuard once(kKey);
      return op.redispatchBoxed(next, stack);
    }
    watch_here(false);  // this thread outlived the recording
    return op.redispatchBoxed(next, stack);
  }
  const OpInfo& info = info_of(op);
  if (info.passive) return op.redispatchBoxed(next, stack);
  if (info.composite && decomposes_below(op, next)) return op.redispatchBoxed(next, stack);
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);  // what a kernel calls is the kernel's business
  inside.recording->run(op, info, next, stack);
}

// Sees the ops of every thread; tells those of threads that are not watched.
std::unique_ptr<at::ObserverContext> watch_threads(const at::RecordFunction& f) {
  // A kernel's own threads do not count: what a kernel calls is the kernel's business.
  if (!watched_here() && !c10::impl::tls_is_dispatch_key_excluded(kKey) && !at::in_parallel_region()) {
    const Inside inside;
    if (inside.recording != nullptr) inside.recording->unseen_op(f.name());
  }
  return nullptr;
}

// A forked child has none of the recording's threads: it records nothing, and leaves the recording alone.
void in_child() {
  g_running.store(nullptr);
  new std::shared_ptr<Recording>(g_owner);  // never destroyed: its threads are not here to be joined
  g_owner.reset();
  g_inside.store(0);
  unlock_holds();
  g_mutex.unlock();
}

}  // namespace

void install() {
  static std::mutex mutex;
  static std::unique_ptr<torch::Library>& library = *new std::unique_ptr<torch::Library>;  // never taken away again
  std::lock_guard lock(mutex);
  if (library) return;
  pthread_atfork([] { g_mutex.lock(); lock_holds(); }, [] { unlock_holds(); g_mutex.unlock(); }, in_child);
  try {
    auto l = std::make_unique<torch::Library>(torch::Library::IMPL, "_", std::make_optional(kKey), __FILE__, __LINE__);
    l->fallback(torch::CppFunction::makeFromBoxedFunction<&every_op>());
    library = std::move(l);
  } catch (const c10::Error& e) {
    throw Error(ErrorKind::kUnsupported,
                "Another library has taken torch's dispatch key 'Fake', where step-oracle records: load only one of them "
                "in this process. (" + std::string(e.what_without_backtrace()) + ")");
  }
}

void start(std::shared_ptr<Recording> recording) {
  install();
  std::lock_guard lock(g_mutex);
  if (g_owner)
    throw Error(ErrorKind::kBadInput, "A recording is already running in this process: stop it before starting another.");
  g_owner = std::move(recording);
  g_owner->begin_thread();
  g_watch = at::addGlobalCallback(at::RecordFunctionCallback(watch_threads).scopes({at::RecordScope::FUNCTION}));
  g_running.store(g_owner.get());
  watch_here(true);
}

bool detach(Recording& recording) {
  std::shared_ptr<Recording> owner;
  {
    std::lock_guard lock(g_mutex);
    if (g_owner.get() != &recording) return true;
    owner = std::move(g_owner);
    g_running.store(nullptr);
    at::removeCallback(g_watch);
  }
  const bool watched = watched_here();
  watch_here(false);
  while (g_inside.load() > 0) std::this_thread::yield();
  return watched;
}

std::shared_ptr<Recording> running() {
  std::lock_guard lock(g_mutex);
  return g_owner;
}

void watch_thread(bool on) {
  const Inside inside;
  if (on && inside.recording != nullptr) inside.recording->begin_thread();
  watch_here(on && inside.recording != nullptr);
}

void set_empty(bool on) {
  install();
  g_empty.store(on);
  watch_here(on);
}

}  // namespace step_oracle::capture
