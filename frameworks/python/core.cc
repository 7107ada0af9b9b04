// pyannulus._core, the extension module: the C API's communicators, requests and numbers. The rest of the package,
// which looks at arrays and gives functions their names, is Python (pyannulus/).
//
// Threads: as Python's, with the global lock (GIL); handle.h says when it is given up.

#include <annulus.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string.h>  // explicit_bzero

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frameworks/python/call.h"
#include "frameworks/python/collected.h"
#include "frameworks/python/failure.h"
#include "frameworks/python/foreign_array.h"
#include "frameworks/python/handle.h"
#include "frameworks/python/reduction.h"
#include "frameworks/python/runner.h"
#include "frameworks/python/started.h"

namespace py = pybind11;

using annulus_python::Call;
using annulus_python::Failure;
using annulus_python::Handle;
using annulus_python::Reduction;
using annulus_python::Work;

namespace {

// -- Configuration ---------------------------------------------------------------------------------------------------

// The names of all settings.
std::vector<std::string> SettingNames() {
  return {
#define ANNULUS_SETTING(name, ...) #name,
#include "frameworks/python/setting_rows.inc"
#undef ANNULUS_SETTING
  };
}

// "name=value" from Python's keywords. The library judges names and values.
std::string Assignment(const std::string& name, const py::handle& value) {
  if (!py::isinstance<py::str>(value) && !py::isinstance<py::int_>(value)) {
    throw py::type_error(name + " takes a str or an int, not " + py::repr(value).cast<std::string>());
  }
  const bool is_flag = py::isinstance<py::bool_>(value);
  return name + "=" + (is_flag ? (value.cast<bool>() ? "1" : "0") : py::str(value).cast<std::string>());
}

std::shared_ptr<Handle> Create(const py::dict& settings) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : settings) texts.push_back(Assignment(name.cast<std::string>(), value));
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);
  annulus_config_t config{};
  annulus_config_init(&config, sizeof config, ANNULUS_FROM_ENVIRONMENT | ANNULUS_FROM_LAUNCHER);
  config.settings = pointers.data();
  const auto create = [&config](annulus_comm_t*, annulus_comm_t** made) { return annulus_comm_create(&config, made); };
  // Texts with the job key must not stay in freed memory.
  const auto wipe = [&texts] {
    for (std::string& text : texts) explicit_bzero(text.data(), text.size());
  };
  try {
    std::shared_ptr<Handle> handle = Handle::Create(create);
    wipe();
    return handle;
  } catch (...) {
    wipe();
    throw;
  }
}

// -- Requests --------------------------------------------------------------------------------------------------------

// A request as Python holds it: the communicator lives as long.
struct Request {
  std::shared_ptr<Handle> handle;
  std::shared_ptr<Work> work;  // Null: the calls were captured into a CUDA graph, and there is nothing to wait for.

  bool Wait(int64_t timeout_ms) const { return work == nullptr || handle->Wait(work, timeout_ms); }
};

using Self = std::shared_ptr<Handle>;
using Comm = annulus_comm_t*;

Request Submit(const Self& self, const std::vector<const Call*>& calls) { return Request{self, self->Start(calls)}; }

// -- Registered memory ----------------------------------------------------------------------------------------------

class RegisteredMemory {
 public:
  explicit RegisteredMemory(size_t bytes) : bytes_(bytes) {
    const annulus_status_t status = annulus_mem_alloc(std::max<size_t>(bytes, 1), &data_);
    if (status != ANNULUS_OK) throw Failure::OfThread(status);
  }
  RegisteredMemory(const RegisteredMemory&) = delete;
  ~RegisteredMemory() { annulus_mem_free(data_); }

