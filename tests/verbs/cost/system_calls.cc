#include "tests/verbs/cost/system_calls.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>

#if defined(__x86_64__)

// A system call that the filter lets through: it knows it by the address behind it.
extern "C" long annulus_passed_call(long number, long a, long b, long c, long d, long e, long f);
extern "C" const char annulus_passed_call_end[];
asm(R"(
  .text
  .globl annulus_passed_call
  .type annulus_passed_call, @function
annulus_passed_call:
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
  .globl annulus_passed_call_end
annulus_passed_call_end:
  ret
  .size annulus_passed_call, .-annulus_passed_call
)");

namespace annulus {
namespace {

constexpr size_t kMostNumbers = 8;

// The tally of the work under way. A signal handler has nothing else to write to.
struct Tally {
  std::atomic<bool> counts = false;
  std::atomic<uint64_t> count = 0;
  std::array<std::atomic<int>, kMostNumbers> numbers{};
};
Tally tally;

// Makes the call that was caught, and counts it.
void OnCall(int, siginfo_t* info, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (tally.counts.load()) {
    const uint64_t at = tally.count.fetch_add(1);
    if (at < kMostNumbers) tally.numbers[at] = info->si_syscall;
  }
  registers[REG_RAX] = annulus_passed_call(info->si_syscall, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                                           registers[REG_R10], registers[REG_R8], registers[REG_R9]);
}

// Lets the kernel send a signal for each system call of this thread, but for those of the handler and its return.
bool CatchCalls() {
  const auto end = reinterpret_cast<uint64_t>(annulus_passed_call_end);
  constexpr auto kAddress = static_cast<uint32_t>(offsetof(seccomp_data, instruction_pointer));
  std::array<sock_filter, 8> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAddress),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(end), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAddress + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(end >> 32), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  }};
  struct sigaction action {};
  action.sa_sigaction = OnCall;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return false;
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

std::optional<SystemCalls> CountSystemCalls(
    const std::function<void(std::function<void()>, std::function<void()>)>& work) {
  bool caught = false;
  tally.count = 0;
  std::thread([&] {
    caught = CatchCalls();
    work([] { tally.counts = true; }, [] { tally.counts = false; });
  }).join();
  if (!caught) return std::nullopt;
  SystemCalls calls{tally.count.load(), ""};
  for (size_t i = 0; i < std::min<uint64_t>(calls.count, kMostNumbers); ++i) {
    calls.numbers += (i == 0 ? "" : ", ") + std::to_string(tally.numbers[i].load());
  }
  return calls;
}

}  // namespace annulus

#else

namespace annulus {

std::optional<SystemCalls> CountSystemCalls(
    const std::function<void(std::function<void()>, std::function<void()>)>& work) {
  std::thread([&] { work([] {}, [] {}); }).join();
  return std::nullopt;
}

}  // namespace annulus

#endif
