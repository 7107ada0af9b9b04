// How MPI ends: MPI_Finalize with work and calls under way, forked children, communicators and requests that are freed.
//
// Threads: the ranks are processes; some start a second thread.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/meeting.h"
#include "tests/frameworks/mpi_process.h"

namespace annulus_mpi {
namespace {

constexpr Handle kWorld = kCOMM_WORLD;
Status* const kNoStatus = nullptr;

int Init(const Wrapper& mpi) { return mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr)); }

// A framework that leaves it to the environment who is who.
void SetMeeting(const Wrapper& mpi, annulus_mpi_meeting meeting) {
  meeting.struct_bytes = sizeof meeting;
  const auto set = reinterpret_cast<const char* (*)(const annulus_mpi_meeting*)>(mpi.Find("annulus_mpi_set_meeting"));
  EXPECT_EQ(set(&meeting), nullptr);
}

const Wrapper* g_mpi = nullptr;  // For the callback that calls MPI.

int32_t SumBeforeLeaving(char*, size_t) {
  ExpectSum(*g_mpi, kWorld, 2);
  return 0;
}

TEST(MpiEndsTest, QueuedWorkIsDoneBeforeAProcessLeaves) {
  ForkRanks(2, [](const Wrapper& mpi, int rank) {
    g_mpi = &mpi;
    annulus_mpi_meeting meeting{};
    meeting.before_leaving = SumBeforeLeaving;
    if (rank == 0) SetMeeting(mpi, meeting);
    ASSERT_EQ(Init(mpi), kSUCCESS);
    if (rank == 1) ExpectSum(mpi, kWorld, 2);
    EXPECT_EQ(mpi("Finalize"), kSUCCESS);
  });
}

int32_t DoNotWait(char* why, size_t room) {
  std::snprintf(why, room, "its program ended by an exception");
  return 1;
}

// Process 0 finalizes while its other thread is within a call that process 1 does not answer.
void LeaveDuringACall(const annulus_mpi_meeting& meeting, const std::string& why) {
  ForkRanks(2, [&](const Wrapper& mpi, int rank) {
    SetMeeting(mpi, meeting);
    ASSERT_EQ(Init(mpi), kSUCCESS);
    Handle other = 0;
    ASSERT_EQ(mpi("Comm_dup", kWorld, &other), kSUCCESS);
    const Handle type = kINT;
    int sent = 1;
    int got = 0;
    if (rank == 1) {
      EXPECT_EQ(mpi("Recv", &got, 1, type, 0, 1, kWorld, kNoStatus), kSUCCESS);
      EXPECT_EQ(mpi("Send", &sent, 1, type, 0, 0, other), kSUCCESS);
      ExpectError(mpi, mpi("Recv", &got, 1, type, 0, 3, kWorld, kNoStatus), kERR_OTHER, why);
      return;
    }
    std::thread thread([&] {
      int answer = 0;
      const int code = mpi("Sendrecv", &sent, 1, type, 1, 1, &answer, 1, type, 1, 2, kWorld, kNoStatus);
      ExpectError(mpi, code, kERR_OTHER, why);
    });
    // Once this is here, process 1 has what the other thread sends: that one is within its call.
    EXPECT_EQ(mpi("Recv", &got, 1, type, 1, 0, other, kNoStatus), kSUCCESS);
    EXPECT_EQ(mpi("Finalize"), kSUCCESS);
    thread.join();
  });
}

TEST(MpiEndsTest, CallsUnderWayAreAbortedAtOnceWhereTheFrameworkSaysSo) {
  annulus_mpi_meeting meeting{};
  meeting.before_leaving = DoNotWait;
  meeting.leave_timeout_ms = 3'600'000;  // Does not count.
  LeaveDuringACall(meeting, "its program ended by an exception");
}

TEST(MpiEndsTest, OthersLearnWhyAProcessHasEnded) {
  ForkRanks(2, [](const Wrapper& mpi, int rank) {
    annulus_mpi_meeting meeting{};
    meeting.before_leaving = DoNotWait;
    if (rank == 0) SetMeeting(mpi, meeting);
    ASSERT_EQ(Init(mpi), kSUCCESS);
    if (rank == 1) ExpectError(mpi, mpi("Barrier", kWorld), kERR_OTHER, "its program ended by an exception");
    EXPECT_EQ(mpi("Finalize"), kSUCCESS);
  });
}

