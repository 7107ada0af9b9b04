#include "frameworks/python/call.h"

#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "frameworks/python/collected.h"

namespace annulus_python {

namespace py = pybind11;

namespace {

using Counts = std::vector<size_t>;
using Options = std::shared_ptr<CallOptions>;
using Type = py::class_<CallOptions, Options>;

// Python gives plain integers: the library is the one to judge them.
struct Numbers {
  annulus_kind_t kind;
  size_t count;
  int element;
  int op = ANNULUS_SUM;
  int root = 0;
};

Call Describe(const Options& options, const py::object& send, const py::object& recv, const Numbers& numbers,
              Counts sendcounts = {}, Counts recvcounts = {}) {
  Call described{send, recv, {}, std::move(sendcounts), std::move(recvcounts), options, nullptr};
  described.call.struct_bytes = sizeof described.call;
  described.call.kind = numbers.kind;
  described.call.count = numbers.count;
  described.call.type = static_cast<annulus_type_t>(numbers.element);
  described.call.op = static_cast<annulus_op_t>(numbers.op);
  described.call.root = numbers.root;
  return described;
}

// Methods of the forms (send, recv, count, type), with an operation, a root, or both.
void DefinePlain(Type* type, const char* name, annulus_kind_t kind) {
  type->def(name,
            [kind](const Options& self, const py::object& send, const py::object& recv, size_t count, int element) {
              return Describe(self, send, recv, {kind, count, element});
            });
}
void DefineWithOp(Type* type, const char* name, annulus_kind_t kind) {
  type->def(name, [kind](const Options& self, const py::object& send, const py::object& recv, size_t count, int element,
                         int op) {
    return Describe(self, send, recv, {kind, count, element, op});
  });
}
void DefineWithRoot(Type* type, const char* name, annulus_kind_t kind) {
  type->def(name, [kind](const Options& self, const py::object& send, const py::object& recv, size_t count, int element,
                         int root) {
    return Describe(self, send, recv, {kind, count, element, ANNULUS_SUM, root});
  });
}

void DefineEqualParts(Type* type) {
  DefineWithOp(type, "allreduce", ANNULUS_CALL_ALLREDUCE);
  DefineWithOp(type, "reduce_scatter", ANNULUS_CALL_REDUCE_SCATTER);
  DefinePlain(type, "allgather", ANNULUS_CALL_ALLGATHER);
  DefineWithRoot(type, "broadcast", ANNULUS_CALL_BROADCAST);
  type->def("reduce", [](const Options& self, const py::object& send, const py::object& recv, size_t count, int element,
                         int op, int root) {
    return Describe(self, send, recv, {ANNULUS_CALL_REDUCE, count, element, op, root});
  });
  DefineWithRoot(type, "gather", ANNULUS_CALL_GATHER);
  DefineWithRoot(type, "scatter", ANNULUS_CALL_SCATTER);
  DefinePlain(type, "alltoall", ANNULUS_CALL_ALLTOALL);
  type->def("send", [](const Options& self, const py::object& array, size_t count, int element, int peer, int tag) {
    Call call = Describe(self, array, py::none(), {ANNULUS_CALL_SEND, count, element, ANNULUS_SUM, peer});
    call.call.tag = tag;
    return call;
  });
  type->def("recv", [](const Options& self, const py::object& array, size_t count, int element, int peer, int tag,
                       const std::shared_ptr<Received>& received) {
    Call call = Describe(self, py::none(), array, {ANNULUS_CALL_RECV, count, element, ANNULUS_SUM, peer});
    call.call.tag = tag;
    call.received = received;
    return call;
  });
  type->def("barrier", [](const Options& self) {
    return Describe(self, py::none(), py::none(), {ANNULUS_CALL_BARRIER, 0, ANNULUS_INT32});
  });
}

// Parts of different sizes, in elements, one behind the other.
void DefineParts(Type* type) {
  type->def("allgatherv", [](const Options& self, const py::object& send, const py::object& recv, size_t count,
                             Counts counts, int element) {
    return Describe(self, send, recv, {ANNULUS_CALL_ALLGATHERV, count, element}, {}, std::move(counts));
  });
  type->def("reduce_scatterv", [](const Options& self, const py::object& send, const py::object& recv, size_t count,
                                  Counts counts, int element, int op) {
    return Describe(self, send, recv, {ANNULUS_CALL_REDUCE_SCATTERV, count, element, op}, std::move(counts));
  });
  type->def("gatherv", [](const Options& self, const py::object& send, const py::object& recv, size_t count,
                          Counts counts, int element, int root) {
    return Describe(self, send, recv, {ANNULUS_CALL_GATHERV, count, element, ANNULUS_SUM, root}, {}, std::move(counts));
  });
  type->def("scatterv", [](const Options& self, const py::object& send, const py::object& recv, size_t count,
                           Counts counts, int element, int root) {
    return Describe(self, send, recv, {ANNULUS_CALL_SCATTERV, count, element, ANNULUS_SUM, root}, std::move(counts));
  });
  type->def("alltoallv", [](const Options& self, const py::object& send, const py::object& recv, Counts sendcounts,
                            Counts recvcounts, int element) {
    return Describe(self, send, recv, {ANNULUS_CALL_ALLTOALLV, 0, element}, std::move(sendcounts),
                    std::move(recvcounts));
  });
}

}  // namespace

void SetOptions(const CallOptions& options, annulus_call_t* call) {
  call->timeout_ms = options.timeout_ms;
  call->priority = options.priority;
  call->label = options.label.empty() ? nullptr : options.label.c_str();
  call->flags = options.agree_first ? ANNULUS_AGREE_FIRST : 0;
  if (!options.stream.has_value()) return;
  call->stream = reinterpret_cast<void*>(*options.stream);
  call->stream_kind = ANNULUS_STREAM_CUDA;
}

void DefineCalls(py::module_* module) {
  py::class_<Call> call(*module, "Call");
  py::class_<Received, std::shared_ptr<Received>>(*module, "Received")
      .def(py::init<>())
      .def_property_readonly("source", [](const Received& self) { return self.got.source; })
      .def_property_readonly("tag", [](const Received& self) { return self.got.tag; })
      .def_property_readonly("count", [](const Received& self) { return self.got.count; });
  Type calls(*module, "Calls", Collected<CallOptions>());
  calls.def(py::init([](int64_t timeout_ms, int priority, const std::string& label, const py::object& done,
                        bool agree_first, std::optional<uintptr_t> stream) {
    return std::make_shared<CallOptions>(CallOptions{timeout_ms, priority, label, done, agree_first, stream});
  }));
  DefineEqualParts(&calls);
  DefineParts(&calls);
}

}  // namespace annulus_python
