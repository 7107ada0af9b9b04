#include "launcher/watch/watch_view.h"

#include <algorithm>
#include <cstdio>

#include "collectives/core/collective.h"

namespace annulus {
namespace {

constexpr size_t kMostInALine = 8;  // Ranks that a log's line describes one by one.

bool Waits(const RankView& view) {
  return view.joined && !view.stopped && view.inside != Board::kNothing && view.waits >= kNotableWait &&
         view.waiting_for >= 0;
}

std::string CallText(const RankView& view) {
  if (view.sequence == 0) return view.inside == Board::kMessages ? "messages" : "no call yet";
  const auto kind = static_cast<CollectiveKind>(std::min<uint64_t>(view.kind, 255));
  std::string text = "#" + std::to_string(view.sequence) + " " + KindName(kind);
  if (view.count > 0) text += " " + std::to_string(view.count);
  return text;
}

std::string SecondsText(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time) / kSecond);
  return text;
}

std::string RateText(double bytes_per_second) {
  constexpr const char* kUnits[] = {"B/s", "kB/s", "MB/s", "GB/s"};
  size_t unit = 0;
  while (bytes_per_second >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes_per_second /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", unit == 0 ? 0 : 1, bytes_per_second, kUnits[unit]);
  return text;
}

std::string StateText(const RankView& view) {
  if (!view.joined) return "not joined";
  if (view.stopped) return "STOPPED";
  if (view.failed) return "failed";
  if (Waits(view)) return "waits " + SecondsText(view.waits) + " for rank " + std::to_string(view.waiting_for);
  if (view.inside == Board::kNothing) return "outside";
  return view.inside == Board::kMessages ? "messages" : "inside";
}

// The changes between two moments.
struct Progress {
  double bytes_per_second = 0;
  int waited_percent = 0;
};

Progress ProgressOf(const WatchMoment& before, const WatchMoment& now, int rank) {
  Progress progress;
  const Nanoseconds interval = now.at - before.at;
  if (interval <= 0 || static_cast<size_t>(rank) >= before.ranks.size()) return progress;
  const RankView& old = before.ranks[rank];
  const RankView& view = now.ranks[rank];
  // Another process may have taken over the board.
  if (view.moved_bytes >= old.moved_bytes) {
    progress.bytes_per_second = static_cast<double>(view.moved_bytes - old.moved_bytes) * kSecond / interval;
  }
  const Nanoseconds waited = std::clamp<Nanoseconds>(view.waited - old.waited, 0, interval);
  progress.waited_percent = static_cast<int>(100 * waited / interval);
  return progress;
}

std::vector<double> WaitedShares(const WatchMoment& before, const WatchMoment& now) {
  std::vector<double> shares;
  const Nanoseconds interval = now.at - before.at;
  for (size_t rank = 0; rank < now.ranks.size(); ++rank) {
    const Nanoseconds waited = std::clamp<Nanoseconds>(now.ranks[rank].waited - before.ranks[rank].waited, 0, interval);
    shares.push_back(static_cast<double>(waited) / interval);
  }
  return shares;
}

// The median; for an even number of shares, the larger of the two in the middle.
double MedianOf(std::vector<double> shares) {
  const auto middle = shares.begin() + shares.size() / 2;
  std::nth_element(shares.begin(), middle, shares.end());
  return *middle;
}

std::string PercentText(double share) { return std::to_string(static_cast<int>(100 * share)) + " %"; }

std::string TopLine(const WatchMoment& before, const WatchMoment& now) {
  const std::string headline = Headline(now);
  return headline.empty() ? Habit(before, now) : headline;
}

std::string Mark(const WatchMoment& before, const WatchMoment& now, int rank) {
  if (Lags(before, now, rank)) return "lags";
  return LateEveryTime(before, now) == rank ? "late" : "";
}

std::string Cut(std::string text, int columns) {
  if (columns > 0 && text.size() > static_cast<size_t>(columns)) text.resize(static_cast<size_t>(columns));
  return text;
}

}  // namespace

int CulpritOf(const std::vector<RankView>& ranks, int rank) {
  if (!Waits(ranks[rank])) return -1;
  std::vector<int> chain;
  int at = rank;
  while (Waits(ranks[at])) {
    const auto seen = std::find(chain.begin(), chain.end(), at);
    if (seen != chain.end()) {
      return *std::min_element(seen, chain.end(),
                               [&](int left, int right) { return ranks[left].sequence < ranks[right].sequence; });
    }
    chain.push_back(at);
    at = ranks[at].waiting_for;
    if (static_cast<size_t>(at) >= ranks.size()) return -1;
  }
  return at;
}

bool Lags(const WatchMoment& before, const WatchMoment& now, int rank) {
  uint64_t reached = 0;
  for (const RankView& view : before.ranks) reached = std::max(reached, view.sequence);
  return now.ranks[rank].joined && now.ranks[rank].sequence < reached;
}

