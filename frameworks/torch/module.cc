// The extension module: one function that makes a backend, and what Python sees of one.
//
// Threads: the interpreter's; waits without its lock.
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "frameworks/torch/backend.h"
#include "frameworks/torch/registered.h"

namespace annulus_torch {
namespace {

c10::intrusive_ptr<c10d::Backend> Make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       int64_t timeout_ms, bool wait_blocks, uint64_t register_bytes) {
  Registered::OfProcess().SetLimit(register_bytes);
  return c10::make_intrusive<Backend>(store, rank, size, std::chrono::milliseconds(timeout_ms), wait_blocks);
}

pybind11::dict CountsOfRegistered() {
  const Registered::Counts counts = Registered::OfProcess().counts();
  pybind11::dict named;
  named["limit_bytes"] = counts.limit_bytes;
  named["bytes"] = counts.bytes;
  named["tensors"] = counts.tensors;
  named["ever"] = counts.ever;
  named["refused"] = counts.refused;
  named["left_out"] = counts.left_out;
  return named;
}

}  // namespace
}  // namespace annulus_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // Where the default group has a device, PyTorch calls this on the ranks that are not in a new group. The ranks in it
  // meet by themselves.
  pybind11::class_<annulus_torch::Backend, c10::intrusive_ptr<annulus_torch::Backend>, c10d::Backend>(module, "Backend")
      .def(
          "perform_nocolor_split", [](annulus_torch::Backend&, const at::Device&) {}, pybind11::arg("device"));
  module.def("make", &annulus_torch::Make, pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("size"),
             pybind11::arg("timeout_ms"), pybind11::arg("wait_blocks"), pybind11::arg("register_bytes"),
             pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("registered", &annulus_torch::CountsOfRegistered);
  module.def("version", &annulus_version);
}
