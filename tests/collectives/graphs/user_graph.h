// UserGraph: a graph that a program captures from its streams, on the stand-in for CUDA's driver.
//
// Threads: one at a time.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/collectives/api/stream_user.h"
#include "tests/cuda/graph_functions.h"

namespace annulus {

inline const cuda::GraphProgram& Graphs() {
  static const cuda::GraphProgram graphs = [] {
    LoadDriver();
    cuda::GraphProgram found;
    EXPECT_TRUE(found.OpenLoaded("tests/cuda/fake_driver/libcuda.so.1"));
    return found;
  }();
  return graphs;
}

class UserGraph {
 public:
  // Captures what `body` puts into the stream, and into those that it forks from that and joins again.
  UserGraph(cuda::Stream stream, const std::function<void()>& body,
            cuda::CaptureMode mode = cuda::CaptureMode::kThreadLocal) {
    EXPECT_EQ(Graphs().StreamBeginCapture(stream, mode), cuda::Result::kSuccess);
    body();
    EXPECT_EQ(Graphs().StreamEndCapture(stream, &graph_), cuda::Result::kSuccess);
    EXPECT_EQ(Graphs().GraphInstantiateWithFlags(&exec_, graph_, 0), cuda::Result::kSuccess);
  }
  ~UserGraph() { Destroy(); }
  UserGraph(const UserGraph&) = delete;
  UserGraph& operator=(const UserGraph&) = delete;

  cuda::Graph graph() const { return graph_; }
  void Launch(cuda::Stream stream) { EXPECT_EQ(Graphs().GraphLaunch(exec_, stream), cuda::Result::kSuccess); }
  void Destroy() {
    if (graph_ == nullptr) return;
    EXPECT_EQ(Graphs().GraphDestroy(std::exchange(graph_, nullptr)), cuda::Result::kSuccess);
    EXPECT_EQ(Graphs().GraphExecDestroy(exec_), cuda::Result::kSuccess);
  }

 private:
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec exec_ = nullptr;
};

// What comes next in `stream` comes after all that `other` has.
inline void Follow(const StreamUser& user, cuda::Stream stream, cuda::Stream other) {
  cuda::Event event = nullptr;
  EXPECT_EQ(user.driver()->EventCreate(&event, cuda::kEventWithoutTime), cuda::Result::kSuccess);
  EXPECT_EQ(user.driver()->EventRecord(event, other), cuda::Result::kSuccess);
  EXPECT_EQ(user.driver()->StreamWaitEvent(stream, event, 0), cuda::Result::kSuccess);
  EXPECT_EQ(user.driver()->EventDestroy(event), cuda::Result::kSuccess);
}

}  // namespace annulus
