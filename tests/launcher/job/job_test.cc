// The parts of annulus-run that need no processes: the command line, the reserved port, the ranks' environment.
#include "launcher/job/job.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/job/arguments.h"

namespace annulus {
namespace {

struct Parsed {
  std::optional<int> status;
  std::string error;
  RunArguments arguments;
};

Parsed Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "annulus-run");
  Parsed parsed;
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  parsed.status = ParseArguments(static_cast<int>(words.size()), words.data(), &parsed.arguments);
  testing::internal::GetCapturedStdout();
  parsed.error = testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(Arguments, AllSpellingsOfTheNumberOfRanks) {
  for (const char* option : {"-np", "-n", "--np"})
    EXPECT_EQ(Parse({option, "4", "program"}).arguments.nranks, 4) << option;
  EXPECT_EQ(Parse({"--np=4", "program"}).arguments.nranks, 4);
}

TEST(Arguments, EverythingAfterTheProgramIsTheProgramsOwn) {
  const std::vector<std::string> expected{"program", "-np", "--timeout", "x", "--", "-x"};
  EXPECT_EQ(Parse({"-np", "1", "program", "-np", "--timeout", "x", "--", "-x"}).arguments.command, expected);
  EXPECT_EQ(Parse({"-np", "1", "--", "program", "-np", "--timeout", "x", "--", "-x"}).arguments.command, expected);
  EXPECT_EQ(Parse({"-np", "1", "--", "-odd"}).arguments.command, std::vector<std::string>{"-odd"});
}

TEST(Arguments, OptionsReachTheirFields) {
  const Parsed parsed = Parse({"--timeout", "9", "-x", "A=1", "-np", "2", "-x", "B=", "--no-prefix", "program"});
  EXPECT_FALSE(parsed.status) << parsed.error;
  EXPECT_EQ(parsed.arguments.timeout_s, 9);
  EXPECT_FALSE(parsed.arguments.prefix);
  EXPECT_TRUE(parsed.arguments.bind);
  EXPECT_FALSE(Parse({"-np", "2", "--bind-to", "none", "program"}).arguments.bind);
  ASSERT_EQ(parsed.arguments.variables.size(), 2u);
  EXPECT_EQ(parsed.arguments.variables[0].name, "A");
  EXPECT_EQ(parsed.arguments.variables[0].value, "1");
  EXPECT_EQ(parsed.arguments.variables[1].value, "");
}

TEST(Arguments, MistakesAreExplained) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{}, "-np is missing"},
      {{"program"}, "-np is missing"},
      {{"-np", "2"}, "the program to run is missing"},
      {{"-np", "2", "--"}, "the program to run is missing"},
      {{"-np"}, "--np"},
      {{"-np", "0", "program"}, "not in range"},
      {{"-np", "1025", "program"}, "not in range"},
      {{"-np", "-1", "program"}, "not in range"},
      {{"-np", "many", "program"}, "many"},
      {{"-np", "2", "--bogus", "program"}, "unknown option --bogus"},
      {{"-np", "2", "--timeout", "0", "program"}, "not in range"},
      {{"-np", "2", "--bind-to", "socket", "program"}, "socket not in {cores,none}"},
      {{"-np", "2", "-x", "=1", "program"}, "-x =1 is neither NAME=VALUE nor NAME"},
      {{"-np", "2", "-x", "ANNULUS_RANK=1", "program"}, "-x ANNULUS_RANK is refused"},
  };
  for (const auto& [words, message] : cases) {
    const Parsed parsed = Parse(words);
    EXPECT_EQ(parsed.status, kExitUsage) << message;
    EXPECT_NE(parsed.error.find(message), std::string::npos) << parsed.error;
  }
}

TEST(Arguments, KeyOnTheCommandLineIsRefusedAndNotRepeated) {
  const Parsed parsed = Parse({"-np", "2", "-x", "ANNULUS_JOB_KEY=hunter2hunter2hunter2", "program"});
  EXPECT_EQ(parsed.status, kExitUsage);
  EXPECT_EQ(parsed.error.find("hunter2"), std::string::npos);
}

