// AgentPipe: messages between annulus-run and its agents on other hosts, over a pair of pipes.
//
// The agent opens with a line of text, kAgentGreeting and the protocol's version, to separate the protocol from
// anything that a login script wrote before. From then on both sides send messages: one byte for the kind, four for the
// length, lowest byte first, then the content.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace annulus {

enum class AgentMessageKind : uint8_t {
  // From annulus-run.
  kConfigure = 1,  // link timeout in ms: longest silence of the other side
  kReserve,        // address, or "" for any: reserve a port there
  kStart,          // a StartOrder
  kInput,          // bytes for rank 0's standard input; none: its end
  kCredit,         // stream, bytes: this many more bytes may be sent
  kDropOutput,     // stream: nobody reads it any more
  kEnd,            // end the ranks
  kKill,           // kill the ranks at once
  // From both.
  kAlive,
  // From the agent.
  kHello,       // SSH_CONNECTION as sshd set it, or ""
  kReserved,    // port
  kRefused,     // exit status, reason
  kStarted,     // the ranks' pids
  kOutput,      // stream, bytes
  kInputTaken,  // the next bytes may be sent
  kRankEnded,   // rank, wait status from waitpid, Failure::blames
  kNotice,      // text
  kRanksGone,   // all ranks and what they started are gone; their output may still follow
  kGone,        // all output has been sent, too; the last message
};
constexpr AgentMessageKind kLastAgentMessageKind = AgentMessageKind::kGone;

// How often each side reports within the link timeout that it is alive, so that a single late report does no harm.
constexpr int kAlivesPerTimeout = 4;
constexpr int64_t kMaxLinkTimeoutMs = 3'600'000;

// The content consists of numbers (i64) and texts (LongText) of base/bytes.h, unless it is bytes of a stream.
struct AgentMessage {
  AgentMessageKind kind;
  std::string content;
};

class AgentPipe {
 public:
  enum class Side { kAgent, kHead };
  enum class State {
    kOpen,
    kEnded,     // The other side or the system has closed the pipe.
    kNonsense,  // The bytes received are not this protocol.
    kWrongVersion,
  };

  // Takes ownership of both descriptors and makes them non-blocking.
  AgentPipe(Side side, int in_fd, int out_fd);
  AgentPipe(const AgentPipe&) = delete;
  AgentPipe& operator=(const AgentPipe&) = delete;
  ~AgentPipe();

  int in_fd() const { return in_fd_; }    // To poll for reading; -1 when closed.
  int out_fd() const { return out_fd_; }  // To poll for writing while unsent() is not 0; -1 when closed.
  size_t unsent() const { return unsent_.size(); }
  State state() const { return state_; }
  Nanoseconds last_heard() const { return last_heard_; }

  void Send(AgentMessageKind kind, std::string_view content = {});
  // Call these when poll reports the descriptor. ReadSome returns whether anything arrived.
  bool ReadSome();
  void WriteSome();

  // The next whole message; nothing when it has not arrived yet.
  std::optional<AgentMessage> Next();

  // Ends sending: the other side sees the end of the stream.
  void CloseOut();
  void Close();

 private:
  void SkipToGreeting();
  void Fail(State state);

  int in_fd_;
  int out_fd_;
  State state_ = State::kOpen;
  bool greeted_;
  std::string received_;
  size_t taken_ = 0;  // Bytes of received_ that are done with.
  std::string unsent_;
  Nanoseconds last_heard_;
};

}  // namespace annulus
