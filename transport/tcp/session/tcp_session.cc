#include "transport/tcp/session/tcp_session.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace annulus {
namespace {

// Largest number of bytes that one Receive() reads per lane. More than half a MiB would push the first bytes out of the
// L2 cache before the engine reduces them.
constexpr size_t kMaxReadBytes = size_t{512} << 10;

// A lane takes no more sends while it has this many bytes unwritten. A single lane collects a full write. Each of
// several lanes takes just enough for one large write, so that the next slice goes to whichever lane is free first.
constexpr size_t kPullBytesAlone = TcpFrameWriter::kMaxWriteBytes;
constexpr size_t kPullBytesStriped = size_t{256} << 10;

// Nothing lent is copied before nothing has moved for this many polls, a few microseconds. Then up to kRestBytes are,
// about two packets of a loopback link: the peer's kernel puts the last acknowledgement off for up to 40 ms when it has
// nothing to send. While a slice is awaited, it will most likely bring the acknowledgement. More is mostly not
// acknowledged because the peer does not read, and copying it would help nobody: under load that cost a third of the
// processor's time. On a long path it lets more be under way; and a peer that reads nothing for kLongIdle will perhaps
// not read before this call has to return.
constexpr int kIdlePolls = 4;
constexpr size_t kRestBytes = size_t{128} << 10;
constexpr Nanoseconds kRestIdle = 100 * kMicrosecond;
constexpr Nanoseconds kLongIdle = kMillisecond;
// Acknowledgements raise no event. Who waits for one looks again after this time.
constexpr Nanoseconds kConfirmationWait = 250 * kMicrosecond;

constexpr size_t kMostShortFrameBytes = kFrameHeaderBytes + TcpSession::kMostShortBytes;

}  // namespace

TcpSession::TcpSession(const TcpSessionConfig& config, std::vector<SealedSocket> sockets)
    : is_sealed_(sockets[0].seal != nullptr),
      send_slots_(config.slot_memory, config.slot_bytes, config.slots),
      recv_slots_(config.slot_memory, config.slot_bytes, config.slots),
      sends_(&send_slots_),
      receives_(&recv_slots_, config.slot_bytes, config.slots, static_cast<int>(sockets.size()), config.lands),
      alarm_(sockets[0].get_executor()),
      long_path_(config.long_path) {
  const int lanes = static_cast<int>(sockets.size());
  const uint32_t most_short = lanes == 1 ? kMostShortBytes : 0;
  for (SealedSocket& socket : sockets) {
    lanes_.push_back(std::make_unique<Lane>(std::move(socket), config, lanes, most_short));
  }
}

LinkMemory TcpSession::memory() const {
  LinkMemory memory;
  memory.staging = send_slots_.bytes() + recv_slots_.bytes();
  for (const auto& lane : lanes_) {
    memory.bookkeeping += sizeof(Lane) + lane->reader.buffer_bytes() + lane->retained.bytes();
    if (is_sealed_) memory.bookkeeping += Seal::kMemoryBytes;
  }
  return memory;
}

uint64_t TcpSession::Retransmits() const {
  uint64_t retransmits = 0;
  for (const auto& lane : lanes_) retransmits += lane->socket.Retransmits();
  return retransmits;
}

// Whether `lane` may take the first send that no lane has taken. Nothing queues behind a send that is not ready,
// because another lane may take it.
bool TcpSession::MayTake(const Lane& lane) const {
  const bool striped = lanes_.size() > 1;
  const Send* const send = sends_.untaken();
  if (send == nullptr || lane.socket.write_ended()) return false;
  if (lane.writer.unwritten_bytes() >= (striped ? kPullBytesStriped : kPullBytesAlone)) return false;
  if (striped && lane.socket.write_blocked() && !lane.writer.empty()) return false;
  return HasRoom(lane) && lane.writer.MayAdd(*send);
}

// Whether one frame more could be kept when it is written.
bool TcpSession::HasRoom(const Lane& lane) const {
  return !lane.retained.keeps() || lane.retained.HasRoom(lane.writer.frames() + 1);
}

// Performs one write of what is ready. Returns how many bytes the kernel took.
size_t TcpSession::WriteOnce(Lane* lane, bool* moved) {
  IoList list;
  TcpRetained& retained = lane->retained;
  retained.has_unwritten() ? retained.List(&list) : lane->writer.List(&list);
  if (list.bytes() == 0) return 0;
  const size_t written = lane->socket.Write(&list);
  if (written > 0) idle_polls_ = 0;
  OnWritten(lane, written, moved);
  return written;
}

// Notes that so many of the bytes listed went out. A send is done once the kernel has all of it.
void TcpSession::OnWritten(Lane* lane, size_t written, bool* moved) {
  TcpRetained& retained = lane->retained;
  if (retained.has_unwritten()) return retained.Wrote(written);
  while (Send* const send = lane->writer.TakeWritten(&written)) {
    if (!retained.keeps() || retained.AddWritten(lane->writer.taken_header(), send)) sends_.MarkDone(send, moved);
  }
}