// In a ring each rank waits for its neighbour, so whom they wait for says little; the rank that hardly waits is late.
int LateEveryTime(const WatchMoment& before, const WatchMoment& now) {
  if (before.ranks.size() != now.ranks.size() || now.ranks.size() < 2 || now.at <= before.at) return -1;
  constexpr uint64_t kFewestCalls = 3;  // Fewer are no habit.
  for (size_t rank = 0; rank < now.ranks.size(); ++rank) {
    const RankView& view = now.ranks[rank];
    if (!view.joined || !before.ranks[rank].joined || view.failed || view.stopped) return -1;
    if (view.sequence < before.ranks[rank].sequence + kFewestCalls) return -1;
  }
  const std::vector<double> shares = WaitedShares(before, now);
  const int least = static_cast<int>(std::min_element(shares.begin(), shares.end()) - shares.begin());
  return MedianOf(shares) - shares[least] >= kLateShare ? least : -1;
}

std::string Habit(const WatchMoment& before, const WatchMoment& now) {
  const int late = LateEveryTime(before, now);
  if (late < 0) return "";
  const std::vector<double> shares = WaitedShares(before, now);
  return "rank " + std::to_string(late) + " is late again and again: it waited " + PercentText(shares[late]) +
         " of the time, most others " + PercentText(MedianOf(shares)) + " or more";
}

std::string Headline(const WatchMoment& now) {
  std::vector<int> waiting(now.ranks.size());
  for (size_t rank = 0; rank < now.ranks.size(); ++rank) {
    const int culprit = CulpritOf(now.ranks, static_cast<int>(rank));
    if (culprit >= 0 && static_cast<size_t>(culprit) != rank) ++waiting[culprit];
  }
  const auto most = std::max_element(waiting.begin(), waiting.end());
  if (most == waiting.end() || *most == 0) return "";
  const int culprit = static_cast<int>(most - waiting.begin());
  const RankView& view = now.ranks[culprit];
  const std::string who = std::to_string(*most) + (*most == 1 ? " rank waits" : " ranks wait");
  std::string state = "is in " + CallText(view);
  if (!view.joined) {
    state = "has no communicator";
  } else if (view.stopped) {
    state = "is stopped (its last call: " + CallText(view) + ")";
  } else if (view.inside == Board::kNothing) {
    state = "is outside any call (its last: " + CallText(view) + ")";
  }
  return who + " for rank " + std::to_string(culprit) + ", which " + state;
}

std::string WatchLine(const WatchMoment& before, const WatchMoment& now) {
  std::string line = "watch " + std::to_string(now.at / kSecond) + " s";
  const std::string headline = TopLine(before, now);
  if (!headline.empty()) line += ": " + headline;
  double total = 0;
  uint64_t lowest = UINT64_MAX;
  uint64_t highest = 0;
  for (size_t rank = 0; rank < now.ranks.size(); ++rank) {
    const RankView& view = now.ranks[rank];
    const Progress progress = ProgressOf(before, now, static_cast<int>(rank));
    total += progress.bytes_per_second;
    lowest = std::min(lowest, view.sequence);
    highest = std::max(highest, view.sequence);
    if (now.ranks.size() > kMostInALine) continue;
    line += "; rank " + std::to_string(rank) + ": ";
    if (view.joined) {
      line += CallText(view) + ", " + RateText(progress.bytes_per_second) + ", " +
              std::to_string(progress.waited_percent) + " % waiting, ";
    }
    line += StateText(view);
    const std::string mark = Mark(before, now, static_cast<int>(rank));
    if (!mark.empty()) line += ", " + mark;
  }
  if (now.ranks.size() > kMostInALine) {
    line += "; calls #" + std::to_string(lowest) + " to #" + std::to_string(highest) + ", " + RateText(total);
  }
  return line;
}

std::vector<std::string> WatchTable(const WatchMoment& before, const WatchMoment& now, int rows, int columns) {
  constexpr int kOtherRows = 3;  // Head, headline, and a line for the ranks that do not fit.
  const std::string headline = TopLine(before, now);
  std::vector<std::string> table{
      Cut("-- " + std::to_string(now.at / kSecond) + " s" + (headline.empty() ? "" : ": " + headline), columns)};
  char text[160];
  // Leaves room for the rank that a rank waits for within 80 columns.
  constexpr int kOtherColumns = 54;
  const int call_width = columns > 0 ? std::clamp(columns - kOtherColumns, 12, 32) : 32;
  std::snprintf(text, sizeof text, "%5s  %-*s %10s %5s  %s", "rank", call_width, "call", "moved", "wait", "now");
  table.push_back(Cut(text, columns));
  const size_t room = static_cast<size_t>(std::max(rows - kOtherRows - 1, 1));
  for (size_t rank = 0; rank < now.ranks.size() && rank < room; ++rank) {
    const RankView& view = now.ranks[rank];
    const Progress progress = ProgressOf(before, now, static_cast<int>(rank));
    const std::string mark = Mark(before, now, static_cast<int>(rank));
    std::snprintf(text, sizeof text, "%5zu  %-*.*s %10s %3d %%  %s%s", rank, call_width, call_width,
                  view.joined ? CallText(view).c_str() : "", RateText(progress.bytes_per_second).c_str(),
                  progress.waited_percent, StateText(view).c_str(), mark.empty() ? "" : ("  <-- " + mark).c_str());
    std::string line = Cut(text, columns);
    if (!mark.empty() || view.stopped) line = "\033[1m" + line + "\033[0m";
    table.push_back(line);
  }
  if (now.ranks.size() > room) table.push_back("       and " + std::to_string(now.ranks.size() - room) + " more");
  return table;
}

}  // namespace annulus
