// What libannulus_mpiwrapper.so refuses and how it says so, and what its names are: never an abort, always an error of
// MPI.
//
// Threads: one; each rank is a process.

#include <annulus.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "frameworks/mpi/abi.h"
#include "frameworks/mpi/meeting.h"
#include "tests/frameworks/mpi_process.h"

namespace annulus_mpi {
namespace {

using testing::HasSubstr;

constexpr Handle kWorld = kCOMM_WORLD;

constexpr const char* kMissing[] = {
#define DONE(name)
#define NUMBERS(name)
#define MISSING(name) #name,
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef NUMBERS
#undef MISSING
};

TEST(MpiErrorsTest, EveryNameIsThere) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    for (const char* name : {
#define DONE(name) "MPIABI_" #name,
#define MISSING(name) "MPIABI_" #name,
#define NUMBERS(name) "MPIABI_" #name "_c2f", "MPIABI_" #name "_f2c",
#include "frameworks/mpi/functions.inc"
#undef DONE
#undef MISSING
#undef NUMBERS
             "MPIXABI_Query_cuda_support", "MPIXABI_Query_hip_support", "MPIXABI_Query_ze_support",
             "mpiwrapper_export_fortran_constants_"}) {
      EXPECT_NE(mpi.Find(name), nullptr) << name;
    }
    for (const auto& [name, value] : std::map<std::string, intptr_t>{
#define CONSTANT(name, value) {#name, value},
#include "frameworks/mpi/constants.inc"
#undef CONSTANT
             {"SUM", kSUM}}) {
      const auto* const found = static_cast<const intptr_t*>(mpi.Find("MPIABI_" + name));
      ASSERT_NE(found, nullptr) << name;
      EXPECT_EQ(*found, value) << name;
    }
    EXPECT_EQ(*static_cast<const int*>(mpi.Find("mpiabi_version_major")), 2);
    EXPECT_EQ(*static_cast<const int*>(mpi.Find("mpiwrapper_version_minor")), 9);
  });
}

TEST(MpiErrorsTest, MissingFunctionsNameThemselves) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    ASSERT_GT(std::size(kMissing), 250U);
    for (const char* name : kMissing) {
      const int code = mpi(name);
      EXPECT_THAT(mpi.TextOf(code), HasSubstr(std::string("MPI_") + name + ": Annulus does not have")) << name;
      int error_class = 0;
      EXPECT_EQ(mpi("Error_class", code, &error_class), kSUCCESS);
      EXPECT_EQ(error_class, kERR_UNSUPPORTED_OPERATION);
    }
  });
}

TEST(MpiErrorsTest, TheOrderOfThingsIsChecked) {
  ForkRanks(2, [](const Wrapper& mpi, int rank) {
    int flag = -1;
    int number = -1;
    ExpectError(mpi, mpi("Comm_rank", kWorld, &number), kERR_OTHER, "MPI_Comm_rank: MPI is not initialised");
    ExpectError(mpi, mpi("Finalize"), kERR_OTHER, "not initialised");
    EXPECT_EQ(mpi("Initialized", &flag), kSUCCESS);
    EXPECT_EQ(flag, 0);
    for (int i = 0; i < 2; ++i) {  // XLA initialises MPI for each of its clients.
      EXPECT_EQ(mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr)), kSUCCESS);
    }
    EXPECT_EQ(mpi("Initialized", &flag), kSUCCESS);
    EXPECT_EQ(flag, 1);
    EXPECT_EQ(mpi("Is_thread_main", &flag), kSUCCESS);
    EXPECT_EQ(flag, 1);
    EXPECT_EQ(mpi("Comm_rank", kWorld, &number), kSUCCESS);
    EXPECT_EQ(number, rank);
    EXPECT_EQ(mpi("Comm_size", kWorld, &number), kSUCCESS);
    EXPECT_EQ(number, 2);
    EXPECT_EQ(mpi("Finalize"), kSUCCESS);
    EXPECT_EQ(mpi("Finalized", &flag), kSUCCESS);
    EXPECT_EQ(flag, 1);
    ExpectError(mpi, mpi("Barrier", kWorld), kERR_OTHER, "MPI was finalized");
    ExpectError(mpi, mpi("Finalize"), kERR_OTHER, "was finalized");
    ExpectError(mpi, mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr)), kERR_OTHER,
                "was finalized");
  });
}

