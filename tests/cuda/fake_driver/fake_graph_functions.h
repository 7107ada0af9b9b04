// GraphFunctions: the stand-in's functions that have to do with graphs, with the parameters of the driver's table.
//
// Threads: any.
#pragma once

#include <utility>

#include "tests/cuda/fake_driver/fake_calls.h"

namespace annulus::cuda {

// With a context: the default streams are those of its device.
inline int OfStream(Stream stream) {
  return Fake().gpu().WithStreams([=](FakeStreams* streams) {
    if (stream == nullptr || stream == LegacyStream()) return streams->Legacy(FakeDriver::Device());
    return stream == ThreadStream() ? streams->OfThisThread(FakeDriver::Device()) : ToNumber(stream);
  });
}

// Enqueues body(stream's number) as the driver's function `name`, once the stream takes more work.
template <class Body>
Result Enqueue(const char* name, Stream stream, Body body) {
  Fake().gpu().AwaitRoom(ToNumber(stream));
  return WithContext(name, [&] { return body(OfStream(stream)); });
}

// Has the devices' thread call a function of the program's, which must not call the driver.
inline std::function<void()> HostCall(HostFunction function, void* data) {
  return [=] {
    IsInHostFunction() = true;
    function(data);
    IsInHostFunction() = false;
  };
}

struct GraphFunctions {
  static Result StreamIsCapturing(Stream stream, CaptureStatus* status) {
    return WithContext("cuStreamIsCapturing", [&] {
      uint64_t id = 0;
      int graph = 0;
      const int number = OfStream(stream);
      *status =
          Fake().gpu().WithGraphs([&](FakeGraphs* all, FakeStreams*) { return all->StatusOf(number, &id, &graph); });
      return Result::kSuccess;
    });
  }
  static Result StreamGetCaptureInfo(Stream stream, CaptureStatus* status, uint64_t* id, Graph* graph,
                                     const GraphNode**, const void**, size_t*) {
    return WithContext("cuStreamGetCaptureInfo", [&] {
      int found = 0;
      const int number = OfStream(stream);
      *status =
          Fake().gpu().WithGraphs([&](FakeGraphs* all, FakeStreams*) { return all->StatusOf(number, id, &found); });
      *graph = ToHandle<Graph>(found);
      return Result::kSuccess;
    });
  }
  static Result StreamBeginCapture(Stream stream, CaptureMode mode) {
    return WithContext("cuStreamBeginCapture", [&] {
      if (stream == nullptr || stream == LegacyStream()) return Result::kStreamCaptureUnsupported;
      const int number = OfStream(stream);
      return Fake().gpu().WithGraphs([=](FakeGraphs* all, FakeStreams*) { return all->Begin(number, mode); });
    });
  }
  static Result StreamEndCapture(Stream stream, Graph* graph) {
    return WithContext("cuStreamEndCapture", [&] {
      int made = 0;
      const int number = OfStream(stream);
      const Result result =
          Fake().gpu().WithGraphs([&](FakeGraphs* all, FakeStreams*) { return all->End(number, &made); });
      *graph = ToHandle<Graph>(made);
      return result;
    });
  }
  static Result GraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
    return WithContext("cuGraphInstantiate", [&] {
      int made = 0;
      const Result result = Fake().gpu().WithGraphs(
          [&](FakeGraphs* all, FakeStreams* streams) { return all->Instantiate(ToNumber(graph), streams, &made); });
      *exec = ToHandle<GraphExec>(made);
      return result;
    });
  }
  static Result GraphLaunch(GraphExec exec, Stream stream) {
    return WithContext("cuGraphLaunch", [&] { return Fake().gpu().LaunchGraph(ToNumber(exec), OfStream(stream)); });
  }
  static Result GraphExecDestroy(GraphExec exec) {
    return Without("cuGraphExecDestroy", [&] {
      return Fake().gpu().WithGraphs([=](FakeGraphs* all, FakeStreams*) { return all->DestroyExec(ToNumber(exec)); });
    });
  }
  static Result GraphDestroy(Graph graph) {
    return Without("cuGraphDestroy", [&] {
      return Fake().gpu().WithGraphs([=](FakeGraphs* all, FakeStreams*) { return all->DestroyGraph(ToNumber(graph)); });
    });
  }
  static Result StreamWaitValue64(Stream stream, DevicePointer word, uint64_t value, unsigned flags) {
    return WithContext("cuStreamWaitValue64", [&] {
      if (!Fake().options().waits_for_64_bits) return Result::kNotSupported;
      if (flags != kWaitValueAnd) return Result::kInvalidValue;  // The stand-in has no other.
      return Fake().gpu().WaitBits(OfStream(stream), FromDevice<uint64_t>(word), value);
    });
  }
  static Result LaunchHostFunc(Stream stream, HostFunction function, void* data) {
    return WithContext("cuLaunchHostFunc",
                       [&] { return Fake().gpu().CallHost(OfStream(stream), HostCall(function, data)); });
  }
  static Result UserObjectCreate(UserObject* object, void* data, HostFunction destroy, unsigned references,
                                 unsigned flags) {
    return Without("cuUserObjectCreate", [&] {
      if (flags != kUserObjectWithoutSync || references == 0) return Result::kInvalidValue;
      *object = ToHandle<UserObject>(Fake().gpu().WithGraphs(
          [&](FakeGraphs* all, FakeStreams*) { return all->NewObject(HostCall(destroy, data), references); }));
      return Result::kSuccess;
    });
  }
  static Result UserObjectRelease(UserObject object, unsigned references) {
    return Without("cuUserObjectRelease", [&] {
      return Fake().gpu().WithGraphs(
          [=](FakeGraphs* all, FakeStreams*) { return all->ReleaseObject(ToNumber(object), references); });
    });
  }
  static Result GraphRetainUserObject(Graph graph, UserObject object, unsigned references, unsigned flags) {
    return Without("cuGraphRetainUserObject", [&] {
      return Fake().gpu().WithGraphs([=](FakeGraphs* all, FakeStreams*) {
        return all->Retain(ToNumber(graph), ToNumber(object), references, flags == kMoveUserObject);
      });
    });
  }
};

}  // namespace annulus::cuda
