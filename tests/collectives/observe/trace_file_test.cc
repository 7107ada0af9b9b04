// TraceFile and Trace: names of files, the ring and what is written of it. What communicators put into it is in
// trace_test.cc.
#include "collectives/observe/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "tests/collectives/observe/trace_reader.h"

namespace annulus {
namespace {

TraceEvent Slice(uint64_t number) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kSent;
  event.peer = 1;
  event.bytes = event.slice = number;
  event.call.sequence = event.call.count = number;
  event.begin = static_cast<Nanoseconds>(number);
  return event;
}

std::string Pattern(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(TracePath, HasTheRankWhereAskedOrAtItsEnd) {
  EXPECT_EQ(TracePath("/tmp/trace.%r.json", 7), "/tmp/trace.7.json");
  EXPECT_EQ(TracePath("/tmp/trace.json", 7), "/tmp/trace.json.7");
  EXPECT_EQ(TracePath("%r/%r%%", 12), "12/12%%");
}

TEST(Trace, ForgetsTheOldestAndSaysHowMany) {
  Trace trace(8);
  for (uint64_t i = 0; i < 20; ++i) trace.Add(Slice(i));
  const Trace::Content content = trace.Read(0);
  ASSERT_EQ(content.events.size(), 7u);  // One record may always be in the writer's hands.
  EXPECT_EQ(content.dropped, 13u);
  for (size_t i = 0; i < content.events.size(); ++i) EXPECT_EQ(content.events[i].bytes, content.dropped + i);
}

TEST(Trace, HasTheNewestWhenOnlySomeAreAskedFor) {
  Trace trace(64);
  for (uint64_t i = 0; i < 20; ++i) trace.Add(Slice(i));
  const Trace::Content content = trace.Read(0, 5);
  ASSERT_EQ(content.events.size(), 5u);
  EXPECT_EQ(content.dropped, 15u);
  EXPECT_EQ(content.events.front().bytes, 15u);
}

TEST(Trace, ReadWhileWrittenHasWholeEventsInOrder) {
  Trace trace(64);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop.load(); ++i) trace.Add(Slice(i));
  });
  for (int round = 0; round < 200; ++round) {
    const Trace::Content content = trace.Read(0);
    uint64_t expected = content.dropped;
    for (const TraceEvent& event : content.events) {
      ++expected;
      ASSERT_EQ(event.bytes, expected);
      ASSERT_EQ(event.slice, expected);
      ASSERT_EQ(event.call.sequence, expected);
      ASSERT_EQ(event.call.count, expected);
    }
  }
  stop.store(true);
  writer.join();
}

TEST(TraceFile, EachCommunicatorOfAProcessHasAFileOfItsOwn) {
  TraceOwner owner;
  owner.process_rank = 3;
  std::unique_ptr<TraceFile> first, second;
  ASSERT_TRUE(TraceFile::Create(Pattern("several.%r.json"), owner, &first).ok());
  ASSERT_TRUE(TraceFile::Create(Pattern("several.%r.json"), owner, &second).ok());
  EXPECT_EQ(first->path(), Pattern("several.3.json"));
  EXPECT_EQ(second->path(), Pattern("several.3.json.2"));
  EXPECT_EQ(ReadTrace(second->path())["otherData"]["communicator"], 2);
}

TEST(TraceFile, TextsCannotBreakTheFile) {
  TraceOwner owner;
  std::unique_ptr<TraceFile> file;
  ASSERT_TRUE(TraceFile::Create(Pattern("texts.%r"), owner, &file).ok());
  file->trace()->AddLink({1, 0, "shm", "a \"quoted\" \\ name\n\x01\xff", 5});
  Verdict verdict;
  verdict.code = Code::kPeerLost;
  verdict.message = "rank \"1\"\t\x80";
  file->trace()->SetVerdict(verdict, 9);
  const std::string path = file->path();
  file.reset();
  const Json trace = ReadTrace(path);
  EXPECT_EQ(Named(trace, "link to rank 1").at(0)["args"]["description"], "a \"quoted\" \\ name???");
  EXPECT_EQ(Named(trace, "peer lost").at(0)["args"]["message"], "rank \"1\"??");
}