TEST(MpiErrorsTest, WrongArgumentsAreNamedAndTheWorldGoesOn) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    int data[4] = {};
    const Handle type = kINT;
    const Handle sum = kSUM;
    Handle request = 0;
    const auto reduce = [&](int count, Handle datatype, Handle op, Handle comm) {
      return mpi("Allreduce", &data[0], &data[2], count, datatype, op, comm);
    };
    ExpectError(mpi, reduce(1, type, sum, 77), kERR_COMM, "MPI_Allreduce: 77 is not a communicator");
    ExpectError(mpi, reduce(1, type, sum, kCOMM_NULL), kERR_COMM, "0 is not a communicator");
    ExpectError(mpi, reduce(1, type, sum, kCOMM_SELF), kERR_COMM, "MPI_COMM_SELF");
    ExpectError(mpi, reduce(-1, type, sum, kWorld), kERR_COUNT, "the count is -1");
    ExpectError(mpi, reduce(1, 9999, sum, kWorld), kERR_TYPE, "datatype 9999");
    ExpectError(mpi, reduce(1, kLONG_DOUBLE, sum, kWorld), kERR_TYPE, "not one that Annulus has");
    ExpectError(mpi, reduce(1, type, kMINLOC, kWorld), kERR_OP, "MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX");
    ExpectError(mpi, reduce(1, kBYTE, sum, kWorld), kERR_OP, "not for datatype");
    ExpectError(mpi, reduce(1, kC_COMPLEX, kMAX, kWorld), kERR_OP, "not for datatype");
    ExpectError(mpi, reduce(1, kFLOAT, kBXOR, kWorld), kERR_OP, "not for datatype");
    ExpectError(mpi, mpi("Bcast", &data[0], 1, type, 2, kWorld), kERR_ROOT, "root is 2; allowed: 0 to 1");
    ExpectError(mpi, mpi("Send", &data[0], 1, type, 2, 0, kWorld), kERR_RANK, "rank is 2; allowed: 0 to 1");
    ExpectError(mpi, mpi("Send", &data[0], 1, type, rank, 0, kWorld), kERR_ARG, "peer");
    ExpectError(mpi, mpi("Isend", &data[0], 1, type, 1 - rank, -1, kWorld, &request), kERR_TAG, "tag is -1");
    ExpectError(mpi, mpi("Irecv", &data[0], 1, type, 1 - rank, -2, kWorld, &request), kERR_TAG, "tag is -2");
    ExpectError(mpi, mpi("Isend", &data[0], 1, type, static_cast<int>(kANY_SOURCE), 0, kWorld, &request), kERR_RANK,
                "rank is -1");
    request = 4711;
    ExpectError(mpi, mpi("Wait", &request, static_cast<Status*>(nullptr)), kERR_REQUEST, "4711 is not a request");
    ExpectError(mpi, mpi("Allgather", &data[0], 1, type, &data[1], 2, type, kWorld), kERR_COUNT,
                "4 bytes where it is sent and 8 where it is received");
    Handle world = kWorld;
    ExpectError(mpi, mpi("Comm_free", &world), kERR_COMM, "cannot be freed");
    ExpectError(mpi, mpi("Comm_set_errhandler", kWorld, Handle{kERRORS_ARE_FATAL}), kERR_UNSUPPORTED_OPERATION,
                "MPI_ERRORS_RETURN only");
    ExpectSum(mpi, kWorld, 2);
  });
}