TEST(Arguments, InformationEndsWithSuccess) {
  for (const char* option : {"--help", "-h", "--version", "--settings"}) EXPECT_EQ(Parse({option}).status, 0) << option;
}

TEST(ReservedPort, WhoConnectsBeforeRankZeroListensIsKept) {
  ReservedPort reserved;
  ASSERT_TRUE(reserved.Reserve("127.0.0.1").ok());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(reserved.port()));
  for (int i = 0; i < 50; ++i) {
    const int peer = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const int accepted = accept(reserved.listener(), nullptr, nullptr);
    ASSERT_GE(accepted, 0);
    close(accepted);
    close(peer);
  }
}

TEST(Job, EnvironmentIsTheCallersWithOurs) {
  RunArguments arguments;
  arguments.nranks = 3;
  arguments.variables = {{"COLOUR", "blue"}, {"HOME", std::nullopt}};
  const char* environment[] = {"COLOUR=red", "HOME=/h", "ANNULUS_RANK=77", "ANNULUS_RENDEZVOUS=elsewhere:1", nullptr};
  Job job;
  const Status status = job.Prepare(arguments, environment);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<std::string> entries = job.EnvironmentOf(2);
  for (const char* expected :
       {"COLOUR=blue", "HOME=/h", "ANNULUS_RANK=2", "ANNULUS_SIZE=3", "ANNULUS_LOCAL_RANK=2", "ANNULUS_LOCAL_SIZE=3"}) {
    EXPECT_EQ(std::ranges::count(entries, expected), 1) << expected;
  }
  EXPECT_EQ(
      std::ranges::count_if(entries, [](const std::string& e) { return e.starts_with("ANNULUS_RENDEZVOUS=127"); }), 1);
}

TEST(Job, EnvironmentForOtherHostsIsOurSettingsAndWhatIsPassedOn) {
  RunArguments arguments;
  arguments.nranks = 3;
  arguments.variables = {{"COLOUR", "blue"}, {"SHAPE", std::nullopt}};
  const char* environment[] = {"COLOUR=red",         "SHAPE=round",     "ANNULUS_HOST_ID=here",           "HOME=/h",
                               "ANNULUS_CHANNELS=2", "ANNULUS_RANK=77", "ANNULUS_RENDEZVOUS=elsewhere:1", nullptr};
  Job job;
  const Status status = job.PrepareForHosts(arguments, environment);
  ASSERT_TRUE(status.ok()) << status.ToString();
  Variables variables = job.variables();
  EXPECT_EQ(variables["ANNULUS_JOB_KEY"].size(), 64u);
  variables.erase("ANNULUS_JOB_KEY");
  EXPECT_EQ(variables["ANNULUS_RUN_ID"].size(), 16u);
  variables.erase("ANNULUS_RUN_ID");
  EXPECT_EQ(variables, (Variables{{"ANNULUS_CHANNELS", "2"}, {"COLOUR", "blue"}, {"SHAPE", "round"}}));
}

TEST(Job, VariableThatIsNotSetCannotBePassedOn) {
  RunArguments arguments;
  arguments.nranks = 2;
  arguments.variables = {{"NOWHERE", std::nullopt}};
  const char* environment[] = {nullptr};
  EXPECT_EQ(Job().Prepare(arguments, environment).message(), "-x NOWHERE passes on a variable that is not set here");
}

TEST(Job, ShortKeyOfTheCallerIsRefused) {
  RunArguments arguments;
  arguments.nranks = 2;
  const char* environment[] = {"ANNULUS_JOB_KEY=short", nullptr};
  const Status status = Job().Prepare(arguments, environment);
  EXPECT_EQ(status.message(), "ANNULUS_JOB_KEY is 5 characters long; allowed: 16 to 255 characters");
}

TEST(MakeJobKey, IsLongAndNew) {
  EXPECT_EQ(MakeJobKey().size(), 64u);
  EXPECT_NE(MakeJobKey(), MakeJobKey());
}

}  // namespace
}  // namespace annulus
