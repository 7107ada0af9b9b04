// The calls of Handle on plain arrays.
#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <new>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "frameworks/python/handle.h"
#include "frameworks/python/without_gil.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

constexpr size_t kMostArrays = 2;    // Of a call, or of those together.
constexpr size_t kMostTogether = 2;  // Calls that are queued as a group: a send and a receive.

// Whether what `send` reads overlaps with what `recv` writes.
bool Overlap(const annulus_call_t& send, const annulus_call_t& recv) {
  const auto from = reinterpret_cast<uintptr_t>(send.sendbuf), to = reinterpret_cast<uintptr_t>(recv.recvbuf);
  return from < to + recv.count * annulus_type_bytes(recv.type) &&
         to < from + send.count * annulus_type_bytes(send.type);
}

}  // namespace

bool Handle::Describe(const CallOptions& options, std::span<const PlainCall> plain, PlainArrays* arrays,
                      annulus_call_t* calls) const {
  if (!options.done.is_none() || plain.size() > kMostTogether) return false;
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();
  for (size_t i = 0; i < plain.size(); ++i) {
    if (!arrays->Describe(plain[i], ranks(), &calls[i])) return false;
    SetOptions(options, &calls[i]);
  }
  return plain.size() == 1 || !Overlap(calls[0], calls[1]);
}

bool Handle::RunPlain(const CallOptions& options, std::span<const PlainCall> plain) {
  PlainArrays arrays;
  std::array<annulus_call_t, kMostTogether> calls{};
  if (!Describe(options, plain, &arrays, calls.data())) return false;
  annulus_request_t* const request = Begin(std::span(calls).first(plain.size()));
  if (request == nullptr) return true;
  std::shared_ptr<Work> work;
  std::list<std::shared_ptr<Work>> place;
  try {
    work = std::make_shared<Work>();
    work->arrays.reserve(kMostArrays);
    place.push_back(work);
  } catch (const std::bad_alloc&) {
    Forget(request);  // Waits for it: the library uses the arrays.
    throw;
  }
  arrays.MoveTo(&work->arrays);
  GoOn(&place, request);
  return true;
}

bool Handle::StartPlain(const CallOptions& options, std::span<const PlainCall> calls, PlainWork* plain) {
  std::array<annulus_call_t, kMostTogether> described{};
  if (!Describe(options, calls, &plain->arrays, described.data())) return false;
  Reap();
  const WithoutGil without_gil;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (!using_it || closed()) throw Failure::Closed();
  const annulus_status_t status = annulus_submit(comm_, described.data(), calls.size(), &plain->request);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
  return true;
}

bool Handle::StartPlainGroup(const CallOptions& options, const std::vector<PlainCall>& group, PlainWork* plain) {
  if (!options.done.is_none()) return false;
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();
  const auto work = std::make_shared<Work>();
  work->arrays.reserve(kMostArrays * group.size());
  std::vector<annulus_call_t> calls(group.size());
  for (size_t i = 0; i < group.size(); ++i) {
    PlainArrays arrays;
    if (!arrays.Describe(group[i], ranks(), &calls[i])) return false;
    SetOptions(options, &calls[i]);
    arrays.MoveTo(&work->arrays);
  }
  Reap();
  std::list<std::shared_ptr<Work>> place{work};  // Nothing after the submission may need memory.
  {
    const WithoutGil without_gil;
    const std::shared_lock<std::shared_mutex> using_it = Use();
    if (!using_it || closed()) throw Failure::Closed();
    const annulus_status_t status = annulus_submit(comm_, calls.data(), calls.size(), &work->request);
    if (status != ANNULUS_OK) throw Failure::OfThread(status);
  }
  works_.splice(works_.end(), place);
  plain->work = work;
  return true;
}

bool Handle::WaitPlain(PlainWork* plain, int64_t timeout_ms) {
  CheckNotInReduction();
  if (plain->request != nullptr && !plain->is_awaited) {
    const int64_t first_ms = timeout_ms < 0 ? kSignalCheckMs : std::min(timeout_ms, kSignalCheckMs);
    const annulus_status_t status = TryPlain(plain, first_ms);
    if (status == ANNULUS_IN_PROGRESS) {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (timeout_ms >= 0 && timeout_ms <= kSignalCheckMs) return false;
      if (timeout_ms > 0) timeout_ms -= kSignalCheckMs;
    }
  }
  if (plain->request != nullptr) MakeWork(plain);
  return plain->work == nullptr || Wait(plain->work, timeout_ms);
}

annulus_status_t Handle::TryPlain(PlainWork* plain, int64_t timeout_ms) {
  annulus_status_t status = ANNULUS_ABORTED;
  std::shared_lock<std::shared_mutex> using_it;
  annulus_request_t* const request = plain->request;
  plain->is_awaited = true;
  {
    const WithoutGil without_gil;
    using_it = Use();
    if (using_it && !closed()) status = annulus_request_wait(request, timeout_ms);
  }
  plain->is_awaited = false;
  if (plain->work != nullptr) {  // A second waiter has counted this one in it.
    Work* const work = plain->work.get();
    using_it = {};
    if (--work->waiters == 0 && work->done) FreeRequest(work);
    return status;
  }
  if (status != ANNULUS_OK) return status;
  plain->request = nullptr;
  annulus_request_free(request);  // It has ended: nothing is waited for.
  using_it = {};                  // Before arrays go, which may be the last references to them.
  plain->arrays = PlainArrays();
  return status;
}

void Handle::MakeWork(PlainWork* plain) {
  const auto work = std::make_shared<Work>();
  work->arrays.reserve(kMostArrays);
  works_.push_back(work);
  plain->arrays.MoveTo(&work->arrays);
  work->request = std::exchange(plain->request, nullptr);
  work->waiters = plain->is_awaited ? 1 : 0;
  plain->work = work;
}

void Handle::DropPlain(PlainWork* plain) {
  if (plain->request == nullptr || is_destroyed_) return;
  try {
    MakeWork(plain);
  } catch (const std::bad_alloc&) {
    Forget(plain->request);  // Waits for it: the library uses the arrays.
  }
}

}  // namespace annulus_python