  py::buffer_info Buffer() const {
    return {data_, 1, py::format_descriptor<uint8_t>::format(), 1, {bytes_}, {size_t{1}}};
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

// As arrays of CUDA's libraries: they ask for its address, and keep it as long as they use it.
class GpuMemory {
 public:
  GpuMemory(size_t bytes, int device) {
    const annulus_status_t status = Allocate(bytes, device, &data_);
    if (status != ANNULUS_OK) throw Failure::OfThread(status);
  }
  GpuMemory(const GpuMemory&) = delete;
  ~GpuMemory() {
    const py::gil_scoped_release released;  // The driver may wait, for work that needs Python too.
    annulus_mem_free(data_);
  }

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }

 private:
  static annulus_status_t Allocate(size_t bytes, int device, void** memory) {
    const py::gil_scoped_release released;
    return annulus_mem_alloc_device(std::max<size_t>(bytes, 1), device, memory);
  }

  void* data_ = nullptr;
};

std::shared_ptr<Handle> Split(Handle* self, int colour, int key) {
  return self->Derive([=](Comm comm, annulus_comm_t** made) { return annulus_comm_split(comm, colour, key, made); });
}

// What `ask` fills in, which is one of the library's structs.
template <class Struct, class Ask>
Struct Asked(Handle* self, Ask ask) {
  Struct filled{};
  filled.struct_bytes = sizeof filled;
  self->Do([&](Comm comm) { return ask(comm, &filled); });
  return filled;
}

py::dict Memory(Handle* self) {
  const auto memory = Asked<annulus_memory_t>(self, annulus_comm_memory);
  py::dict result;
  result["staging"] = memory.staging;
  result["links"] = memory.links;
  result["work"] = memory.work;
  result["requests"] = memory.requests;
  result["total"] = memory.total;
  result["budget"] = memory.budget;
  result["registered"] = memory.registered;
  result["peers_mapped"] = memory.peers_mapped;
  result["gpu"] = memory.gpu;
  return result;
}

py::dict Device(Handle* self) {
  const auto device = Asked<annulus_device_t>(self, annulus_comm_device);
  py::dict result;
  result["driver"] = device.driver;
  result["path"] = device.path;
  result["number"] = device.number;
  result["capability"] = device.capability;
  result["name"] = device.name;
  result["why"] = device.why;
  return result;
}

std::shared_ptr<Handle> Duplicate(Handle* self) { return self->Derive(annulus_comm_dup); }

// By name.
py::dict TransportCounters(Handle* self) {
  py::dict transports;
  for (int index = 0;; ++index) {
    const auto counters = Asked<annulus_transport_counters_t>(
        self, [index](Comm comm, auto* filled) { return annulus_comm_transport_counters(comm, index, filled); });
    if (counters.transport[0] == '\0') return transports;
    py::dict values;
    values["sent_bytes"] = counters.sent_bytes;
    values["received_bytes"] = counters.received_bytes;
    values["retransmits"] = counters.retransmits;
    values["reconnects"] = counters.reconnects;
    values["bytes_sent_again"] = counters.bytes_sent_again;
    values["read_bytes"] = counters.read_bytes;
    values["landed_bytes"] = counters.landed_bytes;
    transports[counters.transport] = values;
  }
}

py::dict Counters(Handle* self) {
  const auto counters = Asked<annulus_counters_t>(self, annulus_comm_counters);
  py::dict values;
  values["collectives"] = counters.collectives;
  values["collectives_failed"] = counters.collectives_failed;
  values["messages"] = counters.messages;
  values["messages_failed"] = counters.messages_failed;
  values["data_bytes"] = counters.data_bytes;
  values["driven_ns"] = counters.driven_ns;
  values["waited_ns"] = counters.waited_ns;
  values["sleeps"] = counters.sleeps;
  values["slowest_peer_ns"] = counters.slowest_peer_ns;
  values["slowest_peer"] = counters.slowest_peer;
  values["transports"] = TransportCounters(self);
  return values;
}

// -- Numbers ---------------------------------------------------------------------------------------------------------

// By the names of numpy's types, and of ml_dtypes' for what numpy lacks.
py::dict Types() {
  py::dict types;
  types["int8"] = static_cast<int>(ANNULUS_INT8);
  types["uint8"] = static_cast<int>(ANNULUS_UINT8);
  types["int32"] = static_cast<int>(ANNULUS_INT32);
  types["uint32"] = static_cast<int>(ANNULUS_UINT32);
  types["int64"] = static_cast<int>(ANNULUS_INT64);
  types["uint64"] = static_cast<int>(ANNULUS_UINT64);
  types["float16"] = static_cast<int>(ANNULUS_FLOAT16);
  types["bfloat16"] = static_cast<int>(ANNULUS_BFLOAT16);
  types["float32"] = static_cast<int>(ANNULUS_FLOAT32);
  types["float64"] = static_cast<int>(ANNULUS_FLOAT64);
  types["float8_e4m3fn"] = static_cast<int>(ANNULUS_FLOAT8_E4M3);
  types["float8_e5m2"] = static_cast<int>(ANNULUS_FLOAT8_E5M2);
  types["int16"] = static_cast<int>(ANNULUS_INT16);
  types["uint16"] = static_cast<int>(ANNULUS_UINT16);
  types["bool"] = static_cast<int>(ANNULUS_BOOL);
  types["complex64"] = static_cast<int>(ANNULUS_COMPLEX64);
  types["complex128"] = static_cast<int>(ANNULUS_COMPLEX128);
  return types;
}

py::dict Ops() {
  py::dict ops;
  ops["sum"] = static_cast<int>(ANNULUS_SUM);
  ops["prod"] = static_cast<int>(ANNULUS_PROD);
  ops["min"] = static_cast<int>(ANNULUS_MIN);
  ops["max"] = static_cast<int>(ANNULUS_MAX);
  ops["avg"] = static_cast<int>(ANNULUS_AVG);
  ops["band"] = static_cast<int>(ANNULUS_BAND);
  ops["bor"] = static_cast<int>(ANNULUS_BOR);
  ops["bxor"] = static_cast<int>(ANNULUS_BXOR);
  return ops;
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C API of Annulus, for the package pyannulus only.";
  annulus_python::RegisterFailure();
  module.attr("TYPES") = Types();
  const py::dict ops = Ops();
  module.attr("OPS") = ops;
  module.attr("ALLREDUCE") = static_cast<int>(ANNULUS_CALL_ALLREDUCE);
  module.attr("REDUCE_SCATTER") = static_cast<int>(ANNULUS_CALL_REDUCE_SCATTER);
  module.attr("ALLGATHER") = static_cast<int>(ANNULUS_CALL_ALLGATHER);
  module.attr("REDUCE") = static_cast<int>(ANNULUS_CALL_REDUCE);
  module.attr("GATHER") = static_cast<int>(ANNULUS_CALL_GATHER);
  module.attr("SCATTER") = static_cast<int>(ANNULUS_CALL_SCATTER);
  module.attr("ALLTOALL") = static_cast<int>(ANNULUS_CALL_ALLTOALL);
  module.attr("ALLGATHERV") = static_cast<int>(ANNULUS_CALL_ALLGATHERV);
  module.attr("REDUCE_SCATTERV") = static_cast<int>(ANNULUS_CALL_REDUCE_SCATTERV);
  module.attr("GATHERV") = static_cast<int>(ANNULUS_CALL_GATHERV);
  module.attr("SCATTERV") = static_cast<int>(ANNULUS_CALL_SCATTERV);
  module.attr("ALLTOALLV") = static_cast<int>(ANNULUS_CALL_ALLTOALLV);
  module.attr("BROADCAST") = static_cast<int>(ANNULUS_CALL_BROADCAST);
  module.attr("BARRIER") = static_cast<int>(ANNULUS_CALL_BARRIER);
  module.attr("SEND") = static_cast<int>(ANNULUS_CALL_SEND);
  module.attr("RECV") = static_cast<int>(ANNULUS_CALL_RECV);
  module.attr("SETTINGS") = SettingNames();
  module.def("version", &annulus_version);
  module.def("status_string", [](int status) { return annulus_status_string(static_cast<annulus_status_t>(status)); });
  module.def("create", &Create);

  py::class_<RegisteredMemory>(module, "RegisteredMemory", py::buffer_protocol())
      .def(py::init<size_t>())
      .def_buffer(&RegisteredMemory::Buffer);
  py::class_<GpuMemory>(module, "GpuMemory")
      .def(py::init<size_t, int>())
      .def_property_readonly("address", &GpuMemory::address);
  py::class_<Request>(module, "Request").def("wait", &Request::Wait);

  py::class_<Reduction, std::shared_ptr<Reduction>>(module, "Reduction", annulus_python::Collected<Reduction>())
      .def_property_readonly("error", &Reduction::error);
  annulus_python::DefineCalls(&module);
  annulus_python::DefineForeignArrays(&module);

  py::class_<Handle, Self>(module, "Handle")
      .def_property_readonly("rank", &Handle::rank)
      .def_property_readonly("size", &Handle::size)
      .def_property_readonly("local_rank", &Handle::local_rank)
      .def_property_readonly("local_size", &Handle::local_size)
      .def_property_readonly("closed", &Handle::closed)
      .def("memory", &Memory)
      .def("device", &Device)
      .def("split", &Split)
      .def("dup", &Duplicate)
      .def("create_premul_sum", &Handle::CreatePremulSum)
      .def("create_reduction", &Handle::CreateReduction)
      .def("destroy_operation", &Handle::DestroyOperation)
      .def("counters", &Counters)
      .def("submit", &Submit)
      .def("run", &Handle::Run)
      .def("check_not_in_reduction", &Handle::CheckNotInReduction)
      .def("verdict", &Handle::Verdict)
      .def("abort", &Handle::Abort)
      .def("close", &Handle::Close)
      .def("abandon", &Handle::Abandon);
  annulus_python::DefineStarted(&module);
  annulus_python::DefineRunner(&module, ops);
}
