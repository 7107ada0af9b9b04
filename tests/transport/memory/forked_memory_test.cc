// Registered memory in a child that is forked while another thread is at work on it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>

#include "collectives/annulus.h"
#include "collectives/api/process_state.h"
#include "transport/memory/memory.h"

namespace annulus::c_api {
namespace {

constexpr unsigned kPatienceSeconds = 20;

// Takes its time, as an RDMA device does with gigabytes, and until a child has been forked if none waits for that.
class SlowHolder final : public MemoryHolder {
 public:
  void Forget(uint64_t) override {
    is_at_work.set_value();
    (void)is_forked.get_future().wait_for(std::chrono::milliseconds(300));
  }
  std::promise<void> is_at_work;
  std::promise<void> is_forked;
};

TEST(ForkedMemory, AChildFreesMemoryThoughAThreadWasFreeingOther) {
  void* others = nullptr;
  void* childs = nullptr;
  ASSERT_EQ(annulus_mem_alloc(4096, &others), ANNULUS_OK);
  ASSERT_EQ(annulus_mem_alloc(4096, &childs), ANNULUS_OK);
  SlowHolder holder;
  OfProcess().memory.AddHolder(&holder);
  std::thread thread([others] { EXPECT_EQ(annulus_mem_free(others), ANNULUS_OK); });
  holder.is_at_work.get_future().wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatienceSeconds);
    OfProcess().memory.RemoveHolder(&holder);
    _exit(annulus_mem_free(childs) == ANNULUS_OK ? 0 : 1);
  }
  holder.is_forked.set_value();
  thread.join();
  OfProcess().memory.RemoveHolder(&holder);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child hangs, or failed: " << status;
  EXPECT_EQ(annulus_mem_free(childs), ANNULUS_OK);
}

}  // namespace
}  // namespace annulus::c_api
