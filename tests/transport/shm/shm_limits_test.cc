// Shared memory under a limit on the size of files, which holds for memory files too.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "transport/memory/memory.h"
#include "transport/reactor.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_mapping.h"

namespace annulus {
namespace {

constexpr const char* kLimitText = "ulimit -f, is 4096 bytes";

bool NamesTheLimit(const Status& status) { return status.message().find(kLimitText) != std::string::npos; }

void SetLimit() {
  const rlimit limit{4096, 4096};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::exit(9);
}

[[noreturn]] void MakeMapping() {
  SetLimit();
  std::unique_ptr<ShmMapping> mapping;
  const Status status = ShmMapping::Create(8, 65536, &mapping);
  std::exit(status.code() == Code::kSystem && NamesTheLimit(status) ? 0 : 1);
}

[[noreturn]] void Allocate() {
  SetLimit();
  MemoryRegistry registry;
  void* memory = nullptr;
  const Status status = registry.Allocate(1 << 20, &memory);
  std::exit(status.code() == Code::kOutOfMemory && NamesTheLimit(status) ? 0 : 1);
}

[[noreturn]] void Probe() {
  SetLimit();
  Reactor reactor;
  TransportConfig config;
  config.nranks = 2;
  config.reactor = &reactor;
  const Status status = kShmTransport.create(config)->Probe();
  std::exit(status.code() == Code::kUnsupported && NamesTheLimit(status) ? 0 : 1);
}

// A signal that came before, and that the program has blocked, stays pending for it.
[[noreturn]] void KeepAnEarlierSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  raise(SIGXFSZ);
  SetLimit();
  std::unique_ptr<ShmMapping> mapping;
  if (ShmMapping::Create(8, 65536, &mapping).ok()) std::exit(1);
  sigset_t pending;
  sigpending(&pending);
  std::exit(sigismember(&pending, SIGXFSZ) == 1 ? 0 : 2);
}

TEST(ShmLimits, ALimitOnFilesIsAnErrorThatNamesItAndNoSignal) {
  EXPECT_EXIT(MakeMapping(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Allocate(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(Probe(), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(KeepAnEarlierSignal(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace annulus
