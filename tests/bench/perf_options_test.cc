// annulus-perf's command line: what sizes mean, and what wrong words are answered with.
#include "bench/perf/perf_options.h"

#include <gtest/gtest.h>

#include <sstream>

namespace annulus::perf {
namespace {

struct Parsed {
  ParseResult result;
  Options options;
  std::string out;
  std::string err;
};

Parsed Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "annulus-perf");
  Parsed parsed;
  std::ostringstream out, err;
  parsed.result = ParseOptions(static_cast<int>(words.size()), words.data(), &parsed.options, out, err);
  parsed.out = out.str();
  parsed.err = err.str();
  return parsed;
}

TEST(ParseSize, UnderstandsUnitsOf1024) {
  size_t bytes = 0;
  for (const auto& [text, expected] : std::vector<std::pair<const char*, size_t>>{
           {"8", 8}, {"1K", 1024}, {"4M", size_t{4} << 20}, {"1G", size_t{1} << 30}, {"3k", 3072}}) {
    EXPECT_TRUE(ParseSize(text, &bytes).ok()) << text;
    EXPECT_EQ(bytes, expected) << text;
  }
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  size_t bytes = 77;
  for (const char* text : {"", "K", "-1", "4Q", "4MB", "1.5M", "0x10", " 8", "99999999999999999999", "9999999999G"}) {
    EXPECT_FALSE(ParseSize(text, &bytes).ok()) << text;
  }
  EXPECT_EQ(bytes, 77u);
}

TEST(ParseOptions, DefaultsRun) {
  const Parsed parsed = Parse({});
  EXPECT_TRUE(parsed.result.run);
  EXPECT_EQ(parsed.options.kinds, std::vector{Kind::kAllreduce});
  EXPECT_EQ(parsed.err, "");
}

TEST(ParseOptions, AllAndListsAreUnderstood) {
  const Parsed parsed = Parse({"--collective", "all", "-d", "int32,float16", "-o", "all", "-b", "1K", "-e", "2K"});
  ASSERT_TRUE(parsed.result.run) << parsed.err;
  EXPECT_EQ(parsed.options.kinds.size(), kAllKinds.size());
  EXPECT_EQ(parsed.options.types, (std::vector{ANNULUS_INT32, ANNULUS_FLOAT16}));
  EXPECT_EQ(parsed.options.ops.size(), kAllOps.size());
}

TEST(ParseOptions, SeveralCallsAreAsynchronousUnlessAModeIsGiven) {
  EXPECT_EQ(Parse({}).options.modes, std::vector{Mode::kBlocking});
  EXPECT_EQ(Parse({"-m", "4"}).options.modes, std::vector{Mode::kAsync});
  EXPECT_EQ(Parse({"-m", "4", "--mode", "blocking"}).options.modes, std::vector{Mode::kBlocking});
  EXPECT_EQ(Parse({"--mode", "group,async"}).options.modes, (std::vector{Mode::kGroup, Mode::kAsync}));
  EXPECT_EQ(Parse({"--mode", "all"}).options.modes.size(), kAllModes.size());
}

TEST(ParseOptions, OnlyACallWithoutAnyOfTheModesIsRefused) {
  EXPECT_FALSE(Parse({"--collective", "pingpong", "--mode", "group"}).result.run);
  EXPECT_TRUE(Parse({"--collective", "pingpong", "--mode", "group,blocking"}).result.run);
  EXPECT_TRUE(Parse({"--collective", "pingpong,sendrecv", "--mode", "group"}).result.run);
  EXPECT_FALSE(Parse({"--collective", "pingpong,pingpong", "--mode", "group"}).result.run);
}

