#include "tests/collectives/observe/trace_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

namespace annulus {
namespace {

// Nanoseconds: as doubles, sums of microseconds are not exact.
int64_t Time(const Json& number) { return std::llround(number.get<double>() * 1000); }

void CheckEvent(const Json& event) {
  ASSERT_TRUE(event.is_object());
  for (const char* text : {"name", "ph", "cat"}) ASSERT_TRUE(event.contains(text) && event[text].is_string()) << event;
  for (const char* number : {"ts", "pid", "tid"}) {
    ASSERT_TRUE(event.contains(number) && event[number].is_number()) << event;
  }
  // Perfetto takes process 0 and thread 0 for the kernel's idle task and leaves their events out.
  ASSERT_TRUE(event["pid"] > 0 && event["tid"] > 0) << event;
  ASSERT_FALSE(event["name"].get<std::string>().empty()) << event;
  ASSERT_TRUE(event["args"].is_object()) << event;
  const std::string phase = event["ph"];
  if (phase == "X") {
    ASSERT_TRUE(event["dur"].is_number() && event["dur"] >= 0) << event;
  } else if (phase == "i") {
    ASSERT_TRUE(event["s"] == "t" || event["s"] == "p") << event;
  } else if (phase == "b" || phase == "e") {
    ASSERT_TRUE(event["id"].is_string()) << event;
  } else {
    ASSERT_EQ(phase, "M") << event;
  }
}

struct Interval {
  int64_t begin;
  int64_t end;
};

// Two intervals of one thread are apart, or one holds the other.
void CheckNesting(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& left, const Interval& right) {
    return left.begin != right.begin ? left.begin < right.begin : left.end > right.end;
  });
  std::vector<Interval> open;
  for (const Interval& interval : intervals) {
    while (!open.empty() && open.back().end <= interval.begin) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(interval.end, open.back().end) << "begun at " << interval.begin << " ns";
    }
    open.push_back(interval);
  }
}

// On each message track, begins and ends alternate.
void CheckPairs(const Json& events) {
  std::map<std::string, int> open;
  for (const Json& event : events) {
    if (event["ph"] == "b") {
      ASSERT_EQ(open[event["id"]]++, 0) << event;
    } else if (event["ph"] == "e") {
      ASSERT_EQ(open[event["id"]]--, 1) << event;
    }
  }
  for (const auto& [id, count] : open) ASSERT_EQ(count, 0) << id;
}

void CheckTrace(const Json& trace) {
  ASSERT_TRUE(trace.is_object());
  ASSERT_TRUE(trace["otherData"]["dropped_events"].is_number_unsigned());
  ASSERT_TRUE(trace["traceEvents"].is_array());
  std::map<int, std::vector<Interval>> threads;
  for (const Json& event : trace["traceEvents"]) {
    ASSERT_NO_FATAL_FAILURE(CheckEvent(event));
    if (event["ph"] != "X") continue;
    threads[event["tid"]].push_back({Time(event["ts"]), Time(event["ts"]) + Time(event["dur"])});
  }
  for (const auto& [thread, intervals] : threads) {
    SCOPED_TRACE("thread " + std::to_string(thread));
    ASSERT_NO_FATAL_FAILURE(CheckNesting(intervals));
  }
  CheckPairs(trace["traceEvents"]);
}

std::vector<Json> Matching(const Json& trace, const char* field, const std::string& value) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event[field] == value) found.push_back(event);
  }
  return found;
}

}  // namespace

Json ReadTrace(const std::string& path) {
  SCOPED_TRACE(path);
  std::ifstream file(path);
  EXPECT_TRUE(file.good());
  const Json trace = Json::parse(file, nullptr, false);
  EXPECT_FALSE(trace.is_discarded());
  if (trace.is_discarded()) return {{"otherData", {}}, {"traceEvents", Json::array()}};
  CheckTrace(trace);
  return trace;
}

std::vector<Json> Named(const Json& trace, const std::string& name) { return Matching(trace, "name", name); }

std::vector<Json> OfCategory(const Json& trace, const std::string& category) {
  return Matching(trace, "cat", category);
}

uint64_t BytesOf(const Json& trace, const std::string& name, uint64_t sequence) {
  uint64_t bytes = 0;
  for (const Json& event : Named(trace, name)) {
    if (event["args"]["sequence"] == sequence) bytes += event["args"]["bytes"].get<uint64_t>();
  }
  return bytes;
}

}  // namespace annulus
