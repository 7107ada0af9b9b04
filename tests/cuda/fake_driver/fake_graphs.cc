#include "tests/cuda/fake_driver/fake_graphs.h"

#include <algorithm>
#include <utility>

namespace annulus::cuda {

Result FakeGraphs::Begin(int stream, CaptureMode mode) {
  if (IsCaptured(stream)) return Result::kInvalidValue;
  const int graph = ++last_;
  graphs_[graph];
  captures_[++last_capture_] = {stream, graph, mode, std::this_thread::get_id()};
  captured_[stream] = {last_capture_, {}};
  return Result::kSuccess;
}

// All nodes come before one of the ends, or are one.
bool FakeGraphs::HasAllNodes(const Graph& graph, const Nodes& ends) const {
  Nodes followed;
  for (const Node& node : graph.nodes) followed.insert(node.after.begin(), node.after.end());
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    if (!followed.contains(i) && !ends.contains(i)) return false;
  }
  return true;
}

Result FakeGraphs::End(int stream, int* graph) {
  const auto place = captured_.find(stream);
  if (place == captured_.end()) return Result::kInvalidValue;
  const uint64_t id = place->second.capture;
  const Capture capture = captures_[id];
  if (capture.origin != stream) return Result::kInvalidValue;
  const bool is_joined = HasAllNodes(graphs_[capture.graph], place->second.after);
  captures_.erase(id);
  std::erase_if(captured_, [=](const auto& each) { return each.second.capture == id; });
  std::erase_if(events_, [=](const auto& each) { return each.second.capture == id; });
  *graph = capture.graph;
  if (is_joined && !capture.is_invalid) return Result::kSuccess;
  static_cast<void>(DestroyGraph(std::exchange(*graph, 0)));
  return capture.is_invalid ? Result::kStreamCaptureInvalidated : Result::kStreamCaptureUnjoined;
}

CaptureStatus FakeGraphs::StatusOf(int stream, uint64_t* id, int* graph) const {
  const auto place = captured_.find(stream);
  if (place == captured_.end()) return CaptureStatus::kNone;
  const Capture& capture = captures_.at(place->second.capture);
  *id = place->second.capture;
  *graph = capture.graph;
  return capture.is_invalid ? CaptureStatus::kInvalidated : CaptureStatus::kActive;
}

void FakeGraphs::Invalidate(int stream) {
  const auto place = captured_.find(stream);
  if (place != captured_.end()) captures_[place->second.capture].is_invalid = true;
}

bool FakeGraphs::Disturb(CaptureMode mode) {
  bool disturbs = false;
  for (auto& [id, capture] : captures_) {
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool may_not = capture.mode == CaptureMode::kGlobal
                             ? mode != CaptureMode::kRelaxed
                             : capture.mode == CaptureMode::kThreadLocal && is_own && mode != CaptureMode::kRelaxed;
    if (may_not) disturbs = capture.is_invalid = true;
  }
  return disturbs;
}

Result FakeGraphs::Add(FakeWork work) {
  Place& place = captured_[work.stream];
  const Capture& capture = captures_[place.capture];
  if (capture.is_invalid) return Result::kStreamCaptureInvalidated;
  std::vector<Node>& nodes = graphs_[capture.graph].nodes;
  nodes.push_back({std::move(work), place.after});
  place.after = {static_cast<int>(nodes.size()) - 1};
  return Result::kSuccess;
}

void FakeGraphs::Record(int event, int stream) { events_[event] = captured_[stream]; }

bool FakeGraphs::Wait(int stream, int event, Result* result) {
  const auto recorded = events_.find(event);
  *result = Result::kSuccess;
  if (recorded == events_.end()) {
    // A captured stream cannot wait for work outside of its capture.
    if (!IsCaptured(stream)) return false;
    Invalidate(stream);
    *result = Result::kStreamCaptureUnsupported;
    return true;
  }
  const auto [place, is_new] = captured_.try_emplace(stream, Place{recorded->second.capture, {}});
  if (place->second.capture != recorded->second.capture) {
    *result = Result::kStreamCaptureUnsupported;
    return true;
  }
  place->second.after.insert(recorded->second.after.begin(), recorded->second.after.end());
  return true;
}