TEST(ParseOptions, WrongWordsNameTheOptionAndWhatIsAllowed) {
  for (const auto& [words, expected] : std::vector<std::pair<std::vector<const char*>, const char*>>{
           {{"-d", "float8"}, "-d: 'float8' is unknown; use int32"},
           {{"-o", "xor"}, "-o: 'xor' is unknown; use sum"},
           {{"-d", "all,flaot32"}, "-d: 'flaot32' is unknown"},
           {{"--mode", "auto,async"}, "--mode: auto stands alone"},
           {{"--json", "a", "--csv", "a"}, "--csv: is the file of --json too"},
           {{"--corrupt", "1", "-c", "0"}, "--corrupt: does not go with -c 0"},
           {{"--collective", "allsum"}, "--collective: 'allsum' is unknown; use allreduce"},
           {{"-b", "4Q"}, "-b: '4Q' is not a size"},
           {{"-b", "0"}, "-b: the smallest size"},
           {{"-b", "2K", "-e", "1K"}, "-e: less than -b"},
           {{"-f", "1"}, "-f: the factor"},
           {{"-e", "1G", "-i", "1"}, "-i: more than"},
           {{"-n", "-3"}, "--iters: '-3' is not a whole number from 0 to 100000000"},
           {{"-c", "2"}, "--check: '2' is not a whole number from 0 to 1"},
           {{"-f", "two"}, "--stepfactor: 'two' is not a number from 0"},
           {{"--seconds", "0"}, "--seconds: '0' is not a number from 0.001 to 3600"},
           {{"--mode", "waiting"}, "--mode: 'waiting' is unknown; use blocking, async, group, overlap, or all"},
           {{"--collective", "pingpong", "--mode", "group"}, "--mode: pingpong has no such mode"},
           {{"--collective", "pingpong", "--mode", "overlap"}, "--mode: pingpong has no such mode"},
           {{"-m", "0"}, "--async: '0' is not a whole number from 1 to 1024"},
           {{"-r", "all"}, "--root: 'all' is not a whole number from 0 to 65535"},
           {{"-r", "-1"}, "--root: '-1' is not a whole number from 0 to 65535"},
           {{"-r", "5000000000"}, "--root: '5000000000' is not a whole number from 0 to 65535"},
           {{"--ranks", "4"}, "--ranks: goes with --explain only"},
           {{"--device", "0", "-R", "1"}, "-R: registered memory is host memory"},
           {{"--device", "0", "--explain", "--ranks", "4"}, "--device: does not go with --ranks"},
           {{"--device", "-2"}, "'-2' is not a whole number from -1 to 1023"},
           {{"--explain", "--ranks", "4", "--hosts", "5"}, "--hosts: more than --ranks"},
           {{"--explain", "--ranks", "4", "-r", "4"}, "-r: there is no rank 4, only 0 to 3"},
           {{"--explain", "--json", "a"}, "--json: does not go with --explain"},
           {{"--explain", "--ranks", "4", "--csv", "a"}, "--csv: does not go with --explain"},
           {{"--counts"},
            "--counts: allreduce has no such form; name others with --collective: reduce_scatter, allgather"},
           {{"--counts", "--collective", "gather", "--explain"}, "--counts: does not go with --explain"},
           {{"--nonsense"}, "--nonsense"}}) {
    const Parsed parsed = Parse(words);
    EXPECT_FALSE(parsed.result.run) << expected;
    EXPECT_EQ(parsed.result.exit_code, kUsageExit) << expected;
    EXPECT_NE(parsed.err.find(expected), std::string::npos) << expected << "\n" << parsed.err;
  }
}

TEST(ParseOptions, HelpLeavesWithZero) {
  const Parsed parsed = Parse({"--help"});
  EXPECT_FALSE(parsed.result.run);
  EXPECT_EQ(parsed.result.exit_code, 0);
  EXPECT_NE(parsed.out.find("annulus-run -np 4 annulus-perf"), std::string::npos);
  EXPECT_NE(parsed.out.find("a group of 1"), std::string::npos) << parsed.out;
}

TEST(Sizes, GrowByFactorOrStepUpToTheEnd) {
  Options options;
  options.min_bytes = 8;
  options.max_bytes = 100;
  options.factor = 2;
  EXPECT_EQ(Sizes(options), (std::vector<size_t>{8, 16, 32, 64}));
  options.step_bytes = 40;
  EXPECT_EQ(Sizes(options), (std::vector<size_t>{8, 48, 88}));
  options.step_bytes = 0;
  options.factor = 1.01;  // Less than one byte more: still every size once, and an end.
  EXPECT_EQ(Sizes(options).size(), 93u);
}

}  // namespace
}  // namespace annulus::perf
