#include "collectives/calls/buffer_parts.h"

#include <algorithm>

namespace annulus {
namespace {

void Append(const BufferPart& part, std::vector<BufferPart>* parts) {
  if (part.bytes == 0) return;
  if (!parts->empty() && parts->back().begin + parts->back().bytes == part.begin) {
    parts->back().bytes += part.bytes;
  } else {
    parts->push_back(part);
  }
}

// Calls part(BufferPart) for each.
template <class Part>
void PartsOf(Holding holding, const Layout& layout, const CallArguments& a, int nranks, Part part) {
  const size_t element = TypeBytes(a.type);
  if (holding == Holding::kOwn) return part({0, a.count * element});
  if (layout.counts == nullptr) return part({0, a.count * element * static_cast<size_t>(nranks)});
  size_t next = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    const size_t begin = layout.offsets != nullptr ? layout.offsets[rank] : next;
    next = begin + layout.counts[rank];
    part({begin * element, layout.counts[rank] * element});
  }
}

size_t EndOf(Holding holding, const Layout& layout, const CallArguments& a, int nranks) {
  size_t end = 0;
  PartsOf(holding, layout, a, nranks, [&](const BufferPart& part) {
    if (part.bytes > 0) end = std::max(end, part.begin + part.bytes);
  });
  return end;
}

}  // namespace

void SendParts(const CallArguments& a, int rank, int nranks, std::vector<BufferPart>* parts) {
  parts->clear();
  if (a.sendbuf == nullptr) return;
  PartsOf(SendHolds(a.kind, rank == a.root), a.send_layout, a, nranks,
          [parts](const BufferPart& part) { Append(part, parts); });
}

void RecvParts(const CallArguments& a, int rank, int nranks, std::vector<BufferPart>* parts) {
  parts->clear();
  if (a.recvbuf == nullptr) return;
  PartsOf(RecvHolds(a.kind, rank == a.root), a.recv_layout, a, nranks,
          [parts](const BufferPart& part) { Append(part, parts); });
}

size_t SendEnd(const CallArguments& a, int rank, int nranks) {
  return a.sendbuf == nullptr ? 0 : EndOf(SendHolds(a.kind, rank == a.root), a.send_layout, a, nranks);
}

size_t RecvEnd(const CallArguments& a, int rank, int nranks) {
  return a.recvbuf == nullptr ? 0 : EndOf(RecvHolds(a.kind, rank == a.root), a.recv_layout, a, nranks);
}

}  // namespace annulus
