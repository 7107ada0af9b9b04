// A communicator and its unfinished work, safe to use from Python: arrays stay alive while the library uses them (in
// place, too, but for numpy's resize with refcheck=False), and closing waits for the calls that other threads are in.
//
// Threads: any, with Python's global lock (GIL), which every call gives up while it may block. What the GIL guards is
// said at each member; the library's objects are guarded by use_, which nobody waits for with the GIL.
#pragma once

#include <annulus.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/python/call.h"
#include "frameworks/python/failure.h"
#include "frameworks/python/plain_call.h"
#include "frameworks/python/reduction.h"

namespace annulus_python {

struct ReleaseBuffer {
  void operator()(Py_buffer* buffer) const {
    PyBuffer_Release(buffer);
    delete buffer;
  }
};

// An array's memory, lent to the library: until it is given back the array stays alive.
using Lent = std::unique_ptr<Py_buffer, ReleaseBuffer>;

// One asynchronous collective, or a group of them. Members are guarded by the GIL.
struct Work {
  std::vector<Lent> lent;
  std::vector<pybind11::object> arrays;             // Those of a plain call.
  std::vector<std::shared_ptr<Received>> received;  // Those that the library fills.
  annulus_request_t* request = nullptr;
  int waiters = 0;  // Threads that are using `request` without the GIL.
  bool done = false;
  std::optional<Failure> failure;  // Failure of the work, once it is done.
};

// An asynchronous call of plain arrays, or two as a group. It needs no memory of its own while all goes well; a
// failure, a wait of more than a moment and a second waiter make a Work of it. Members are guarded by the GIL.
struct PlainWork {
  PlainArrays arrays;
  annulus_request_t* request = nullptr;  // Null: freed after a good end, or `work` has it.
  bool is_awaited = false;               // A thread is using `request` without the GIL.
  std::shared_ptr<Work> work = nullptr;  // What it has become; null: nothing.
};

class Handle {
 public:
  // Makes a communicator, from another one where `comm` is not null.
  using Maker = std::function<annulus_status_t(annulus_comm_t* comm, annulus_comm_t** made)>;

  explicit Handle(annulus_comm_t* comm);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // Makes the first communicator. Throws a Failure.
  static std::shared_ptr<Handle> Create(const Maker& maker);

  // Makes one out of this one's ranks; null for a rank that takes no part in it. Throws a Failure.
  std::shared_ptr<Handle> Derive(const Maker& maker);

  // Queues a call, or several as a group, all or none. The options' `done` is the first call's. Returns null where
  // their stream is captured into a CUDA graph, whose launches make the calls: the arrays are given back at once, and
  // whoever launches keeps them. Throws a Failure.
  std::shared_ptr<Work> Start(const std::vector<const Call*>& described);

  // Queues a call and waits for it, as Start and Wait do, in one step. Throws the call's Failure.
  void Run(const Call& described);

  // The same for a call of plain arrays, or a send and a receive as a group. Returns false for others, and nothing is
  // queued. Throws the call's Failure.
  bool RunPlain(const CallOptions& options, std::span<const PlainCall> plain);

  // The asynchronous form of it, in handle_plain.cc, which fills in *plain, and its wait, as Wait. DropPlain: nobody
  // holds it any more; the library goes on with it.
  bool StartPlain(const CallOptions& options, std::span<const PlainCall> calls, PlainWork* plain);
  bool StartPlainGroup(const CallOptions& options, const std::vector<PlainCall>& group, PlainWork* plain);
  bool WaitPlain(PlainWork* plain, int64_t timeout_ms);
  void DropPlain(PlainWork* plain);

  // Throws ValueError where a reduction's function calls, for which the work would wait that it waits for. What uses
  // the communicator checks it.
  void CheckNotInReduction() const;

  // Makes a call that does not block. Throws a Failure.
  void Do(const std::function<annulus_status_t(annulus_comm_t*)>& call);

  // The verdict as a Python exception; None while the communicator is alive. Throws a Failure.
  pybind11::object Verdict();

  // Operations of the user's: their numbers. A function's is what Reduction takes. Throw a Failure.
  int CreatePremulSum(double factor);
  std::pair<int, std::shared_ptr<Reduction>> CreateReduction(const pybind11::object& combine);
  void DestroyOperation(int op);

  // Waits up to `timeout_ms`, or with -1 until the library ends it, and returns whether it is done. Python's signal
  // handlers run meanwhile, and what they raise ends the wait. Throws the work's Failure.
  bool Wait(const std::shared_ptr<Work>& work, int64_t timeout_ms);

  // Fails everything pending and later on all ranks.
  void Abort(const std::string& reason);

  // Leaves the job. Unfinished work fails; calls that other threads are in end early, with an abort. Bounded in time,
  // save for callbacks. Throws where a callback or reduction of this communicator calls.
  void Close();

  // In a forked child: lets go of what only the parent may use.
  void Abandon();

  bool closed() const { return comm_.load() == nullptr; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  Ranks ranks() const { return {static_cast<size_t>(rank_), static_cast<size_t>(size_)}; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

 private:
  // How long a signal such as Ctrl-C may go unseen.
  static constexpr int64_t kSignalCheckMs = 50;

  // Fills in *calls, which are zero, for a call of plain arrays, or two. Returns false for others.
  bool Describe(const CallOptions& options, std::span<const PlainCall> plain, PlainArrays* arrays,
                annulus_call_t* calls) const;
  // Queues a call or a group, and waits for it for as long as signals may wait. Returns null if it has ended then, else
  // its request. Throws the call's Failure.
  annulus_request_t* Begin(std::span<const annulus_call_t> calls);
  // The rest of the wait, for `work` that has the arrays.
  void GoOn(std::list<std::shared_ptr<Work>>* place, annulus_request_t* request);
  // Waits for *plain, which is no Work, and frees its request if it has ended well. Returns ANNULUS_ABORTED where the
  // communicator is closed.
  annulus_status_t TryPlain(PlainWork* plain, int64_t timeout_ms);
  void MakeWork(PlainWork* plain);
  // Frees the request, which waits for its end.
  void Forget(annulus_request_t* request);
  // Work that is done and whose request Python has let go of gives its arrays back.
  void Reap();
  bool Poll(const std::shared_ptr<Work>& work, int64_t timeout_ms);
  void Finish(const std::shared_ptr<Work>& work, std::optional<Failure> failure);
  void FreeRequest(Work* work);
  void FinishAll();
  void Leave();
  // Whether the calling thread is one for whose function Leave may wait.
  bool IsInside() const;
  // Locks use_ for a call; without success once the communicator is being closed. In a callback it does not wait for
  // the closing thread, which waits for the callback.
  std::shared_lock<std::shared_mutex> Use();
  // The same for a call that keeps the GIL, which a reduction may need that the closing thread waits for.
  std::shared_lock<std::shared_mutex> UseWithGil();
  int CreateOperation(const std::function<annulus_status_t(annulus_op_t* op)>& create);

  int rank_ = 0;
  int size_ = 0;
  int local_rank_ = 0;
  int local_size_ = 0;
  std::atomic<annulus_comm_t*> comm_;       // Null once closed. Set to null under use_, but in a forked child.
  std::atomic<bool> is_destroyed_{false};   // It is gone, and no array in use. Set under use_, after comm_.
  std::shared_mutex use_;                   // Shared by calls on comm_, alone for whoever destroys it.
  std::list<std::shared_ptr<Work>> works_;  // Not known to be done, in the order of the calls. Guarded by the GIL.
};

}  // namespace annulus_python