TEST(TraceFile, AFileThatCannotBeWrittenIsAnErrorAtOnce) {
  std::unique_ptr<TraceFile> file;
  const Status status = TraceFile::Create(Pattern("nowhere/trace"), TraceOwner(), &file);
  EXPECT_EQ(status.code(), Code::kSystem);
  EXPECT_EQ(status.os_errno(), ENOENT);
  EXPECT_NE(status.message().find("nowhere/trace.0"), std::string::npos) << status.message();
  // The folder may come into being later.
  ASSERT_NE(file, nullptr);
  std::filesystem::create_directory(Pattern("nowhere"));
  EXPECT_TRUE(file->Write().ok());
  std::filesystem::remove_all(Pattern("nowhere"));
}

TEST(TraceFile, AForkedChildLeavesItAlone) {
  std::unique_ptr<TraceFile> file;
  ASSERT_TRUE(TraceFile::Create(Pattern("forked"), TraceOwner(), &file).ok());
  ASSERT_TRUE(std::filesystem::remove(file->path()));
  EXPECT_EXIT(std::exit(0), testing::ExitedWithCode(0), "");
  EXPECT_FALSE(std::filesystem::exists(file->path()));
}

[[noreturn]] void WriteUnderALimit() {
  std::unique_ptr<TraceFile> file;
  if (!TraceFile::Create(Pattern("limited"), TraceOwner(), &file).ok()) std::exit(1);
  const rlimit limit{16, 16};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::exit(2);
  const Status status = file->Write();
  const bool named = status.message().find("ulimit -f, is 16 bytes") != std::string::npos;
  std::exit(status.os_errno() == EFBIG && named ? 0 : 3);
}

// The kernel's signal would end the process.
TEST(TraceFile, ALimitOnFilesIsAnErrorThatNamesIt) { EXPECT_EXIT(WriteUnderALimit(), testing::ExitedWithCode(0), ""); }

// The folder is gone when the file is due: a warning, and nothing else.
TEST(TraceFile, AFolderThatVanishesDoesNoHarm) {
  const std::string folder = Pattern("vanishing");
  std::filesystem::create_directory(folder);
  std::unique_ptr<TraceFile> file;
  ASSERT_TRUE(TraceFile::Create(folder + "/trace", TraceOwner(), &file).ok());
  std::filesystem::remove_all(folder);
  EXPECT_EQ(file->Write().code(), Code::kSystem);
}

// Also of a communicator that has ended, while its process lives.
TEST(TraceFile, TakesAnotherNameWhereAnotherProcessHasWrittenThatOne) {
  const std::string pattern = Pattern("taken");
  const std::string name = TracePath(pattern, 3);
  int has_written[2];
  int may_end[2];
  ASSERT_EQ(pipe2(has_written, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(may_end, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(may_end[1]);
    std::unique_ptr<TraceFile> file;
    const bool good = TraceFile::Create(pattern, {.process_rank = 3}, &file).ok() && file->path() == name;
    file = nullptr;
    char byte = good ? 'y' : 'n';
    static_cast<void>(!write(has_written[1], &byte, 1));
    static_cast<void>(!read(may_end[0], &byte, 1));
    _exit(0);
  }
  close(has_written[1]);
  char byte = 'n';
  EXPECT_EQ(read(has_written[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  const std::string own = name + ".p" + std::to_string(getpid());
  for (const std::string& path : {own, own + ".2"}) {
    std::unique_ptr<TraceFile> file;
    EXPECT_TRUE(TraceFile::Create(pattern, {.process_rank = 3}, &file).ok());
    EXPECT_EQ(file->path(), path);
    EXPECT_TRUE(file->Write().ok());
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  close(may_end[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  for (const int fd : {has_written[0], may_end[0]}) close(fd);
}

TEST(TraceFile, TakesTheNameOfAProcessThatHasEnded) {
  const std::string pattern = Pattern("left");
  const std::string name = TracePath(pattern, 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::unique_ptr<TraceFile> file;
    _exit(TraceFile::Create(pattern, {.process_rank = 3}, &file).ok() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(std::filesystem::exists(name));
  std::unique_ptr<TraceFile> file;
  EXPECT_TRUE(TraceFile::Create(pattern, {.process_rank = 3}, &file).ok());
  EXPECT_EQ(file->path(), name);
}

}  // namespace
}  // namespace annulus
