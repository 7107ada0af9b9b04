// Every setting: parsed, range-checked and reported alike, from the environment and from the C configuration.
#include "collectives/core/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/collectives/core/fake_environment.h"

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
  EXPECT_EQ(options.transport, TransportChoice::kAuto);
  EXPECT_EQ(options.timeout_ms, 300'000);
  EXPECT_EQ(options.connect_timeout_ms, 60'000);
  EXPECT_EQ(options.channels, 1);
  EXPECT_EQ(options.small_bytes, 16'384);
  EXPECT_EQ(options.spin_us, -1);
  EXPECT_EQ(options.log_level, LogLevel::kWarn);
  EXPECT_EQ(options.algorithm, std::nullopt);
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
      {"ANNULUS_LOG", "debug"},        {"ANNULUS_SHM_STORES", "plain"}, {"ANNULUS_ALGORITHM", "log_steps"},
      {"ANNULUS_TUNING", "measured"},
  };
  Options options;
  ASSERT_TRUE(environment.Read(&options).ok());
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.local_rank, 1);
  EXPECT_EQ(options.local_size, 2);
  EXPECT_EQ(options.rendezvous, "h:1");
  EXPECT_EQ(options.job_key, "0123456789abcdef");
  EXPECT_TRUE(options.insecure);
  EXPECT_STREQ(kTransportWords[static_cast<size_t>(options.transport)], "tcp");
  EXPECT_EQ(options.interface_name, "eth0");
  EXPECT_EQ(options.host_id, "a");
  EXPECT_EQ(options.timeout_ms, 7);
  EXPECT_EQ(options.connect_timeout_ms, 9);
  EXPECT_EQ(options.slice_bytes, 4096);
  EXPECT_EQ(options.channels, 2);
  EXPECT_EQ(options.tcp_sockets, 4);
  EXPECT_TRUE(options.checksum);
  EXPECT_EQ(options.small_bytes, 0);
  EXPECT_EQ(options.spin_us, 50);
  EXPECT_EQ(options.log_level, LogLevel::kDebug);
  EXPECT_EQ(options.shm_stores, SlotStores::kPlain);
  EXPECT_EQ(options.algorithm, Algorithm::kLogSteps);
  EXPECT_EQ(options.tuning, Tuning::kMeasured);
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

bool IsNumeric(const Setting& setting) {
  return setting.allowed.kind == SettingKind::kNumber || setting.allowed.kind == SettingKind::kFlag;
}

TEST(Options, EveryNumberRefusesWhatIsJustOutside) {
  for (const Setting& setting : Settings()) {
    if (!IsNumeric(setting)) continue;
    const int64_t unset = setting.number(Options());
    for (const int64_t wrong : {setting.allowed.min - 1, setting.allowed.max + 1, INT64_MIN, INT64_MAX}) {
      if (wrong == unset) continue;
      const std::string message = ReadError(setting.variable, std::to_string(wrong));
      EXPECT_TRUE(Contains(message, setting.variable) && Contains(message, AllowedText(setting))) << message;
      Options options = GoodOptions();
      const Status status = SetFromNumber(setting, FullName(setting), wrong, &options);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_TRUE(Contains(status.message(), std::string(setting.name) + " (" + setting.variable + ")"));
      EXPECT_TRUE(Contains(status.message(), AllowedText(setting))) << status.message();
      if (setting.allowed.kind == SettingKind::kFlag) continue;  // A field of type bool has no wrong value.
      setting.set_number(&options, wrong);
      EXPECT_EQ(ValidateError(options), status.message());
    }
  }
}

TEST(Options, EveryNumberTakesItsBoundsAndItsDefault) {
  for (const Setting& setting : Settings()) {
    if (!IsNumeric(setting)) continue;
    for (const int64_t right : {setting.allowed.min, setting.allowed.max, setting.number(Options())}) {
      FakeEnvironment environment{{setting.variable, std::to_string(right)}};
      if (&setting == &SettingNamed("rank")) environment = environment.With("ANNULUS_SIZE", "4096");
      if (&setting == &SettingNamed("size")) environment = environment.With("ANNULUS_RANK", "0");
      Options options;
      const Status status = environment.Read(&options);
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(setting.number(options), right) << setting.variable;
    }
  }
}

TEST(Options, EveryWordReachesItsFieldAndComesBack) {
  for (const Setting& setting : Settings()) {
    for (const char* word : setting.allowed.words) {
      Options options;
      ASSERT_TRUE(FakeEnvironment({{setting.variable, word}}).Read(&options).ok()) << setting.variable << word;
      EXPECT_EQ(ValueText(setting, options), word);
    }
  }
}

TEST(Options, EveryDefaultIsAllowed) {
  for (const Setting& setting : Settings()) {
    const std::string text = DefaultText(setting);
    if (&setting == &SettingNamed("rank") || &setting == &SettingNamed("size")) continue;
    EXPECT_EQ(ReadError(setting.variable, text), "") << setting.variable;
  }
}

TEST(Options, WrongWordNamesTheWords) {
  EXPECT_EQ(ReadError("ANNULUS_TRANSPORT", "TCP"), "ANNULUS_TRANSPORT is \"TCP\"; allowed: auto, shm, verbs or tcp");
  EXPECT_EQ(ReadError("ANNULUS_LOG", "warning"), "ANNULUS_LOG is \"warning\"; allowed: error, warn, info or debug");
  Options options = GoodOptions();
  const Setting& transport = SettingNamed("transport");
  EXPECT_EQ(SetFromText(transport, FullName(transport), "", &options).message(),
            "transport (ANNULUS_TRANSPORT) is \"\"; allowed: auto, shm, verbs or tcp");
  EXPECT_EQ(options.transport, TransportChoice::kAuto);
  options.transport = static_cast<TransportChoice>(7);
  EXPECT_EQ(ValidateError(options), "transport (ANNULUS_TRANSPORT) is \"7\"; allowed: auto, shm, verbs or tcp");
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
  options.insecure = true;
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
    EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
  }
}

TEST(Settings, NamesEndInTheirUnit) {
  for (const Setting& setting : Settings()) {
    const std::string name = setting.name;
    for (const std::string unit : {"bytes", "ms", "us"}) {
      EXPECT_EQ(name.ends_with("_" + unit), setting.allowed.unit == unit) << name;
    }
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

}  // namespace
}  // namespace annulus
