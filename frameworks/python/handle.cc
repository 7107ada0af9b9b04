#include "frameworks/python/handle.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "frameworks/python/callback.h"
#include "frameworks/python/cuda_stream.h"
#include "frameworks/python/without_gil.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

void* LendOne(const py::object& array, int flags, Work* work) {
  if (array.is_none()) return nullptr;
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(array.ptr(), buffer.get(), flags) != 0) throw py::error_already_set();
  work->lent.emplace_back(buffer.release());
  return work->lent.back()->buf;
}

// The call with its pointers, whose arrays are lent to `work`.
annulus_call_t Complete(const Call& described, Work* work) {
  annulus_call_t call = described.call;
  call.sendbuf = LendOne(described.send, PyBUF_SIMPLE, work);
  call.recvbuf = LendOne(described.recv, PyBUF_WRITABLE, work);
  // The root gives no output: in place its array is only read, and so may be read-only.
  const bool in_place = call.kind == ANNULUS_CALL_BROADCAST && call.recvbuf == nullptr;
  if (in_place) call.recvbuf = const_cast<void*>(call.sendbuf);
  if (!described.sendcounts.empty()) call.sendcounts = described.sendcounts.data();
  if (!described.recvcounts.empty()) call.recvcounts = described.recvcounts.data();
  SetOptions(*described.options, &call);
  if (described.received != nullptr) {
    work->received.push_back(described.received);
    call.received = &described.received->got;
  }
  return call;
}

}  // namespace

Handle::Handle(annulus_comm_t* comm) : comm_(comm) {
  annulus_comm_rank(comm, &rank_);
  annulus_comm_size(comm, &size_);
  annulus_comm_local_rank(comm, &local_rank_);
  annulus_comm_local_size(comm, &local_size_);
}

Handle::~Handle() {
  if (is_destroyed_ || !IsInside()) {
    Leave();
    return;
  }
  // The last reference went with a function that the library called: that thread cannot wait for its own end. Python
  // waits for its threads at exit.
  const auto works = std::make_shared<std::list<std::shared_ptr<Work>>>(std::move(works_));
  const py::cpp_function destroy([works, comm = comm_.exchange(nullptr)] {
    {
      py::gil_scoped_release release;
      annulus_comm_destroy(comm);
    }
    works->clear();
  });
  try {
    py::module_::import("threading").attr("Thread")(py::none(), destroy).attr("start")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the end of a communicator");
  }
}

std::shared_ptr<Handle> Handle::Create(const Maker& maker) {
  py::gil_scoped_release release;
  annulus_comm_t* made = nullptr;
  const annulus_status_t status = maker(nullptr, &made);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
  return std::make_shared<Handle>(made);
}

std::shared_ptr<Handle> Handle::Derive(const Maker& maker) {
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();
  py::gil_scoped_release release;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (!using_it || closed()) throw Failure::Closed();
  annulus_comm_t* made = nullptr;
  const annulus_status_t status = maker(comm_, &made);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
  return made == nullptr ? nullptr : std::make_shared<Handle>(made);
}

std::shared_ptr<Work> Handle::Start(const std::vector<const Call*>& described) {
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();
  auto work = std::make_shared<Work>();
  std::vector<annulus_call_t> calls;
  for (const Call* const each : described) calls.push_back(Complete(*each, work.get()));
  std::unique_ptr<Callback> callback;
  if (!described.empty() && !described[0]->options->done.is_none()) {
    callback = std::make_unique<Callback>(described[0]->options->done, this, calls.size());
    for (annulus_call_t& call : calls) {
      call.done = &Callback::Run;
      call.context = callback.get();
    }
  }
  Reap();
  std::list<std::shared_ptr<Work>> place{work};  // Nothing after the submission may need memory.
  {
    py::gil_scoped_release release;
    const std::shared_lock<std::shared_mutex> using_it = Use();
    if (!using_it || closed()) throw Failure::Closed();
    const std::optional<uintptr_t> stream = described.empty() ? std::nullopt : described[0]->options->stream;
    const bool is_captured = stream.has_value() && IsCaptured(*stream);
    annulus_request_t** const request = is_captured ? nullptr : &work->request;
    const annulus_status_t status = annulus_submit(comm_, calls.data(), calls.size(), request);
    if (status != ANNULUS_OK) throw Failure::OfThread(status);
    static_cast<void>(callback.release());  // It may have run already.
    if (is_captured) return nullptr;
  }
  works_.splice(works_.end(), place);
  return work;
}

