// The calls of the backend between two ranks, and the barriers.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>
#include <utility>

#include "frameworks/torch/backend.h"
#include "frameworks/torch/versions.h"

namespace annulus_torch {

static void CheckNotCaptured(const char* what) {
  TORCH_CHECK(!IsCapturingHere(), "Annulus: ", what, " cannot be captured into a CUDA graph: the host waits for it");
}

// The CUDA device whose current stream a barrier is to wait for; null: it is one of the processes alone.
std::optional<at::Device> Backend::DeviceOf(const c10d::BarrierOptions& opts) const {
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return std::nullopt;
  const std::optional<at::Device> device = opts.device.has_value() ? opts.device : getBoundDeviceId();
  if (device.has_value() && device->is_cuda()) return device;
  const bool has_id =
      !opts.device_ids.empty() && opts.device_ids[0] < c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
  return has_id ? std::optional(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(opts.device_ids[0])))
                : std::nullopt;
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  Job job(c10d::OpType::BARRIER, "annulus:barrier");
  CheckNotCaptured("annulus:barrier");
  if (const std::optional<at::Device> device = DeviceOf(opts)) job.UseDevice(*device);
  job.Add(ANNULUS_CALL_BARRIER, nullptr, nullptr, {});
  return Start(std::move(job), opts.timeout, opts.asyncOp);
}

static const at::Tensor& MessageOf(const std::vector<at::Tensor>& tensors, int tag) {
  TORCH_CHECK(tensors.size() == 1, "Annulus: a message is one tensor, not ", tensors.size());
  TORCH_CHECK(tag >= 0, "Annulus: the tag of a message is 0 or more, not ", tag);
  return tensors[0];
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  CheckRank(peer, "the receiver");
  Job job(c10d::OpType::SEND, "annulus:send");
  job.Use(tensor);
  const at::Tensor own = job.Read(tensor);
  annulus_call_t& call = job.Add(ANNULUS_CALL_SEND, own.data_ptr(), nullptr, BytesOf(own));
  call.root = peer;
  call.tag = tag;
  job.set_inputs({tensor});
  return Start(std::move(job), timeout_, true);
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  CheckRank(peer, "the sender");
  return Receive(tensors, peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) { return Receive(tensors, ANNULUS_ANY_PEER, tag); }

Backend::WorkPtr Backend::Receive(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = MessageOf(tensors, tag);
  const bool from_any = peer == ANNULUS_ANY_PEER;
  Job job(from_any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
          from_any ? "annulus:recvAnySource" : "annulus:recv");
  job.Use(tensor);
  const at::Tensor own = job.Write(tensor);
  job.AddReceive(own.data_ptr(), BytesOf(own), peer, tag);
  job.set_inputs({tensor});
  job.set_result({tensor});
  return Start(std::move(job), timeout_, true);
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  CheckNotCaptured("annulus:monitored_barrier");
  static_cast<void>(Comm());  // Refuses it where all calls are refused. The barrier itself does not use it.
  // 0 is a limit here.
  monitored_barrier_.Pass(opts.timeout == c10d::kUnsetTimeout ? timeout_ : opts.timeout, wait_all_ranks);
}

}  // namespace annulus_torch