TEST(MpiErrorsTest, GroupsAreCommunicatorsOfTheirOwn) {
  ForkInitialised(3, [](const Wrapper& mpi, int rank) {
    Handle pair = 0;
    const int colour = rank == 1 ? static_cast<int>(kUNDEFINED) : 4;
    ASSERT_EQ(mpi("Comm_split", kWorld, colour, rank / 2, &pair), kSUCCESS);
    EXPECT_EQ(pair == kCOMM_NULL, rank == 1);
    if (rank != 1) {
      int own = -1;
      EXPECT_EQ(mpi("Comm_rank", pair, &own), kSUCCESS);
      EXPECT_EQ(own, rank / 2);
      ExpectSum(mpi, pair, 2);
      EXPECT_EQ(mpi("Comm_free", &pair), kSUCCESS);
      EXPECT_EQ(pair, Handle{kCOMM_NULL});
    }
    Handle again = 0;
    ASSERT_EQ(mpi("Comm_dup", kWorld, &again), kSUCCESS);
    ExpectSum(mpi, again, 3);
  });
}

// XLA with two devices in each process splits once for each; the sums would lack half of their parts.
TEST(MpiErrorsTest, AGroupWithGapsIsRefusedAtEachUseOfIt) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    Handle gaps = 0;
    ExpectError(mpi, mpi("Comm_split", kWorld, 0, 2 * rank, &gaps), kERR_ARG, "the keys of 2 processes are 0, 2");
    ASSERT_NE(gaps, Handle{kCOMM_NULL});
    const int one = 1;
    int sum = 0;
    ExpectError(mpi, mpi("Allreduce", &one, &sum, 1, Handle{kINT}, Handle{kSUM}, gaps), kERR_COMM,
                "each process must have one device");
    ExpectSum(mpi, kWorld, 2);
  });
}

TEST(MpiErrorsTest, AWorldThatCannotBeJoinedSaysWhyAtEachUse) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    setenv("ANNULUS_RANK", "5", 1);
    const int code = mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr));
    ExpectError(mpi, code, kERR_OTHER, "5");
    Handle group = 0;
    ExpectError(mpi, mpi("Comm_split", kWorld, 0, 0, &group), kERR_COMM, "5");
    ExpectError(mpi, mpi("Barrier", group), kERR_COMM, "5");
    // Nobody is rank 0, who would copy its own part of a permutation and ask MPI nothing.
    for (const Handle comm : {kWorld, group}) {
      int number = 0;
      ExpectError(mpi, mpi("Comm_rank", comm, &number), kERR_COMM, "5");
      EXPECT_EQ(number, -1);
      ExpectError(mpi, mpi("Comm_size", comm, &number), kERR_COMM, "5");
      EXPECT_EQ(number, 0);
    }
    ExpectError(mpi, mpi("Comm_dup", kWorld, &group), kERR_COMM, "5");
    EXPECT_EQ(group, Handle{kCOMM_NULL});
  });
}

TEST(MpiErrorsTest, AKilledProcessIsNamedByItsNumberInTheJob) {
  ForkInitialised(
      3,
      [](const Wrapper& mpi, int rank) {
        Handle pair = 0;  // The communicator of processes 1 and 2.
        ASSERT_EQ(mpi("Comm_split", kWorld, rank == 0 ? 0 : 1, rank == 2 ? 1 : 0, &pair), kSUCCESS);
        ExpectSum(mpi, pair, rank == 0 ? 1 : 2);
        if (rank == 2) raise(SIGKILL);
        std::vector<float> data(1000);
        int code = kSUCCESS;
        const Handle comm = rank == 0 ? kWorld : pair;
        while (code == kSUCCESS)
          code = mpi("Allreduce", data.data(), data.data(), 1000, Handle{kFLOAT}, Handle{kSUM}, comm);
        EXPECT_EQ(code, kERR_OTHER);
        EXPECT_THAT(mpi.TextOf(code), HasSubstr("at fault: process 2"));
      },
      1);
}

TEST(MpiErrorsTest, AnAbortEndsTheWorkOfAll) {
  ForkInitialised(2, [](const Wrapper& mpi, int rank) {
    if (rank == 1) {
      EXPECT_EQ(mpi("Abort", kWorld, 7), kSUCCESS);
      return;
    }
    const int code = mpi("Barrier", kWorld);
    ExpectError(mpi, code, kERR_OTHER, "MPI_Abort with code 7");
  });
}

