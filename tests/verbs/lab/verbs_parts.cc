// verbs_parts: one rank of a job that makes the calls which annulus-perf does not know; start it with annulus-run.
//
// Collectives whose parts differ in size, exchanges, and messages with tags, with three types, each checked; also on a
// communicator that was split off. Prints what was right, and ends with status 0 when all was.
//
// Threads: one.
#include <annulus.h>

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace annulus {
namespace {

template <class T>
class Rank {
 public:
  Rank(annulus_comm_t* comm, annulus_type_t type) : comm_(comm), type_(type) {
    annulus_comm_rank(comm, &rank_);
    annulus_comm_size(comm, &size_);
    for (int rank = 0; rank < size_; ++rank) counts_.push_back(1000 + 30'000 * static_cast<size_t>(rank));
    total_ = std::accumulate(counts_.begin(), counts_.end(), size_t{0});
  }

  bool All() {
    return Allgatherv() && Gatherv() && Scatterv() && ReduceScatterv() && Alltoallv() && Exchange() && Tags();
  }

 private:
  // What a rank gives; small enough for each type, sums of a few too.
  static T Given(int rank, size_t i) { return static_cast<T>((static_cast<size_t>(rank) * 7 + i) % 13); }

  std::vector<T> Fill(int rank, size_t count) const {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = Given(rank, i);
    return values;
  }
  // The parts of all ranks, behind one another.
  std::vector<T> Joined() const {
    std::vector<T> joined;
    for (int rank = 0; rank < size_; ++rank) {
      const std::vector<T> part = Fill(rank, counts_[rank]);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }
  std::vector<T> Own() const { return Fill(rank_, counts_[rank_]); }

  bool Allgatherv() {
    const std::vector<T> own = Own();
    std::vector<T> all(total_);
    return annulus_allgatherv(comm_, own.data(), own.size(), all.data(), counts_.data(), nullptr, type_) ==
               ANNULUS_OK &&
           all == Joined();
  }
  bool Gatherv() {
    const std::vector<T> own = Own();
    std::vector<T> all(total_);
    const int root = size_ - 1;
    return annulus_gatherv(comm_, own.data(), own.size(), all.data(), counts_.data(), nullptr, type_, root) ==
               ANNULUS_OK &&
           (rank_ != root || all == Joined());
  }
  bool Scatterv() {
    const std::vector<T> all = Joined();
    std::vector<T> own(counts_[rank_]);
    return annulus_scatterv(comm_, all.data(), counts_.data(), nullptr, own.data(), own.size(), type_, 0) ==
               ANNULUS_OK &&
           own == Own();
  }
  bool ReduceScatterv() {
    const std::vector<T> mine = Fill(rank_, total_);
    std::vector<T> own(counts_[rank_]), expected(counts_[rank_]);
    const size_t begin = std::accumulate(counts_.begin(), counts_.begin() + rank_, size_t{0});
    for (size_t i = 0; i < own.size(); ++i) {
      for (int rank = 0; rank < size_; ++rank) expected[i] = static_cast<T>(expected[i] + Given(rank, begin + i));
    }
    return annulus_reduce_scatterv(comm_, mine.data(), counts_.data(), nullptr, own.data(), own.size(), type_,
                                   ANNULUS_SUM) == ANNULUS_OK &&
           own == expected;
  }
  // Rank r gets as many elements of each rank as its own part has.
  bool Alltoallv() {
    const std::vector<T> mine = Joined();
    const std::vector<size_t> from(size_, counts_[rank_]);
    const std::vector<T> part = Own();  // As each rank has it for this one.
    std::vector<T> all(size_ * counts_[rank_]), expected;
    for (int rank = 0; rank < size_; ++rank) {
      expected.insert(expected.end(), part.begin(), part.end());
    }
    return annulus_alltoallv(comm_, mine.data(), counts_.data(), nullptr, all.data(), from.data(), nullptr, type_) ==
               ANNULUS_OK &&
           all == expected;
  }
  bool Exchange() {
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    const std::vector<T> own = Own();
    std::vector<T> arrived(counts_[previous]);
    return annulus_sendrecv(comm_, own.data(), own.size(), next, arrived.data(), arrived.size(), previous, type_) ==
               ANNULUS_OK &&
           arrived == Fill(previous, counts_[previous]);
  }
  // The message of the later tag is received first.
  bool Tags() {
    const int next = (rank_ + 1) % size_, previous = (rank_ + size_ - 1) % size_;
    const std::vector<T> first = Fill(1, 5000), second = Fill(2, 90'000);
    std::vector<T> arrived_first(first.size()), arrived_second(second.size());
    std::vector<annulus_call_t> calls;
    for (const int tag : {1, 2}) calls.push_back(Message(ANNULUS_CALL_SEND, next, tag, tag == 1 ? &first : &second));
    for (const int tag : {2, 1})
      calls.push_back(Message(ANNULUS_CALL_RECV, previous, tag, tag == 1 ? &arrived_first : &arrived_second));
    annulus_request_t* request = nullptr;
    const bool ok = annulus_submit(comm_, calls.data(), calls.size(), &request) == ANNULUS_OK &&
                    annulus_request_wait(request, -1) == ANNULUS_OK;
    annulus_request_free(request);
    return ok && arrived_first == first && arrived_second == second;
  }
  annulus_call_t Message(int32_t kind, int peer, int32_t tag, const std::vector<T>* values) const {
    annulus_call_t call{};
    call.struct_bytes = sizeof call;
    call.kind = kind;
    call.type = type_;
    call.root = peer;
    call.tag = tag;
    call.count = values->size();
    call.sendbuf = kind == ANNULUS_CALL_SEND ? values->data() : nullptr;
    call.recvbuf = kind == ANNULUS_CALL_RECV ? const_cast<T*>(values->data()) : nullptr;
    return call;
  }

  annulus_comm_t* const comm_;
  const annulus_type_t type_;
  int rank_ = 0;
  int size_ = 0;
  std::vector<size_t> counts_;  // Of each rank's part.
  size_t total_ = 0;
};

bool IsRightOn(annulus_comm_t* comm) {
  return Rank<int32_t>(comm, ANNULUS_INT32).All() && Rank<double>(comm, ANNULUS_FLOAT64).All() &&
         Rank<uint8_t>(comm, ANNULUS_UINT8).All();
}

int RunAll() {
  annulus_comm_t *comm = nullptr, *part = nullptr;
  if (annulus_comm_create(nullptr, &comm) != ANNULUS_OK) return 1;
  int rank = 0;
  annulus_comm_rank(comm, &rank);
  bool ok = IsRightOn(comm);
  // Two ranks, in another order; the others have none.
  ok = annulus_comm_split(comm, rank < 2 ? 0 : -1, -rank, &part) == ANNULUS_OK && ok;
  if (part != nullptr) ok = IsRightOn(part) && ok;
  if (annulus_comm_destroy(part) != ANNULUS_OK || annulus_comm_destroy(comm) != ANNULUS_OK) ok = false;
  std::printf("rank %d: parts, exchanges and tags are %s\n", rank, ok ? "right" : "WRONG");
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace annulus

int main() { return annulus::RunAll(); }
