// Every setting: parsed, range-checked and reported alike, from the environment and from the C configuration.
#include "base/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/base/fake_environment.h"

namespace annulus {
namespace {

Options GoodOptions() {
  Options options;
  options.rank = 1;
  options.size = 4;
  options.rendezvous = "127.0.0.1:4000";
  options.job_key = "sixteen letters!";
  return options;
}

std::string ReadError(const std::string& variable, const std::string& value) {
  Options options;
  const Status status = FakeEnvironment{{variable, value}}.Read(&options);
  EXPECT_EQ(status.ok() ? Code::kOk : Code::kInvalidArgument, status.code());
  return status.message();
}

std::string ValidateError(const Options& options) {
  const Status status = Validate(options);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  return status.message();
}

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Options, EmptyEnvironmentGivesDefaults) {
  Options options;
  ASSERT_TRUE(FakeEnvironment({}).Read(&options).ok());
  EXPECT_EQ(options.rank, -1);
  EXPECT_EQ(options.size, -1);
  EXPECT_EQ(options.transport, "auto");
  EXPECT_EQ(options.timeout_ms, 300'000);
  EXPECT_EQ(options.connect_timeout_ms, 60'000);
  EXPECT_EQ(options.channels, 1);
  EXPECT_EQ(options.small_bytes, 16'384);
  EXPECT_EQ(options.spin_us, -1);
  EXPECT_EQ(options.log_level, "warn");
  EXPECT_EQ(options.launcher, "");
}

TEST(Options, EveryVariableReachesItsField) {
  const FakeEnvironment environment{
      {"ANNULUS_RANK", "3"},           {"ANNULUS_SIZE", "8"},           {"ANNULUS_LOCAL_RANK", "1"},
      {"ANNULUS_LOCAL_SIZE", "2"},     {"ANNULUS_RENDEZVOUS", "h:1"},   {"ANNULUS_JOB_KEY", "0123456789abcdef"},
      {"ANNULUS_INSECURE", "1"},       {"ANNULUS_TRANSPORT", "tcp"},    {"ANNULUS_INTERFACE", "eth0"},
      {"ANNULUS_HOST_ID", "a"},        {"ANNULUS_TIMEOUT_MS", "7"},     {"ANNULUS_CONNECT_TIMEOUT_MS", "9"},
      {"ANNULUS_SLICE_BYTES", "4096"}, {"ANNULUS_CHANNELS", "2"},       {"ANNULUS_TCP_SOCKETS", "4"},
      {"ANNULUS_CHECKSUM", "1"},       {"ANNULUS_SMALL_BYTES", "0"},    {"ANNULUS_SPIN_US", "50"},
      {"ANNULUS_LOG", "debug"},        {"ANNULUS_SHM_STORES", "plain"},
  };
  Options options;
  ASSERT_TRUE(environment.Read(&options).ok());
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 2);
  EXPECT_EQ(options.rendezvous, "h:1");
  EXPECT_EQ(options.job_key, "0123456789abcdef");
  EXPECT_EQ(options.insecure, 1);
  EXPECT_EQ(options.transport, "tcp");
  EXPECT_EQ(options.interface_name, "eth0");
  EXPECT_EQ(options.host_id, "a");
  EXPECT_EQ(options.timeout_ms, 7);
  EXPECT_EQ(options.connect_timeout_ms, 9);
  EXPECT_EQ(options.slice_bytes, 4096);
  EXPECT_EQ(options.channels, 2);
  EXPECT_EQ(options.tcp_sockets, 4);
  EXPECT_EQ(options.checksum, 1);
  EXPECT_EQ(options.small_bytes, 0);
  EXPECT_EQ(options.spin_us, 50);
  EXPECT_EQ(options.log_level, "debug");
  EXPECT_EQ(options.shm_stores, "plain");
  EXPECT_EQ(options.launcher, "the ANNULUS_* variables");
  EXPECT_TRUE(Validate(options).ok());
}

TEST(Options, WrongNumberNamesVariableValueAndRange) {
  EXPECT_EQ(ReadError("ANNULUS_TIMEOUT_MS", "abc"),
            "ANNULUS_TIMEOUT_MS is \"abc\"; allowed: a whole number from 1 to "
            "86400000");
  EXPECT_EQ(ReadError("ANNULUS_SLICE_BYTES", "12"),
            "ANNULUS_SLICE_BYTES is \"12\"; allowed: 0, or a whole number from "
            "1024 to 16777216");
  EXPECT_EQ(ReadError("ANNULUS_INSECURE", "yes"), "ANNULUS_INSECURE is \"yes\"; allowed: 0 or 1");
}

TEST(Options, NotWhollyANumberIsWrong) {
  for (const char* value :
       {" 1", "1 ", "+1", "1.0", "1e3", "0x10", "1k", "-", "99999999999999999999", "-99999999999999999999"}) {
    EXPECT_NE(ReadError("ANNULUS_TIMEOUT_MS", value), "") << value;
  }
}

TEST(Options, EveryNumberRefusesWhatIsJustOutside) {
  for (const Setting& setting : Settings()) {
    if (setting.kind != SettingKind::kNumber) continue;
    const int64_t unset = Options{}.*setting.number;
    for (const int64_t wrong : {setting.min - 1, setting.max + 1, INT64_MIN, INT64_MAX}) {
      if (wrong == unset) continue;
      const std::string message = ReadError(setting.variable, std::to_string(wrong));
      EXPECT_TRUE(Contains(message, setting.variable) && Contains(message, AllowedText(setting))) << message;
      Options options = GoodOptions();
      options.*setting.number = wrong;
      const std::string field_message = ValidateError(options);
      EXPECT_TRUE(Contains(field_message, std::string(setting.field) + " (" + setting.variable + ")")) << field_message;
      EXPECT_TRUE(Contains(field_message, AllowedText(setting))) << field_message;
    }
  }
}

TEST(Options, EveryNumberTakesItsBoundsAndItsDefault) {
  for (const Setting& setting : Settings()) {
    if (setting.kind != SettingKind::kNumber) continue;
    for (const int64_t right : {setting.min, setting.max, Options{}.*setting.number}) {
      FakeEnvironment environment{{setting.variable, std::to_string(right)}};
      if (setting.number == &Options::rank) environment = environment.With("ANNULUS_SIZE", "65536");
      if (setting.number == &Options::size) environment = environment.With("ANNULUS_RANK", "0");
      Options options;
      const Status status = environment.Read(&options);
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(options.*setting.number, right) << setting.variable;
    }
  }
}

TEST(Options, EveryDefaultIsAllowed) {
  for (const Setting& setting : Settings()) {
    const std::string text = DefaultText(setting);
    if (setting.number == &Options::rank || setting.number == &Options::size) continue;
    EXPECT_EQ(ReadError(setting.variable, text), "") << setting.variable;
  }
}

TEST(Options, WrongWordNamesTheWords) {
  EXPECT_EQ(ReadError("ANNULUS_TRANSPORT", "TCP"), "ANNULUS_TRANSPORT is \"TCP\"; allowed: auto, shm or tcp");
  EXPECT_EQ(ReadError("ANNULUS_LOG", "warning"), "ANNULUS_LOG is \"warning\"; allowed: error, warn, info or debug");
  Options options = GoodOptions();
  options.transport = "";
  EXPECT_EQ(ValidateError(options), "transport (ANNULUS_TRANSPORT) is \"\"; allowed: auto, shm or tcp");
}

TEST(Options, WrongKeyIsNeverShown) {
  const std::string message = ReadError("ANNULUS_JOB_KEY", "hunter2");
  EXPECT_EQ(message, "ANNULUS_JOB_KEY is 7 characters long; allowed: 16 to 255 characters");
  Options options = GoodOptions();
  options.job_key = "hunter2";
  EXPECT_FALSE(Contains(ValidateError(options), "hunter2"));
}

TEST(Options, WrongTextIsCutInMessages) {
  EXPECT_LT(ReadError("ANNULUS_HOST_ID", std::string(100'000, 'x')).size(), 300u);
  EXPECT_NE(ReadError("ANNULUS_INTERFACE", "sixteen-letters!"), "");
  EXPECT_EQ(ReadError("ANNULUS_INTERFACE", "fifteen-letters"), "");
}

TEST(Options, TextWithZeroByteIsWrong) {
  Options options = GoodOptions();
  options.host_id = std::string("a\0b", 3);
  EXPECT_TRUE(Contains(ValidateError(options), "host_id (ANNULUS_HOST_ID)"));
}

TEST(Options, EmptyVariableCountsAsNotSet) {
  for (const Setting& setting : Settings()) EXPECT_EQ(ReadError(setting.variable, ""), "");
}

TEST(Options, ErrorLeavesOptionsUnchanged) {
  Options options = GoodOptions();
  ASSERT_FALSE((FakeEnvironment{{"ANNULUS_CHANNELS", "2"}, {"ANNULUS_CHECKSUM", "2"}}).Read(&options).ok());
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.channels, 1);
}

TEST(Options, RankWithoutSizeIsWrong) {
  EXPECT_EQ(ReadError("ANNULUS_RANK", "0"), "ANNULUS_RANK is set but ANNULUS_SIZE is not; set both or neither");
  EXPECT_EQ(ReadError("ANNULUS_SIZE", "2"), "ANNULUS_SIZE is set but ANNULUS_RANK is not; set both or neither");
}

TEST(Validate, GoodOptionsPass) { EXPECT_TRUE(Validate(GoodOptions()).ok()); }

TEST(Validate, UnknownRankTellsWhatToDo) {
  Options options = GoodOptions();
  options.rank = -1;
  EXPECT_TRUE(Contains(ValidateError(options), "rank (ANNULUS_RANK) is not known; start the program by annulus-run"));
  options = GoodOptions();
  options.size = -1;
  EXPECT_TRUE(Contains(ValidateError(options), "size (ANNULUS_SIZE) is not known"));
}

TEST(Validate, RanksMustFitTogether) {
  Options options = GoodOptions();
  options.rank = 4;
  options.launcher = "torchrun";
  EXPECT_EQ(ValidateError(options),
            "rank (ANNULUS_RANK) is 4, but size (ANNULUS_SIZE) is 4 (from "
            "torchrun); it must be lower");
  options = GoodOptions();
  options.local_size = 5;
  EXPECT_EQ(ValidateError(options),
            "local_size (ANNULUS_LOCAL_SIZE) is 5, but size (ANNULUS_SIZE) is "
            "4; it must be at most that");
  options = GoodOptions();
  options.local_size = 2;
  options.local_rank = 2;
  EXPECT_EQ(ValidateError(options),
            "local_rank (ANNULUS_LOCAL_RANK) is 2, but local_size "
            "(ANNULUS_LOCAL_SIZE) is 2; it must be lower");
  options = GoodOptions();
  options.local_rank = 4;
  EXPECT_TRUE(Contains(ValidateError(options), "local_rank (ANNULUS_LOCAL_RANK) is 4, but size"));
}

TEST(Validate, SeveralRanksNeedARendezvous) {
  Options options = GoodOptions();
  options.rendezvous.clear();
  EXPECT_TRUE(Contains(ValidateError(options), "rendezvous (ANNULUS_RENDEZVOUS) is not known"));
  options.launcher = "Open MPI";
  EXPECT_TRUE(Contains(ValidateError(options), "Open MPI does not tell")) << ValidateError(options);
}

TEST(Validate, SeveralRanksNeedAKeyOrInsecure) {
  Options options = GoodOptions();
  options.job_key.clear();
  EXPECT_TRUE(Contains(ValidateError(options), "job_key (ANNULUS_JOB_KEY) is not set"));
  options.insecure = 1;
  EXPECT_TRUE(Validate(options).ok());
}

TEST(Validate, OneRankNeedsNeitherRendezvousNorKey) {
  Options options;
  options.rank = 0;
  options.size = 1;
  EXPECT_TRUE(Validate(options).ok());
}

TEST(Settings, NamesAreUnique) {
  std::set<std::string> names;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(names.insert(setting.variable).second) << setting.variable;
    EXPECT_TRUE(names.insert(setting.field).second) << setting.field;
  }
}

TEST(UnknownVariables, AreNamedWithASuggestion) {
  const char* environment[] = {
      "PATH=/bin",        "ANNULUS_RANK=1", "ANNULUS_TIMEOUT=5", "ANNULUS_CHANELS=3", "ANNULUS_SOMETHING_ELSE",
      "XANNULUS_RANKS=2", nullptr};
  const std::vector<std::string> expected = {"ANNULUS_CHANELS (is ANNULUS_CHANNELS meant?)", "ANNULUS_SOMETHING_ELSE",
                                             "ANNULUS_TIMEOUT (is ANNULUS_TIMEOUT_MS meant?)"};
  EXPECT_EQ(UnknownVariables(environment), expected);
  EXPECT_TRUE(UnknownVariables(nullptr).empty());
}

TEST(ParseAddress, TakesNamesAndBothFamilies) {
  std::string host;
  int port;
  ASSERT_TRUE(ParseAddress("node-1.example:4000", &host, &port));
  EXPECT_EQ(host, "node-1.example");
  EXPECT_EQ(port, 4000);
  ASSERT_TRUE(ParseAddress("[fe80::1%eth0]:65535", &host, &port));
  EXPECT_EQ(host, "fe80::1%eth0");
  EXPECT_EQ(port, 65'535);
  EXPECT_EQ(FormatAddress("fe80::1%eth0", 1), "[fe80::1%eth0]:1");
  EXPECT_EQ(FormatAddress("10.0.0.1", 1), "10.0.0.1:1");
}

TEST(ParseAddress, RefusesEverythingElse) {
  std::string host = "unchanged";
  int port = 7;
  for (const char* wrong : {"", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:1x", "::1:4000", "[]:1",
                            "[::1]", "[::1:1", "a b:1", "http://h:1", "h:1:2"}) {
    EXPECT_FALSE(ParseAddress(wrong, &host, &port)) << wrong;
  }
  EXPECT_EQ(host, "unchanged");
  EXPECT_EQ(port, 7);
}

}  // namespace
}  // namespace annulus