void TcpSession::Transmit(Lane* lane, bool* moved) {
  if (WantsConfirmation(*lane, kMostShortFrameBytes)) Confirm(lane, moved);
  for (size_t total = 0; total < TcpFrameWriter::kMaxWriteBytes && !lane->socket.write_ended();) {
    while (MayTake(*lane)) {
      Send* const send = sends_.untaken();
      lane->writer.Add(send, sends_.NumberSend());
    }
    const size_t written = WriteOnce(lane, moved);
    if (written == 0 || lane->socket.write_blocked()) return;
    total += written;
  }
}

void TcpSession::Transmit(bool* moved) {
  bool any_moved = false;
  for (auto& lane : lanes_) Transmit(lane.get(), &any_moved);
  idle_polls_ = any_moved ? 0 : std::min(idle_polls_ + 1, kIdlePolls + 1);
  if (idle_polls_ == kIdlePolls) idle_since_ = Now();
  if (idle_polls_ >= kIdlePolls) CopyLent(&any_moved);
  *moved |= any_moved;
}

// Copies are contiguous, so a short frame may find no room long before they are many.
bool TcpSession::WantsConfirmation(const Lane& lane, size_t short_bytes) const {
  if (!lane.retained.keeps()) return false;
  return lane.retained.wants_confirmation() || (has_short_path() && !lane.retained.HasRoomForShort(short_bytes));
}

// Drops what the peer's kernel has of what the lane has sent.
void TcpSession::Confirm(Lane* lane, bool* moved) {
  if (lane->socket.write_ended()) return;
  const uint64_t position = lane->position();
  const uint64_t missing = lane->socket.Unacknowledged();
  if (missing > position) return;
  lane->retained.Confirm(position - missing, [&](Send* send) { sends_.MarkDone(send, moved); });
}

// Whether it is worth while to copy what was lent first. Only on lanes that have written all they have: others complete
// their sends as they go on.
bool TcpSession::CopiesLent(const Lane& lane) const {
  if (!lane.retained.CanCopyLent() || !lane.writer.empty()) return false;
  if (long_path_) return true;
  const bool is_rest = lane.retained.lent_bytes() <= kRestBytes;
  if (is_rest && receives_.empty()) return true;
  return idle_polls_ >= kIdlePolls && Now() - idle_since_ >= (is_rest ? kRestIdle : kLongIdle);
}

// One send of each lane.
void TcpSession::CopyLent(bool* moved) {
  for (auto& lane : lanes_) {
    if (!CopiesLent(*lane)) continue;
    sends_.MarkDone(lane->retained.CopyLent(), moved);
  }
}

// Performs one read of what comes next. Returns how many bytes came.
size_t TcpSession::ReadOnce(Lane* lane, size_t budget, bool* moved) {
  IoList list;
  lane->reader.ListRoom(budget, awaits_ == Awaits::kPeek, &list);
  const size_t bytes = lane->socket.Read(&list);
  if (bytes > 0) {
    lane->received += bytes;
    lane->reader.Fill(bytes, moved);
  }
  return bytes;
}

// Processes the frames that were read, until the bytes are used up or the next frame's receive is not posted.
Status TcpSession::ReadFrames(Lane* lane, bool* moved) {
  TcpFrameReader& reader = lane->reader;
  while (true) {
    ANNULUS_RETURN_IF_ERROR(reader.ReadHeader());
    if (!reader.has_header()) return Status();
    Recv* recv = nullptr;
    if (reader.lacks_receive()) {
      ANNULUS_RETURN_IF_ERROR(receives_.BeginReceive(reader.header(), &recv));
      if (recv == nullptr) return Status();
      reader.SetReceive(recv);
      *moved = true;
    }
    reader.MovePayload(moved);
    if (!reader.payload_is_whole()) return Status();
    ANNULUS_RETURN_IF_ERROR(reader.Finish(&recv));
    *moved = true;
    receives_.MarkDone(recv, moved);
  }
}

Status TcpSession::Receive(Lane* lane, bool* moved) {
  bool may_read = true;
  for (size_t budget = kMaxReadBytes;;) {
    ANNULUS_RETURN_IF_ERROR(ReadFrames(lane, moved));
    if (!may_read || budget == 0 || IsPaused(*lane) || lane->socket.read_ended()) return Status();
    const size_t bytes = ReadOnce(lane, budget, moved);
    if (bytes == 0) return Status();
    budget -= std::min(budget, bytes);
    may_read = !lane->socket.drained();
  }
}

Status TcpSession::Receive(bool* moved) {
  if (!peek_error_.ok()) return peek_error_;
  if (!receives_.empty()) awaits_ = Awaits::kReceive;
  if (awaits_ != Awaits::kReceive) return Status();
  for (auto& lane : lanes_) {
    const uint64_t before = lane->received;
    ANNULUS_RETURN_IF_ERROR(Receive(lane.get(), moved));
    // What comes brings acknowledgements with it.
    if (lane->received != before && lane->retained.has_lent()) Confirm(lane.get(), moved);
  }
  return Status();
}

