// Messages between annulus-run and its agents, and what they carry.
#include "launcher/remote/agent_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "launcher/remote/agent_command.h"
#include "launcher/remote/start_order.h"

namespace annulus {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  int ends[2];
};

// An agent and its head, joined by pipes.
class AgentPipeTest : public testing::Test {
 protected:
  // Lets bytes flow for as long as any do.
  void Pump() {
    for (int round = 0; round < 100; ++round) {
      for (AgentPipe* pipe : {&agent_, &head_}) pipe->WriteSome();
      for (AgentPipe* pipe : {&agent_, &head_}) pipe->ReadSome();
    }
  }
  void WriteNoise(const std::string& text) {
    ASSERT_EQ(write(up_.ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  Pipe up_;
  Pipe down_;
  AgentPipe agent_{AgentPipe::Side::kAgent, down_.ends[0], up_.ends[1]};
  AgentPipe head_{AgentPipe::Side::kHead, up_.ends[0], down_.ends[1]};
};

TEST_F(AgentPipeTest, MessagesArriveInBothDirections) {
  const std::string big(3'000'000, 'x');
  agent_.Send(AgentMessageKind::kHello, "here");
  agent_.Send(AgentMessageKind::kGone);
  head_.Send(AgentMessageKind::kStart, big);
  Pump();
  const auto hello = head_.Next();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->kind, AgentMessageKind::kHello);
  EXPECT_EQ(hello->content, "here");
  EXPECT_EQ(head_.Next()->kind, AgentMessageKind::kGone);
  EXPECT_FALSE(head_.Next());
  const auto start = agent_.Next();
  ASSERT_TRUE(start);
  EXPECT_TRUE(start->content == big);
}

TEST_F(AgentPipeTest, WhatALoginScriptWritesIsSkipped) {
  WriteNoise("Welcome to annulus-run agent country!\n\nannulus-run");
  agent_.Send(AgentMessageKind::kHello);
  Pump();
  EXPECT_EQ(head_.Next()->kind, AgentMessageKind::kHello);
}

TEST_F(AgentPipeTest, AnotherVersionIsTold) {
  WriteNoise("\nannulus-run agent 5\n");
  Pump();
  EXPECT_EQ(head_.state(), AgentPipe::State::kWrongVersion);
  EXPECT_FALSE(head_.Next());
}

TEST_F(AgentPipeTest, EndlessNoiseIsGivenUp) {
  const std::string noise(64 * 1024, 'n');
  for (int i = 0; i < 5; ++i) {
    WriteNoise(noise);
    head_.ReadSome();
  }
  EXPECT_EQ(head_.state(), AgentPipe::State::kNonsense);
}

TEST(AgentPipe, FramesThatAreNoneAreNonsense) {
  const std::string no_kind("\0\0\0\0\0", 5);
  const std::string unknown_kind("\177\0\0\0\0", 5);
  const std::string too_long("\1\377\377\377\377", 5);
  for (const std::string& message : {no_kind, unknown_kind, too_long}) {
    const Pipe in;
    const Pipe out;
    AgentPipe agent(AgentPipe::Side::kAgent, in.ends[0], out.ends[1]);
    ASSERT_EQ(write(in.ends[1], message.data(), message.size()), static_cast<ssize_t>(message.size()));
    agent.ReadSome();
    EXPECT_FALSE(agent.Next());
    EXPECT_EQ(agent.state(), AgentPipe::State::kNonsense);
    close(in.ends[1]);
    close(out.ends[0]);
  }
}

TEST_F(AgentPipeTest, WhatWasSentBeforeTheEndStillArrives) {
  agent_.Send(AgentMessageKind::kNotice, "last words");
  agent_.WriteSome();
  agent_.Close();
  Pump();
  EXPECT_EQ(head_.Next()->content, "last words");
  EXPECT_EQ(head_.state(), AgentPipe::State::kEnded);
}

TEST(StartOrder, ComesThroughAsItWas) {
  StartOrder order;
  order.first_rank = 2;
  order.nranks = 3;
  order.size = 5;
  order.prefix = false;
  order.bind = false;
  order.folder = "/a folder";
  order.variables = {{"A", ""}, {"B", std::string("\n\1=\"'", 5)}};
  order.command = {"sh", "-c", "", "echo 'x'"};
  StartOrder got;
  ASSERT_TRUE(Decode(Encode(order), &got));
  EXPECT_EQ(got.first_rank, 2);
  EXPECT_EQ(got.nranks, 3);
  EXPECT_EQ(got.size, 5);
  EXPECT_FALSE(got.prefix);
  EXPECT_FALSE(got.bind);
  EXPECT_EQ(got.folder, order.folder);
  EXPECT_EQ(got.variables, order.variables);
  EXPECT_EQ(got.command, order.command);
}

TEST(StartOrder, EveryShorterOneIsRefused) {
  StartOrder order{.nranks = 1, .size = 2, .folder = "/", .variables = {{"A", "1"}}, .command = {"true"}};
  const std::string content = Encode(order);
  StartOrder got;
  for (size_t bytes = 0; bytes < content.size(); ++bytes) EXPECT_FALSE(Decode(content.substr(0, bytes), &got)) << bytes;
  EXPECT_FALSE(Decode(content + "x", &got));
  order.first_rank = 2;
  EXPECT_FALSE(Decode(Encode(order), &got));
  order = {.nranks = 1, .size = 1, .folder = "/", .variables = {}, .command = {}};
  EXPECT_FALSE(Decode(Encode(order), &got));
}

TEST(AgentCommand, IsQuotedForTheOtherShell) {
  EXPECT_EQ(ShellQuoted("/opt/my tools/it's"), "'/opt/my tools/it'\\''s'");
  RunArguments arguments;
  arguments.remote_path = "/opt/annulus-run";
  EXPECT_EQ(AgentCommand(arguments, {"user@host2", false, 0, 1}),
            (std::vector<std::string>{"ssh", "-o", "BatchMode=yes", "-o", "ControlMaster=no", "user@host2",
                                      "exec '/opt/annulus-run' --agent"}));
  arguments.ssh = {"/usr/bin/rsh", "-4"};
  EXPECT_EQ(AgentCommand(arguments, {"host2", false, 0, 1}),
            (std::vector<std::string>{"/usr/bin/rsh", "-4", "host2", "exec '/opt/annulus-run' --agent"}));
}

}  // namespace
}  // namespace annulus
