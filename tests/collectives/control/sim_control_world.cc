#include "tests/collectives/control/sim_control_world.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "tests/collectives/control/sim_timer.h"

namespace annulus {
namespace {

constexpr int kFirstFd = 1 << 24;  // Greater than any descriptor of this process.
constexpr int kDoorPort = 1;
constexpr Nanoseconds kLongestDial = 10 * kSecond;  // No attempt to connect has reason to take longer.

StreamEndpoint EndpointOf(int rank) {
  StreamEndpoint endpoint;
  ANNULUS_CHECK(MakeEndpoint("10.0.0." + std::to_string(rank + 1), kDoorPort, &endpoint).ok());
  return endpoint;
}

class SimStream : public MessageStream, public std::enable_shared_from_this<SimStream> {
 public:
  SimStream(std::shared_ptr<SimControlLine> line, int side) : line_(std::move(line)), side_(side) {}

  void Start(Handlers handlers) override {
    handlers_ = std::move(handlers);
    line_->Listen(
        side_,
        [this](const EncodedMessage& message) {
          if (message->empty()) return HandleBroken();
          const auto body = std::as_bytes(std::span(*message)).subspan(kMessageHeaderBytes);
          const auto on_message = handlers_.on_message;
          if (on_message) on_message(static_cast<MessageType>((*message)[kMessageHeaderBytes - 1]), body);
        },
        [self = shared_from_this()](ControlEnd how) { self->End(how); });
  }
  void Send(const EncodedMessage& message) override { line_->Send(side_, message); }
  void Finish() override { line_->Finish(side_); }
  void Ignore() override { handlers_.on_message = nullptr; }
  void Close() override {
    handlers_ = {};
    line_->Close(side_);
  }
  void Abandon() override {
    handlers_ = {};
    line_->Abandon(side_);
  }
  bool open() const override { return line_->open(side_); }
  bool was_reset() const override { return was_reset_; }
  Nanoseconds silent_for() const override { return line_->silent_for(side_); }
  bool acknowledged() override { return line_->unacknowledged(side_) == 0; }

 private:
  void HandleBroken() {
    if (!handlers_.on_message) return;
    Ignore();
    const auto on_broken = handlers_.on_broken;
    on_broken("a length of 0 bytes");
  }
  void End(ControlEnd how) {
    was_reset_ = how == ControlEnd::kReset;
    const auto on_closed = std::exchange(handlers_, {}).on_closed;
    if (on_closed) on_closed(how == ControlEnd::kSilent ? Status::System("a control connection", ETIMEDOUT) : Status());
  }

  const std::shared_ptr<SimControlLine> line_;
  const int side_;
  Handlers handlers_;
  bool was_reset_ = false;
};

}  // namespace

class SimControlWorld::Net : public ControlNet {
 public:
  Net(SimControlWorld* world, int rank) : world_(world), rank_(rank) {}

  Nanoseconds Now() const override { return world_->clock_.now(); }
  std::unique_ptr<ControlTimer> MakeTimer() override {
    const auto deliver = [this](const std::function<void()>& run) { world_->WhenAwake(rank_, run); };
    return std::make_unique<SimTimer>(&world_->clock_, deliver);
  }

  Status Adopt(SealedFd connection, size_t, std::shared_ptr<MessageStream>* stream) override {
    const Held held = world_->TakeHeld(connection.fd);
    *stream = std::make_shared<SimStream>(held.line, held.side);
    return Status();
  }

  Status OpenDoor(int, Expects expects, Returned returned) override {
    expects_ = std::move(expects);
    returned_ = std::move(returned);
    return Status();
  }

  void Dial(const StreamEndpoint&, Nanoseconds limit, Dialled done) override {
    CancelDial();
    ANNULUS_CHECK(limit > 0 && limit <= kLongestDial);
    auto dial = std::make_shared<OneDial>();
    dial->done = std::move(done);
    dial->line = world_->paths_[rank_]->Connect();
    dial_ = dial;
    Net* const judge = world_->nets_[0].get();
    world_->clock_.At(Now() + limit, [this, dial] {
      world_->WhenAwake(rank_, [dial] {
        dial->End(Status(Code::kTimeout, "no answer", Status::kNoRank, dial->accepted ? 0 : ETIMEDOUT));
      });
    });
    if (!world_->paths_[rank_]->has_route()) {
      return world_->clock_.At(Now(), [dial] { dial->End(Status::System("connecting to rank 0", ENETUNREACH)); });
    }
    dial->line->Listen(1, nullptr, [dial](ControlEnd) {
      dial->End(Status(Code::kPeerLost, "ended during the handshake", Status::kNoRank, ECONNRESET));
    });
    // A connection, then the hellos and proofs; the last message is the judge's word.
    const auto prove = [this, dial, judge] {
      world_->WhenAwake(0, [this, dial, judge] { judge->Greet(rank_, dial, world_); });
    };
    const auto heed = [this, prove, dial] { world_->WhenAwake(rank_, [prove, dial] { dial->line->Pass(1, prove); }); };
    const auto answer = [this, dial, heed] { world_->WhenAwake(0, [dial, heed] { dial->line->Pass(0, heed); }); };
    dial->line->Pass(1, [this, dial, judge, answer] {
      if (judge->ended_ || world_->refuses_dials_)
        return dial->End(Status::System("connecting to rank 0", ECONNREFUSED));
      dial->accepted = true;
      if (judge->expects_) answer();  // Before that, the connection waits to be accepted.
    });
  }