void Handle::Run(const Call& described) {
  if (!described.options->done.is_none()) {
    Wait(Start({&described}), -1);
    return;
  }
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();
  const auto work = std::make_shared<Work>();
  const annulus_call_t call = Complete(described, work.get());
  std::list<std::shared_ptr<Work>> place{work};  // As in Start.
  annulus_request_t* const request = Begin({&call, 1});
  if (request != nullptr) GoOn(&place, request);
}

annulus_request_t* Handle::Begin(std::span<const annulus_call_t> calls) {
  Reap();
  const WithoutGil without_gil;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (!using_it || closed()) throw Failure::Closed();
  annulus_request_t* request = nullptr;
  annulus_status_t status = annulus_submit(comm_, calls.data(), calls.size(), &request);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
  status = annulus_request_wait(request, kSignalCheckMs);
  if (status == ANNULUS_IN_PROGRESS) return request;
  std::optional<Failure> failure;
  if (status != ANNULUS_OK) failure = Failure::OfThread(status);
  annulus_request_free(request);
  if (failure) throw Failure(*std::move(failure));
  return nullptr;
}

void Handle::GoOn(std::list<std::shared_ptr<Work>>* place, annulus_request_t* request) {
  const std::shared_ptr<Work> work = place->front();
  work->request = request;
  works_.splice(works_.end(), *place);
  Wait(work, -1);
}

void Handle::Do(const std::function<annulus_status_t(annulus_comm_t*)>& call) {
  CheckNotInReduction();
  if (closed()) throw Failure::Closed();  // Before the lock, which a forked child may have got from a closing thread.
  py::gil_scoped_release release;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (!using_it || closed()) throw Failure::Closed();
  const annulus_status_t status = call(comm_);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
}

std::shared_lock<std::shared_mutex> Handle::Use() {
  if (Callback::RunsHere(this)) return {use_, std::try_to_lock};
  return std::shared_lock<std::shared_mutex>(use_);
}

std::shared_lock<std::shared_mutex> Handle::UseWithGil() {
  CheckNotInReduction();
  std::shared_lock<std::shared_mutex> using_it(use_, std::try_to_lock);
  if (!using_it.owns_lock() || closed()) throw Failure::Closed();
  return using_it;
}

int Handle::CreateOperation(const std::function<annulus_status_t(annulus_op_t* op)>& create) {
  // With the GIL: nothing here waits for other ranks.
  const std::shared_lock<std::shared_mutex> using_it = UseWithGil();
  annulus_op_t op = ANNULUS_OP_LAST;
  const annulus_status_t status = create(&op);
  if (status != ANNULUS_OK) throw Failure::OfThread(status);
  return static_cast<int>(op);
}

int Handle::CreatePremulSum(double factor) {
  return CreateOperation([&](annulus_op_t* op) { return annulus_op_create_premul_sum(comm_, factor, op); });
}

std::pair<int, std::shared_ptr<Reduction>> Handle::CreateReduction(const py::object& combine) {
  const auto reduction = std::make_shared<Reduction>(combine, this);
  auto context = std::make_unique<std::shared_ptr<Reduction>>(reduction);
  const int op = CreateOperation([&](annulus_op_t* made) {
    return annulus_op_create(comm_, &Reduction::Run, context.get(), &Reduction::Release, made);
  });
  static_cast<void>(context.release());  // The library's, until Release.
  return {op, reduction};
}

void Handle::DestroyOperation(int op) {
  if (closed()) return;
  CreateOperation([&](annulus_op_t*) { return annulus_op_destroy(comm_, static_cast<annulus_op_t>(op)); });
}

py::object Handle::Verdict() {
  const std::shared_lock<std::shared_mutex> using_it = UseWithGil();
  const Failure verdict = Failure::Verdict(comm_);
  return verdict.status == ANNULUS_OK ? py::none() : verdict.ToPython();
}

void Handle::CheckNotInReduction() const {
  if (Reduction::RunsHere(this))
    throw py::value_error("a reduction function must not use its communicator, whose work waits for it");
}