int32_t PlaceOfOne(int32_t* rank, int32_t* size, char*, size_t) {
  *rank = 0;
  *size = 1;
  return 0;
}

int32_t NoPlace(int32_t*, int32_t*, char* why, size_t room) {
  std::snprintf(why, room, "there is no job yet");
  return 1;
}

std::map<std::string, std::string>& Values() {
  static std::map<std::string, std::string> values;
  return values;
}

int32_t SetValue(void*, const char* key, const void* value, size_t bytes) {
  Values()[key] = std::string(static_cast<const char*>(value), bytes);
  return 0;
}

int32_t GetValue(void*, const char* key, void* value, size_t capacity, size_t* bytes, int64_t) {
  const std::string& found = Values()[key];
  *bytes = found.size();
  if (found.size() <= capacity) std::memcpy(value, found.data(), found.size());
  return 0;
}

annulus_mpi_meeting MeetingOfOne() {
  annulus_mpi_meeting meeting{};
  meeting.struct_bytes = sizeof meeting;
  meeting.place = PlaceOfOne;
  meeting.store.struct_bytes = sizeof meeting.store;
  meeting.store.set = SetValue;
  meeting.store.get = GetValue;
  return meeting;
}

const char* SetMeeting(const Wrapper& mpi, const annulus_mpi_meeting& meeting) {
  const auto set = reinterpret_cast<const char* (*)(const annulus_mpi_meeting*)>(mpi.Find("annulus_mpi_set_meeting"));
  return set(&meeting);
}

TEST(MpiErrorsTest, AFrameworkMaySayWhoIsWho) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    annulus_mpi_meeting other = MeetingOfOne();
    other.struct_bytes = 8;
    EXPECT_THAT(SetMeeting(mpi, other), HasSubstr("different versions"));
    setenv("ANNULUS_RANK", "3", 1);  // Does not count.
    setenv("ANNULUS_SIZE", "4", 1);
    ASSERT_EQ(SetMeeting(mpi, MeetingOfOne()), nullptr);
    EXPECT_EQ(mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr)), kSUCCESS);
    ExpectSum(mpi, kWorld, 1);
    EXPECT_THAT(SetMeeting(mpi, MeetingOfOne()), HasSubstr("initialised already"));
  });
}

TEST(MpiErrorsTest, AFrameworkThatCannotSayIsNamed) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    annulus_mpi_meeting meeting = MeetingOfOne();
    meeting.place = NoPlace;
    ASSERT_EQ(SetMeeting(mpi, meeting), nullptr);
    ExpectError(mpi, mpi("Init", static_cast<int*>(nullptr), static_cast<char***>(nullptr)), kERR_OTHER,
                "there is no job yet");
  });
}

TEST(MpiErrorsTest, SmallThings) {
  ForkRanks(1, [](const Wrapper& mpi, int) {
    char text[kMaxLibraryVersion];
    int length = 0;
    EXPECT_EQ(mpi("Get_library_version", &text[0], &length), kSUCCESS);
    EXPECT_THAT(std::string(text), HasSubstr("Annulus"));
    EXPECT_EQ(mpi("Get_processor_name", &text[0], &length), kSUCCESS);
    EXPECT_EQ(std::strlen(text), static_cast<size_t>(length));
    int bytes = 0;
    EXPECT_EQ(mpi("Type_size", Handle{kC_DOUBLE_COMPLEX}, &bytes), kSUCCESS);
    EXPECT_EQ(bytes, 16);
    EXPECT_EQ(mpi("Comm_c2f", kWorld), static_cast<int>(kCOMM_WORLD));
    void* memory = nullptr;
    EXPECT_EQ(mpi("Alloc_mem", intptr_t{10000}, Handle{kINFO_NULL}, &memory), kSUCCESS);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(mpi("Free_mem", memory), kSUCCESS);
    const auto now = reinterpret_cast<double (*)()>(mpi.Find("MPIABI_Wtime"));
    const double before = now();
    EXPECT_LE(before, now());
  });
}

}  // namespace
}  // namespace annulus_mpi