TEST(MpiEndsTest, CallsUnderWayAreAbortedAfterATime) {
  annulus_mpi_meeting meeting{};
  meeting.leave_timeout_ms = 300;
  LeaveDuringACall(meeting, "did not end within 300 ms");
}

// As one that inherits what JAX does at a program's end.
TEST(MpiEndsTest, AForkedChildDoesNotLeaveForItsParent) {
  ForkInitialised(2, [](const Wrapper& mpi, int) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::string why = "forked from process " + std::to_string(parent);
      int rank = 0;
      ExpectError(mpi, Init(mpi), kERR_OTHER, why);
      ExpectError(mpi, mpi("Comm_rank", kWorld, &rank), kERR_OTHER, why);
      ExpectError(mpi, mpi("Barrier", kWorld), kERR_OTHER, why);
      ExpectError(mpi, mpi("Finalize"), kERR_OTHER, why);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ExpectSum(mpi, kWorld, 2);
  });
}

TEST(MpiEndsTest, RequestsGoWithTheirCommunicator) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    Handle other = 0;
    ASSERT_EQ(mpi("Comm_dup", kWorld, &other), kSUCCESS);
    int number = 0;
    Handle request = kREQUEST_NULL;
    EXPECT_EQ(mpi("Irecv", &number, 1, Handle{kINT}, 1 - rank, 0, other, &request), kSUCCESS);
    EXPECT_EQ(mpi("Comm_free", &other), kSUCCESS);
    ExpectError(mpi, mpi("Wait", &request, kNoStatus), kERR_REQUEST, "its communicator was freed");
    ExpectSum(mpi, kWorld, 2);
  });
}

TEST(MpiEndsTest, AllAreWaitedForThoughTheFirstFails) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    int sent = rank;
    int got = -1;
    Handle requests[3] = {4711, kREQUEST_NULL, kREQUEST_NULL};
    Status statuses[3] = {};
    const Handle type = kINT;
    EXPECT_EQ(mpi("Irecv", &got, 1, type, 1 - rank, 0, kWorld, &requests[1]), kSUCCESS);
    EXPECT_EQ(mpi("Isend", &sent, 1, type, 1 - rank, 0, kWorld, &requests[2]), kSUCCESS);
    ExpectError(mpi, mpi("Waitall", 3, &requests[0], &statuses[0]), kERR_REQUEST, "4711 is not a request");
    EXPECT_EQ(statuses[0].error, kERR_REQUEST);
    EXPECT_EQ(statuses[1].source, 1 - rank);
    EXPECT_EQ(requests[1], Handle{kREQUEST_NULL});
    EXPECT_EQ(requests[2], Handle{kREQUEST_NULL});
    EXPECT_EQ(got, 1 - rank);
  });
}

TEST(MpiEndsTest, CountsThatAnIntCannotHoldAreUndefined) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    Status status{};
    int count = 0;
    status.bytes = size_t{INT_MAX} + 1;
    EXPECT_EQ(mpi("Get_count", &status, Handle{kBYTE}, &count), kSUCCESS);
    EXPECT_EQ(count, kUNDEFINED);
    EXPECT_EQ(mpi("Get_count", &status, Handle{kINT32_T}, &count), kSUCCESS);
    EXPECT_EQ(count, 1 << 29);
  });
}

int32_t g_taken = 0;
int g_raised = 0;

int32_t PlaceOfAnInterrupted(int32_t*, int32_t*, char* why, size_t room) {
  g_taken = SIGINT;
  std::snprintf(why, room, "KeyboardInterrupt");
  return 1;
}

TEST(MpiEndsTest, ASignalThatACallbackTookIsRaisedAgain) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    ASSERT_NE(std::signal(SIGINT, [](int) { ++g_raised; }), SIG_ERR);
    annulus_mpi_meeting meeting{};
    meeting.place = PlaceOfAnInterrupted;
    meeting.taken_signal = &g_taken;
    SetMeeting(mpi, meeting);
    ExpectError(mpi, Init(mpi), kERR_OTHER, "KeyboardInterrupt");
    EXPECT_EQ(g_raised, 1);
    EXPECT_EQ(g_taken, 0);
  });
}

}  // namespace
}  // namespace annulus_mpi
