#include "collectives/engine/engine.h"

#include <algorithm>

#include "base/check.h"
#include "collectives/algorithms/log/log_exchange.h"
#include "collectives/algorithms/log/log_gather.h"
#include "collectives/algorithms/tree/tree_exchange.h"

namespace annulus {
namespace {

bool HasType(CollectiveKind kind) { return kind != CollectiveKind::kBarrier; }

// One part per rank, as the layout says.
void FillFromLayout(const Layout& layout, size_t count, std::vector<Part>* parts) {
  size_t next = 0;
  for (size_t rank = 0; rank < parts->size(); ++rank) {
    Part& part = (*parts)[rank];
    part.elements = layout.counts != nullptr ? layout.counts[rank] : count;
    part.begin = layout.offsets != nullptr ? layout.offsets[rank] : next;
    next += part.elements;
  }
}

}  // namespace

std::vector<int> LevelPeers(int rank, const HostGrid& grid) {
  if (!grid.exists()) return {};
  const RankRing inner = grid.Inner(rank);
  const RankRing outer = grid.Outer(rank);
  std::vector<int> peers = {inner.prev, inner.next, outer.prev, outer.next};
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

bool HasMesh(int nranks, const PlanSettings& settings) {
  return nranks <= std::max(settings.mesh_ranks, kMaxOneHopRanks);
}

std::vector<NeededLink> LinksNeeded(int rank, int nranks, const PlanSettings& settings) {
  std::vector<NeededLink> needed;
  if (nranks == 1) return needed;
  const int prev = (rank + nranks - 1) % nranks;
  const int next = (rank + 1) % nranks;
  const bool mesh = HasMesh(nranks, settings);
  std::vector<int> first_channel;  // Peers beside the neighbours.
  if (HasLogSteps(nranks, settings) || HasLogGather(nranks, settings)) first_channel = LogPeers(rank, nranks);
  if (HasTree(nranks, settings)) {
    const std::vector<int> children = TreeChildren(rank, nranks);
    first_channel.insert(first_channel.end(), children.begin(), children.end());
    if (rank > 0) first_channel.push_back(TreeParent(rank));
  }
  for (int peer : LevelPeers(rank, HostGrid(settings.host_of))) first_channel.push_back(peer);
  for (int channel = 0; channel < settings.channels; ++channel) {
    for (int peer = 0; peer < nranks; ++peer) {
      const bool neighbour = peer == prev || peer == next;
      const bool extra = channel == 0 && (mesh || std::count(first_channel.begin(), first_channel.end(), peer) > 0);
      if (peer != rank && (neighbour || extra)) needed.push_back({peer, channel});
    }
  }
  for (int peer = 0; peer < nranks && mesh; ++peer) {
    if (peer != rank) needed.push_back({peer, settings.channels});
  }
  return needed;
}

Engine::Engine(int rank, int nranks, const PlanSettings& settings, const Links* links, Monitor* monitor)
    : rank_(rank),
      nranks_(nranks),
      settings_(settings),
      choice_(nranks, settings),
      links_(links),
      monitor_(monitor),
      root_endpoint_(1),
      express_(rank, nranks, links, HasMesh(nranks, settings)),
      input_parts_(nranks),
      output_parts_(nranks),
      round_ends_(nranks) {
  for (int channel = 0; channel < settings.channels; ++channel) pipelines_.emplace_back(channel, WindowSteps(settings));
  if (choice_.grid().exists()) pipelines_.emplace_back(0, WindowSteps(settings));
  if (nranks == 1) return;
  for (int peer : LevelPeers(rank, choice_.grid())) level_endpoints_.push_back(links->At(peer, 0));
  const int prev = (rank + nranks - 1) % nranks;
  const int next = (rank + 1) % nranks;
  for (int channel = 0; channel < settings.channels; ++channel) {
    ring_endpoints_.push_back(links->At(prev, channel));
    if (next != prev) ring_endpoints_.push_back(links->At(next, channel));
  }
  MakeExchanges();
  for (int peer = 0; peer < nranks && HasMesh(nranks, settings); ++peer) {
    if (peer != rank) mesh_endpoints_.push_back(links->At(peer, 0));
  }
}

void Engine::MakeExchanges() {
  if (HasLogSteps(nranks_, settings_)) {
    log_exchange_ = std::make_unique<LogExchange>(rank_, nranks_, MostLogBytes(nranks_, settings_), links_);
  }
  if (HasLogGather(nranks_, settings_)) {
    log_gather_ = std::make_unique<LogGather>(rank_, nranks_, settings_.gather_bytes, links_);
  }
  if (HasTree(nranks_, settings_)) {
    tree_ = std::make_unique<TreeExchange>(rank_, nranks_, MostTreeBytes(settings_), links_);
  }
}

Exchange* Engine::ExchangeOf(Algorithm algorithm) const {
  if (algorithm == Algorithm::kLogSteps) return log_exchange_.get();
  if (algorithm == Algorithm::kLogGather) return log_gather_.get();
  return algorithm == Algorithm::kTree ? tree_.get() : nullptr;
}

size_t ExchangesBytes(int nranks, const PlanSettings& settings) {
  size_t bytes = 0;
  if (HasLogSteps(nranks, settings)) bytes += LogExchange::MemoryBytes(nranks, MostLogBytes(nranks, settings));
  if (HasLogGather(nranks, settings)) bytes += LogGather::MemoryBytes(nranks, settings.gather_bytes);
  if (HasTree(nranks, settings)) bytes += TreeExchange::MemoryBytes(nranks, MostTreeBytes(settings));
  return bytes;
}

size_t Engine::MemoryBytes() const {
  const size_t per_rank = 2 * sizeof(Part) + sizeof(uint64_t) + sizeof(Endpoint*);
  return sizeof(Engine) + pipelines_.size() * Pipeline::MemoryBytes(WindowSteps(settings_)) +
         (nranks_ > 1 ? ExchangesBytes(nranks_, settings_) : 0) + static_cast<size_t>(nranks_) * per_rank;
}

void Engine::FillParts(const Call& call, const Buffers& buffers) {
  // A buffer with one part only, whoever it is for.
  const auto whole = [](size_t elements, std::vector<Part>* parts) { parts->assign(parts->size(), {0, elements}); };
  const bool at_root = rank_ == call.root;
  if (IsGather(call.kind)) {
    whole(buffers.count, &input_parts_);
    if (at_root) FillFromLayout(buffers.output_layout, call.count, &output_parts_);
  } else if (IsScatter(call.kind)) {
    whole(buffers.count, &output_parts_);
    if (at_root) FillFromLayout(buffers.input_layout, call.count, &input_parts_);
  } else {
    FillFromLayout(buffers.input_layout, call.count, &input_parts_);
    FillFromLayout(buffers.output_layout, call.count, &output_parts_);
  }
}

ScheduleParams Engine::Plan(const Call& call, const Buffers& buffers) {
  const bool has_parts = IsDirect(call.kind) || HasVariableParts(call.kind);
  if (has_parts) FillParts(call, buffers);
  PlanInput input{call, work_.element_bytes, rank_, nranks_, nullptr, nullptr, 0};
  if (has_parts) input.input_parts = input_parts_.data();
  if (has_parts) input.output_parts = output_parts_.data();
  if (buffers.segments != nullptr) {
    input.input_parts = buffers.segments->chunks().data();
    input.tensor_count = buffers.segments->first_count();
  }
  ScheduleParams params = MakePlan(input, settings_, choice_);
  if (params.algorithm == Algorithm::kDirect) {
    FillRoundEnds(params, round_ends_.data());
    params.round_ends = round_ends_.data();
  }
  return params;
}

// In place, the output's lines were read as input a moment ago; what does nothing but copy is no faster for it; and in
// two levels one reads from the output what the other has just put there.
bool Engine::StreamsOutput(const Call& call, const Buffers& buffers, Algorithm algorithm) const {
  if (call.kind != CollectiveKind::kAllreduce || buffers.input == buffers.output) return false;
  if (algorithm == Algorithm::kTwoLevel) return false;
  return 2 * call.count * work_.element_bytes > stream_bytes_;
}

void Engine::Start(const Call& call, const Buffers& buffers, Device* device) {
  ANNULUS_CHECK(done());
  work_.call = call;
  work_.input = static_cast<const std::byte*>(buffers.input);
  work_.output = static_cast<std::byte*>(buffers.output);
  work_.type = call.type;
  work_.element_bytes = HasType(call.kind) ? TypeBytes(call.type) : 1;
  work_.op = IsPremulSum(call.op) ? ReduceOp::kSum : call.op;
  work_.custom = Reduces(call.kind) ? buffers.custom : CustomReduction();
  work_.divisor = call.op == ReduceOp::kAvg && nranks_ > 1 ? nranks_ : 0;
  work_.rank = rank_;
  work_.nranks = nranks_;
  work_.device = device;
  work_.links = links_;
  work_.monitor = monitor_;
  work_.segments = buffers.segments;
  const ScheduleParams params = Plan(call, buffers);
  work_.streams_output = StreamsOutput(call, buffers, params.algorithm);
  work_.sends_in_place = params.algorithm != Algorithm::kOneHop;
  exchange_ = ExchangeOf(params.algorithm);
  is_express_ = express_.Takes(params, work_);
  if (exchange_ != nullptr) {
    endpoints_ = &exchange_->endpoints();
    exchange_->Start(&work_);
    pipelines_left_ = 1;
    return;
  }
  endpoints_ = params.algorithm == Algorithm::kRing ? &ring_endpoints_ : &mesh_endpoints_;
  if (params.algorithm == Algorithm::kDirect && HasRoot(call.kind) && rank_ != call.root) {
    root_endpoint_[0] = links_->At(call.root, 0);
    endpoints_ = &root_endpoint_;
  }
  if (is_express_) {
    pipelines_left_ = 1;
    return express_.Start(params, &work_);
  }
  StartPipelines(params);
}

void Engine::StartPipelines(const ScheduleParams& params) {
  pipelines_left_ = static_cast<int>(pipelines_.size());
  const bool two_level = params.algorithm == Algorithm::kTwoLevel;
  const int used = two_level ? 0 : settings_.channels;
  for (int channel = 0; channel < used; ++channel) pipelines_[channel].Start(Schedule(params, channel), &work_);
  for (size_t rest = used; rest < pipelines_.size(); ++rest) pipelines_[rest].Start(Schedule(), &work_);
  if (!two_level) return;
  Pipeline& inner = pipelines_.front();
  Pipeline& outer = pipelines_.back();
  inner.Start(Schedule(params, 0), &work_, &outer);
  outer.Start(Schedule(params, 1), &work_, &inner);
  endpoints_ = &level_endpoints_;
}

void Engine::StartAgain(uint64_t sequence, const void* input, void* output) {
  ANNULUS_CHECK(done() && is_express_);
  work_.call.sequence = sequence;
  work_.input = static_cast<const std::byte*>(input);
  work_.output = static_cast<std::byte*>(output);
  pipelines_left_ = 1;
  express_.StartAgain();
}

bool Engine::FinishesAtOnce() {
  bool moved = false;
  return express_.Progress(&moved).ok() && ExpressIsDone();
}

bool Engine::ExpressIsDone() {
  if (!express_.done()) return false;
  bool flushed = true;
  for (Endpoint* endpoint : *endpoints_) flushed &= endpoint->Flush();
  if (flushed) pipelines_left_ = 0;
  return flushed;
}

Status Engine::ProgressLinks(bool* moved) {
  Status link_error;
  for (Endpoint* endpoint : *endpoints_) {
    Status status = endpoint->Progress(moved);
    if (status.ok() || !link_error.ok()) continue;
    // A rank that has done its part may leave while others still wait for a third one; its link fails only those who
    // still need it: now what they posted there, later what they try to post.
    if (status.code() != Code::kPeerLost || WaitsFor(endpoint)) link_error = std::move(status);
  }
  return link_error;
}

Status Engine::ProgressExpress(bool* moved) {
  if (!express_.done()) ANNULUS_RETURN_IF_ERROR(express_.Progress(moved));
  if (ExpressIsDone()) return Status();
  Status status = ProgressLinks(moved);
  if (status.ok()) ExpressIsDone();  // Its last bytes may just have left, and nothing else would tell.
  return status;
}

Status Engine::Progress(bool* moved) {
  if (is_express_) return ProgressExpress(moved);
  Status link_error = ProgressLinks(moved);
  Status status = AdvanceAll(moved);
  // A slice that breaks its link may also tell why: a mismatched call says more than "frame too long".
  if (status.code() == Code::kMismatch || link_error.ok()) link_error = std::move(status);
  // A peer that has left after its last slice does not fail a collective that is complete.
  return done() && link_error.code() != Code::kMismatch ? Status() : link_error;
}

// Returns the first error, or the first mismatch when there is one.
Status Engine::AdvanceAll(bool* moved) {
  if (exchange_ != nullptr) {
    Status status = exchange_->Advance(moved);
    pipelines_left_ = exchange_->done() ? 0 : 1;
    return status;
  }
  Status first;
  pipelines_left_ = 0;
  for (Pipeline& pipeline : pipelines_) {
    Status status = pipeline.Advance(moved);
    if (status.code() == Code::kMismatch) return status;
    if (!status.ok() && first.ok()) first = std::move(status);
    if (!pipeline.done()) ++pipelines_left_;
  }
  return first;
}

bool Engine::WaitsFor(const Endpoint* endpoint) const {
  if (exchange_ != nullptr) return exchange_->WaitsFor(endpoint);
  if (is_express_) return express_.WaitsFor(endpoint);
  for (const Pipeline& pipeline : pipelines_) {
    if (pipeline.WaitsFor(endpoint)) return true;
  }
  return false;
}

int Engine::AwaitedPeer() const {
  if (exchange_ != nullptr) return exchange_->AwaitedPeer();
  if (is_express_) return express_.AwaitedPeer();
  for (const Pipeline& pipeline : pipelines_) {
    const int peer = pipeline.AwaitedPeer();
    if (peer >= 0) return peer;
  }
  return -1;
}

bool Engine::WaitsForDevice() const {
  if (exchange_ != nullptr) return exchange_->waits_for_device();
  return std::any_of(pipelines_.begin(), pipelines_.end(), [](const Pipeline& p) { return p.waits_for_device(); });
}

bool Engine::Arm() {
  if (!is_express_ && WaitsForDevice()) return false;
  bool armed = true;
  for (Endpoint* endpoint : *endpoints_) {
    if (endpoint->Arm()) continue;
    // A link that is lost and that nobody waits for has nothing to keep us awake for.
    bool moved = false;
    if (WaitsFor(endpoint) || endpoint->Progress(&moved).ok()) armed = false;
  }
  return armed;
}

}  // namespace annulus