Result FakeGraphs::Instantiate(int graph, FakeStreams* streams, int* exec) {
  const auto found = graphs_.find(graph);
  const bool is_captured =
      std::any_of(captures_.begin(), captures_.end(), [=](const auto& each) { return each.second.graph == graph; });
  if (found == graphs_.end() || is_captured) return Result::kInvalidValue;
  *exec = ++last_;
  Exec& made = execs_[*exec];
  made.graph = found->second;
  for (const int object : made.graph.objects) ++objects_[object].references;
  for (const Node& node : made.graph.nodes)
    made.streams.push_back(streams->NewOfNode(streams->DeviceOf(node.work.stream)));
  made.stream = streams->NewOfNode(0);
  return Result::kSuccess;
}

Result FakeGraphs::Launch(int exec, int stream, FakeStreams* streams, const std::function<Result(FakeWork)>& submit) {
  const auto found = execs_.find(exec);
  if (found == execs_.end() || IsCaptured(stream)) return Result::kInvalidValue;
  const Exec& own = found->second;
  streams->Follow(own.stream, stream);
  for (size_t i = 0; i < own.graph.nodes.size(); ++i) {
    const Node& node = own.graph.nodes[i];
    streams->Follow(own.streams[i], own.stream);
    for (const int before : node.after) streams->Follow(own.streams[i], own.streams[static_cast<size_t>(before)]);
    FakeWork work = node.work;
    work.stream = own.streams[i];
    const Result result = submit(std::move(work));
    if (result != Result::kSuccess) return result;
  }
  for (const int each : own.streams) streams->Follow(own.stream, each);
  streams->Follow(stream, own.stream);
  return Result::kSuccess;
}

Result FakeGraphs::DestroyGraph(int graph) {
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return Result::kInvalidValue;
  Drop(found->second.objects);
  graphs_.erase(found);
  return Result::kSuccess;
}

Result FakeGraphs::DestroyExec(int exec) {
  const auto found = execs_.find(exec);
  if (found == execs_.end()) return Result::kInvalidValue;
  leaving_.push_back(std::move(found->second));
  execs_.erase(found);
  return Result::kSuccess;
}

int FakeGraphs::NewObject(std::function<void()> destroy, unsigned references) {
  objects_[++last_] = {std::move(destroy), references};
  return last_;
}

Result FakeGraphs::ReleaseObject(int object, unsigned references) {
  const auto found = objects_.find(object);
  if (found == objects_.end() || found->second.references < references) return Result::kInvalidValue;
  found->second.references -= references;
  if (found->second.references > 0) return Result::kSuccess;
  dead_.push_back(std::move(found->second.destroy));
  objects_.erase(found);
  return Result::kSuccess;
}

Result FakeGraphs::Retain(int graph, int object, unsigned references, bool moves) {
  const auto found = graphs_.find(graph);
  if (found == graphs_.end() || !objects_.contains(object)) return Result::kInvalidValue;
  found->second.objects.insert(found->second.objects.end(), references, object);
  if (!moves) objects_[object].references += references;
  return Result::kSuccess;
}

void FakeGraphs::Drop(const std::vector<int>& objects) {
  for (const int object : objects) static_cast<void>(ReleaseObject(object, 1));
}

std::vector<std::function<void()>> FakeGraphs::Collect(const std::function<bool(int stream)>& is_busy,
                                                       FakeStreams* streams) {
  std::erase_if(leaving_, [&](const Exec& exec) {
    if (is_busy(exec.stream)) return false;
    Drop(exec.graph.objects);
    for (const int each : exec.streams) streams->Destroy(each);
    streams->Destroy(exec.stream);
    return true;
  });
  return std::exchange(dead_, {});
}

}  // namespace annulus::cuda
