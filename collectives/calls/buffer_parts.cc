#include "collectives/calls/buffer_parts.h"

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

void PartsOf(Holding holding, const Layout& layout, const CallArguments& a, int nranks,
             std::vector<BufferPart>* parts) {
  const size_t element = TypeBytes(a.type);
  if (holding == Holding::kOwn) return Append({0, a.count * element}, parts);
  if (layout.counts == nullptr) return Append({0, a.count * element * static_cast<size_t>(nranks)}, parts);
  size_t next = 0;
  for (int rank = 0; rank < nranks; ++rank) {
    const size_t begin = layout.offsets != nullptr ? layout.offsets[rank] : next;
    next = begin + layout.counts[rank];
    Append({begin * element, layout.counts[rank] * element}, parts);
  }
}

}  // namespace

void SendParts(const CallArguments& a, int rank, int nranks, std::vector<BufferPart>* parts) {
  parts->clear();
  if (a.sendbuf != nullptr) PartsOf(SendHolds(a.kind, rank == a.root), a.send_layout, a, nranks, parts);
}

void RecvParts(const CallArguments& a, int rank, int nranks, std::vector<BufferPart>* parts) {
  parts->clear();
  if (a.recvbuf != nullptr) PartsOf(RecvHolds(a.kind, rank == a.root), a.recv_layout, a, nranks, parts);
}

}  // namespace annulus