  void CancelDial() override {
    if (dial_ != nullptr) std::exchange(dial_, nullptr)->Drop();
  }

  void EndProcess() {
    ended_ = true;
    expects_ = nullptr;
    returned_ = nullptr;
    CancelDial();
  }

 private:
  struct OneDial {
    std::shared_ptr<SimControlLine> line;
    Dialled done;
    int fd = -1;
    bool accepted = false;  // By the kernel of rank 0's host.

    void End(const Status& status) {
      if (!done) return;
      const Dialled ended = std::exchange(done, nullptr);
      if (!status.ok()) line->Close(1);
      ended(status, fd);
    }
    void Drop() {
      if (std::exchange(done, nullptr)) line->Close(1);
    }
  };

  // On rank 0: `rank` has proven itself.
  void Greet(int rank, const std::shared_ptr<OneDial>& dial, SimControlWorld* world) {
    if (ended_) return dial->line->Close(0);
    const bool welcome = expects_(rank);
    dial->line->Pass(0, [dial, world, welcome] {
      if (!dial->done) return;
      if (!welcome) return dial->End(Status(Code::kProtocol, "rank 0 does not expect this connection"));
      dial->fd = world->Hold(dial->line, 1);
      dial->End(Status());
    });
    if (welcome) returned_(rank, world->Hold(dial->line, 0));
    if (!welcome) dial->line->Finish(0);
  }

  SimControlWorld* const world_;
  const int rank_;
  Expects expects_;
  Returned returned_;
  std::shared_ptr<OneDial> dial_;
  bool ended_ = false;
};

SimControlWorld::SimControlWorld(uint64_t seed, int nranks, const std::vector<SimCut>& cuts)
    : clock_(seed), awake_at_(nranks, 0), next_fd_(kFirstFd + 1) {
  for (int rank = 0; rank < nranks; ++rank) {
    std::vector<SimCut> of_rank;
    for (const SimCut& cut : cuts) {
      if (cut.rank == rank) of_rank.push_back(cut);
    }
    paths_.push_back(std::make_unique<SimControlPath>(&clock_, std::move(of_rank)));
    nets_.push_back(std::make_unique<Net>(this, rank));
  }
  for (int rank = 1; rank < nranks; ++rank) {
    const auto line = paths_[rank]->Connect();
    first_fds_.emplace_back(Hold(line, 0), Hold(line, 1));
  }
}

SimControlWorld::~SimControlWorld() = default;

ControlNet* SimControlWorld::net(int rank) { return nets_[rank].get(); }

ControlConnections SimControlWorld::Connections(int rank) {
  ControlConnections connections;
  connections.SetDoor({rank == 0 ? kFirstFd : -1, kDoorPort, ""});
  const int last = static_cast<int>(nets_.size()) - 1;
  for (int peer = rank == 0 ? 1 : rank; peer <= (rank == 0 ? last : rank); ++peer) {
    const auto [judge, member] = first_fds_[peer - 1];
    if (rank == 0) connections.Put(peer, {judge, EndpointOf(0), EndpointOf(peer)});
    if (rank != 0) connections.Put(0, {member, EndpointOf(rank), EndpointOf(0)});
  }
  return connections;
}

void SimControlWorld::Cut(const std::vector<int>& ranks, const SimCut& how) {
  for (const int rank : ranks) paths_[rank]->Cut(how);
}

void SimControlWorld::Pause(int rank, Nanoseconds until) {
  until = std::max(until, awake_at_[rank]);
  awake_at_[rank] = until;
  for (size_t member = 1; member < paths_.size(); ++member) {
    if (rank == 0) paths_[member]->Pause(0, until);
    if (rank == static_cast<int>(member)) paths_[member]->Pause(1, until);
  }
}

void SimControlWorld::WhenAwake(int rank, std::function<void()> act) {
  if (clock_.now() < awake_at_[rank]) return clock_.At(awake_at_[rank], std::move(act));
  act();
}

void SimControlWorld::EndProcess(int rank) {
  nets_[rank]->EndProcess();
  for (size_t member = 1; member < paths_.size(); ++member) {
    if (rank == 0) paths_[member]->CloseAll(0);
    if (rank == static_cast<int>(member)) paths_[member]->CloseAll(1);
  }
}

int SimControlWorld::cuts_made() const {
  int made = 0;
  for (const auto& path : paths_) made += path->cuts_made();
  return made;
}

Nanoseconds SimControlWorld::cut_at() const {
  Nanoseconds first = kNoDeadline;
  for (const auto& path : paths_) first = std::min(first, path->cut_at());
  return first;
}

int SimControlWorld::Hold(std::shared_ptr<SimControlLine> line, int side) {
  held_[next_fd_] = {std::move(line), side};
  return next_fd_++;
}

SimControlWorld::Held SimControlWorld::TakeHeld(int fd) {
  const auto found = held_.find(fd);
  ANNULUS_CHECK(found != held_.end());
  Held held = std::move(found->second);
  held_.erase(found);
  return held;
}

}  // namespace annulus