bool TcpSession::Arm(Lane* lane) {
  const bool paused = IsPaused(*lane);
  if (paused && receives_.IsPosted(lane->reader.header().sequence)) return false;
  const bool reads = !paused && !lane->socket.read_ended() && !(lane->socket.frozen() && lane->socket.drained());
  if (reads && !lane->socket.drained()) return false;
  const bool writes = !lane->socket.write_ended() && (lane->writer.HasReady() || lane->retained.has_unwritten());
  if ((writes && !lane->socket.write_blocked()) || MayTake(*lane)) return false;
  if (lane->retained.keeps() && !ArmConfirmation(lane)) return false;
  if (reads) lane->socket.ArmRead();
  if (writes) lane->socket.ArmWrite();
  return true;
}

// Before a sleep: what is lent is copied if that is worth it. Otherwise somebody has to look for acknowledgements.
bool TcpSession::ArmConfirmation(Lane* lane) {
  const TcpRetained& retained = lane->retained;
  const bool has_room = HasRoom(*lane) && (!has_short_path() || retained.HasRoomForShort(kMostShortFrameBytes));
  if (lane->socket.write_ended() || (!retained.has_lent() && has_room)) return true;
  if (CopiesLent(*lane)) {
    if (idle_polls_ < kIdlePolls) {
      idle_polls_ = kIdlePolls;
      idle_since_ = Now();
    }
    return false;
  }
  alarm_.Set(kConfirmationWait);
  return true;
}

bool TcpSession::Arm() {
  return std::all_of(lanes_.begin(), lanes_.end(), [this](auto& lane) { return Arm(lane.get()); });
}

bool TcpSession::SendCopy(const Tag& tag, const std::byte* data, uint32_t bytes) {
  Lane& lane = *lanes_[0];
  if (sends_.untaken() != nullptr || !lane.writer.empty() || lane.retained.has_unwritten()) return false;
  if (WantsConfirmation(lane, kFrameHeaderBytes + bytes)) {
    bool moved = false;
    Confirm(&lane, &moved);
  }
  if (!lane.retained.HasRoomForShort(kFrameHeaderBytes + bytes)) return false;
  lane.writer.WriteFrame(tag, data, bytes, sends_.NextNumber(), lane.retained.AddShort(kFrameHeaderBytes + bytes));
  FlushCopy();
  return true;
}

bool TcpSession::FlushCopy() {
  Lane& lane = *lanes_[0];
  bool moved = false;
  if (lane.retained.has_unwritten() && !lane.socket.write_ended()) WriteOnce(&lane, &moved);
  return !lane.retained.has_unwritten() || (lane.socket.write_ended() && !IsSuspended(lane));
}

size_t TcpSession::Ask(int index) {
  Lane& lane = *lanes_[static_cast<size_t>(index)];
  if (lane.socket.write_ended() || !lane.writer.empty() || lane.retained.has_unwritten()) return 0;
  if (!lane.retained.keeps() || !lane.retained.HasRoomForShort(kFrameHeaderBytes)) return 0;
  if (lane.asks_end != lane.retained.end()) lane.asks_begin = lane.retained.end();
  TcpFrameWriter::WriteAsk(lane.retained.AddShort(kFrameHeaderBytes));
  lane.asks_end = lane.retained.end();
  bool moved = false;
  return WriteOnce(&lane, &moved);
}

// Sets *found when the next frame has arrived whole or is too long for the short path.
Status TcpSession::FindShort(Lane* lane, bool* found) {
  ANNULUS_RETURN_IF_ERROR(lane->reader.ReadHeader());
  if (!lane->reader.has_header()) return Status();
  ANNULUS_RETURN_IF_ERROR(receives_.CheckSequence(lane->reader.header().sequence));
  if (lane->reader.header().bytes <= kMostShortBytes) return lane->reader.FindPayload(found);
  *found = true;
  return Status();
}

bool TcpSession::Peek(ShortPath::Slice* slice) {
  if (!receives_.empty() || !peek_error_.ok()) return false;
  Lane& lane = *lanes_[0];
  if (awaits_ != Awaits::kPop) {
    bool found = false;
    bool moved = false;
    peek_error_ = FindShort(&lane, &found);
    if (!found && peek_error_.ok() && !lane.socket.read_ended()) {
      awaits_ = Awaits::kPeek;
      if (ReadOnce(&lane, 0, &moved) > 0) peek_error_ = FindShort(&lane, &found);
    }
    if (!found) return false;
    awaits_ = Awaits::kPop;
  }
  const FrameHeader& header = lane.reader.header();
  slice->tag = header.tag;
  slice->bytes = header.bytes;
  slice->data = header.bytes <= kMostShortBytes ? lane.reader.payload() : nullptr;
  return true;
}

void TcpSession::Pop() {
  lanes_[0]->reader.Skip();
  awaits_ = Awaits::kReceive;
  receives_.Skip();
}

}  // namespace annulus
