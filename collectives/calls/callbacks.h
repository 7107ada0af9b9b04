// Callbacks: calls the functions that users gave for the ends of their queued calls, on a thread of its own, so that
// such a function may call anything, also what waits for work that the progress thread does.
//
// Waking the thread takes longer than a small call. So the callback of a call whose end somebody is about to see anyway
// wakes it only from a long sleep: while such callbacks come, the thread looks for them every millisecond.
//
// A call may end while the thread that submits it still puts it into its stream. Its callbacks wait for that, so that a
// function that synchronizes the stream finds the results; those of other calls do not, for which it may wait.
//
// Threads: any; the callbacks have their own lock, which may be taken while Requests' is held, and is not held while a
// function runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "collectives/annulus.h"

namespace annulus {

class Callbacks {
 public:
  struct Callback {
    annulus_done_fn function = nullptr;
    void* context = nullptr;
    Code code = Code::kOk;
    const void* place = nullptr;  // The place of its call in a stream; null: none.
  };
  // Room for one callback, made when its call is, so that the end of a call needs no memory.
  struct Place {
    Callback callback;
    Place* next = nullptr;
  };

  Callbacks() = default;
  // Calls what remains, then ends the thread. Not on that thread.
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  // Starts the thread if it is not running; before the first Add. Errors: kSystem.
  Status Start();
  bool has_started() const { return has_started_.load(std::memory_order_acquire); }
  // Has the function called, after those added before: at once or, if it may wait, within a millisecond or so. Returns
  // a place that is not needed any more, or null. Needs no memory.
  std::unique_ptr<Place> Add(const Callback& callback, std::unique_ptr<Place> place, bool may_wait);
  // Calls of that place are being put into their stream: what is added for it waits until the place is entered. One
  // place at a time.
  void Enter(const void* place);
  void Entered();
  // From here on none begins before Finish. AwaitBegun returns when the one that has begun, if any, has returned. Not
  // on the thread of callbacks.
  void Hold();
  void AwaitBegun();
  // As the destructor; nothing is added later.
  void Finish();

  // Whether the calling thread is in a callback.
  bool IsThisThread() const { return id_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

 private:
  struct List {
    void Append(Place* place) {
      (first == nullptr ? first : last->next) = place;
      last = place;
    }
    Place* first = nullptr;
    Place* last = nullptr;
  };

  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  List ready_;
  const void* entering_ = nullptr;    // The place whose calls are being put into their stream,
  List early_;                        // and callbacks of it.
  Place* spent_ = nullptr;            // Places of those that were called.
  std::condition_variable returned_;  // Signalled when a function has returned and someone may wait for that.
  bool is_held_ = false;
  bool has_begun_ = false;  // A function runs.
  bool finishing_ = false;
  bool is_asleep_ = false;  // The thread does not look, but waits to be woken.
  int looks_ = 0;           // Number of looks before it sleeps.
  std::atomic<bool> has_started_{false};
  std::atomic<std::thread::id> id_{};
  std::thread thread_;
};

}  // namespace annulus
