// Jobs on CUDA tensors: everything is enqueued by the thread that makes the call, and nothing waits.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "frameworks/torch/failure.h"
#include "frameworks/torch/job.h"
#include "frameworks/torch/stream_work.h"
#include "frameworks/torch/versions.h"

namespace annulus_torch {
namespace {

// What comes next in `to` comes after all that `from` has. A stream that stays apart may end its capture with an
// error; where the capture has failed already, there is nothing left to save.
void Rejoin(const c10::Stream& from, const c10::Stream& to) {
  if (from == to) return;
  try {
    c10::Event end(from.device_type());
    end.record(from);
    end.block(to);
  } catch (const c10::Error&) {
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Job::Enqueue(const Communicator& comm, int rank, uint64_t sequence,
                                            std::chrono::milliseconds timeout, Streams* own, bool blocks) && {
  const c10::impl::VirtualGuardImpl device_guard(device().type());
  const c10::Stream current = device_guard.getStream(device());
  const c10::Stream stream = own == nullptr ? current : own->Of(device(), calls_.front());
  // Also makes the device's context current in this thread, without which CUDA does not know the default stream.
  c10::Event before(device().type());
  before.record(current);
  // A barrier's caller wants the host to wait, and who sent a message is known only when it has come.
  const bool needs_host = type_ == c10d::OpType::BARRIER || type_ == c10d::OpType::RECVANYSOURCE;
  const bool is_captured = IsCapturing(device_guard, current);
  TORCH_CHECK(!is_captured || !needs_host, "Annulus: ", title_,
              " cannot be captured into a CUDA graph: the host waits for it");
  if (stream != current) before.block(stream);
  const c10::StreamGuard guard(stream);
  const auto work =
      c10::make_intrusive<StreamWork>(AboutWork(rank, sequence, timeout), stream, blocks || needs_host, is_captured);
  for (annulus_call_t& call : calls_) {
    call.stream = device_guard.getStreamNativeHandle(stream);
    call.stream_kind = ANNULUS_STREAM_CUDA;
  }
  if (stream != current) KeepMemoryFor(stream);
  if (is_captured) {
    try {
      Capture(comm);
      work->outcome()->End(nullptr);
      Finish();
      work->OnEnqueued();
    } catch (...) {
      Rejoin(stream, current);
      throw;
    }
    return work;
  }
  const auto end = [outcome = work->outcome(), received = received_](std::exception_ptr failure) {
    outcome->End(std::move(failure));
  };
  Queue(comm, end, false);
  Finish();
  work->OnEnqueued();
  return work;
}

void Job::Capture(const Communicator& comm) {
  for (annulus_call_t& call : calls_) call.received = nullptr;  // Its source is the one that was asked for.
  scaled_.Make(comm, &calls_, title_);
  const annulus_status_t status = annulus_submit(comm.get(), calls_.data(), calls_.size(), nullptr);
  const std::exception_ptr failure = status == ANNULUS_OK ? nullptr : Failure(status, title_);
  scaled_.Destroy();  // The graph keeps them.
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Job::KeepMemoryFor(const c10::Stream& stream) const {
  const c10::impl::VirtualGuardImpl guard(stream.device_type());
  const auto keep = [&](const at::Tensor& tensor) { guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream); };
  for (const at::Tensor& tensor : used_) keep(tensor);
  for (const auto& [to, from] : copies_) {
    keep(to);
    keep(from);
  }
}

}  // namespace annulus_torch