bool Handle::IsInside() const { return Callback::RunsHere(this) || Reduction::RunsHere(this); }

void Handle::Reap() {
  if (works_.empty()) return;
  std::vector<std::shared_ptr<Work>> dropped;
  for (const std::shared_ptr<Work>& work : works_) {
    if (work.use_count() == 1) dropped.push_back(work);
  }
  for (const std::shared_ptr<Work>& work : dropped) Poll(work, 0);
}

bool Handle::Wait(const std::shared_ptr<Work>& work, int64_t timeout_ms) {
  CheckNotInReduction();
  while (!Poll(work, timeout_ms < 0 ? kSignalCheckMs : std::min(timeout_ms, kSignalCheckMs))) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (timeout_ms < 0) continue;
    timeout_ms -= std::min(timeout_ms, kSignalCheckMs);
    if (timeout_ms == 0) return Poll(work, 0);
  }
  if (work->failure) throw Failure(*work->failure);
  return true;
}

bool Handle::Poll(const std::shared_ptr<Work>& work, int64_t timeout_ms) {
  if (work->done) return true;
  annulus_status_t status = ANNULUS_OK;
  std::optional<Failure> failure;
  ++work->waiters;
  bool closing = false;
  {
    py::gil_scoped_release release;
    const std::shared_lock<std::shared_mutex> using_it = Use();
    closing = !using_it || (closed() && Callback::RunsHere(this));
    if (closed()) {
      failure = Failure::Closed();
    } else if (!closing) {
      status = annulus_request_wait(work->request, timeout_ms);
      if (status != ANNULUS_OK && status != ANNULUS_IN_PROGRESS) failure = Failure::OfThread(status);
    }
  }
  --work->waiters;
  // In a callback that the closing thread waits for: the library may still use the arrays.
  if (closing) throw Failure::Closed();
  if (status != ANNULUS_IN_PROGRESS) Finish(work, std::move(failure));
  if (work->done && work->waiters == 0) FreeRequest(work.get());
  return work->done;
}

void Handle::Finish(const std::shared_ptr<Work>& work, std::optional<Failure> failure) {
  if (work->done) return;
  work->done = true;
  work->failure = std::move(failure);
  const auto place = std::find(works_.begin(), works_.end(), work);
  if (place != works_.end()) works_.erase(place);
  work->lent.clear();
  work->arrays.clear();
  work->received.clear();
}

void Handle::FreeRequest(Work* work) {
  annulus_request_t* const request = std::exchange(work->request, nullptr);
  if (request != nullptr && !closed()) Forget(request);
}

void Handle::Forget(annulus_request_t* request) {
  py::gil_scoped_release release;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (using_it && !closed()) annulus_request_free(request);  // Else the communicator frees it.
}

void Handle::FinishAll() {
  while (!works_.empty()) {
    const std::shared_ptr<Work> work = works_.front();
    Finish(work, Failure::Closed());
  }
}

void Handle::Abort(const std::string& reason) {
  CheckNotInReduction();
  if (closed()) return;  // As in Do.
  py::gil_scoped_release release;
  const std::shared_lock<std::shared_mutex> using_it = Use();
  if (using_it && !closed()) annulus_comm_abort(comm_, reason.c_str());
}

void Handle::Close() {
  // Where it is being closed too: the closing thread waits for this one.
  if (!is_destroyed_ && IsInside())
    throw std::runtime_error("a callback or a reduction function cannot close its communicator, which waits for it");
  Leave();
}

void Handle::Leave() {
  if (!is_destroyed_) {
    py::gil_scoped_release release;
    std::unique_lock<std::shared_mutex> alone(use_, std::try_to_lock);
    if (!alone.owns_lock()) {
      // Another thread waits in a call: it has to leave first. Twice closed, the second waits for the first.
      {
        std::shared_lock<std::shared_mutex> using_it(use_);
        if (!closed()) annulus_comm_abort(comm_, "closed while another thread waits");
      }
      alone.lock();
    }
    if (!closed()) {
      annulus_comm_destroy(comm_.exchange(nullptr));
      is_destroyed_ = true;
    }
  }
  FinishAll();
}

void Handle::Abandon() {
  comm_ = nullptr;
  is_destroyed_ = true;
  FinishAll();
}

}  // namespace annulus_python
