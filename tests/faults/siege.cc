#include "tests/faults/siege.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/check.h"

namespace annulus {
namespace {

RankProcesses::Environment EnvironmentOfAll(const std::string& transport, const RankProcesses::Environment& more) {
  RankProcesses::Environment all = more;
  all.insert(
      {{"ANNULUS_TRANSPORT", transport}, {"ANNULUS_CONNECT_TIMEOUT_MS", std::to_string(Siege::kConnectTimeoutMs)}});
  return all;
}

}  // namespace

Siege::Siege(int nranks, const std::string& transport, const RankProcesses::Environment& more)
    : ranks_(nranks, EnvironmentOfAll(transport, more)) {}

void Siege::Start(int rank, const RankProcesses::Environment& environment, const std::vector<std::string>& arguments) {
  ranks_.Start(rank, arguments, environment);
}

Child* Siege::Send(const std::string& kind) {
  std::vector<std::string> words = {kind};
  if (kind != "list") words.push_back(std::to_string(ranks_.port()));
  for (const Child* worker : ranks_.workers()) words.push_back(std::to_string(worker->pid()));
  strays_.push_back(std::make_unique<Child>(PathOf("FAULT_STRAY"), words, ranks_.EnvironmentOf(1)));
  return strays_.back().get();
}

std::string Siege::Hear(Child* stray, const std::string& word) {
  const bool heard = Child::Wait(
      {stray}, [&] { return !stray->After(word).empty(); }, Now() + kPatience);
  EXPECT_TRUE(heard) << "no \"" << word << "\" in: " << stray->output();
  return stray->After(word);
}

int Siege::HearNumber(Child* stray, const std::string& word) { return std::atoi(Hear(stray, word).c_str()); }

void Siege::AwaitLogged(const std::string& reason) {
  Child* host = &ranks_.worker(0);
  EXPECT_TRUE(Child::Wait(
      {host}, [&] { return Dropped(0, reason) > 0; }, Now() + kPatience))
      << "not logged: " << reason << "\n"
      << host->output();
}

int Siege::Dropped(int rank, const std::string& reason) {
  return ranks_.worker(rank).CountLines("dropped a connection", "(" + reason + ")");
}

void Siege::ExpectWorkAndEnd(int nranks) {
  ASSERT_TRUE(ranks_.WaitForLine("ready", Now() + kPatience)) << Outputs();
  EXPECT_EQ(HearNumber(Send("list"), "listening"), 1);
  for (Child* worker : ranks_.workers()) worker->CloseInput();
  for (int rank = 0; rank < nranks; ++rank) {
    EXPECT_EQ(ranks_.worker(rank).ExitStatus(Now() + kPatience), 0) << ranks_.output(rank);
    EXPECT_NE(ranks_.worker(rank).After("ended"), "") << ranks_.output(rank);
    EXPECT_EQ(ranks_.worker(rank).After("verdict"), "");
  }
}

std::string Siege::Outputs() {
  std::string text;
  for (const Child* worker : ranks_.workers()) text += worker->output() + "---\n";
  return text;
}

std::string Siege::PathOf(const char* variable) {
  const char* path = std::getenv(variable);
  ANNULUS_CHECK(path != nullptr);
  return path;
}

}  // namespace annulus
