// Prints what the cost model says of allreduces over many hosts, as JSON: one entry for each number of hosts and size.
//
// All costs come from the command line; `predict` fits them to a measurement. Threads: one.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/choice/plan.h"
#include "collectives/cost/cost_model.h"

namespace annulus {
namespace {

struct Options {
  LinkCosts costs;
  std::vector<int> hosts = {8, 64, 1000};
  std::vector<size_t> sizes = {1024, 8 << 20};
  size_t small_bytes = PlanSettings().small_bytes;
};

nlohmann::json Entry(int hosts, size_t size, const Options& options) {
  const auto bytes = static_cast<double>(size);
  PlanSettings settings;
  settings.small_bytes = options.small_bytes;
  std::vector<int> host_of(hosts);
  std::iota(host_of.begin(), host_of.end(), 0);
  Topology topology(hosts, host_of);
  topology.by_system_calls = hosts > 1;
  const Call call{0, CollectiveKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 0, size / sizeof(float)};
  const ScheduleParams plan = MakePlan({call, sizeof(float), 0, hosts, nullptr, nullptr}, settings, topology);
  const RingSlices slices = {plan.slice_bytes, plan.round_slices};
  const LinkCosts& costs = options.costs;
  const double seconds = ModelledSeconds({settings, topology}, EqualCosts(costs), plan.algorithm, size);
  const int group = BestGroupSize(hosts, bytes, slices, costs);
  nlohmann::json entry = {{"hosts", hosts}, {"bytes", size}, {"group_size", group}};
  entry["seconds"] = {{"annulus", seconds},
                      {"ring", RingSeconds(hosts, bytes, slices, costs)},
                      {"log_gather", LogGatherSeconds(hosts, bytes, costs)},
                      {"log_exchange", LogExchangeSeconds(hosts, bytes, costs)},
                      {"recursive_doubling", RecursiveDoublingSeconds(hosts, bytes, costs)},
                      {"halving_doubling", HalvingDoublingSeconds(hosts, bytes, costs)},
                      {"small_tree", SmallTreeSeconds(hosts, bytes, costs)},
                      {"tree", TreeSeconds(hosts, bytes, costs)},
                      {"two_level", TwoLevelSeconds({hosts / group, group, 1}, bytes, slices, costs, costs)}};
  return entry;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("model: the cost model's times of allreduces over many hosts");
  app.add_option("--latency", options.costs.latency_s, "seconds from a message's end to the receiver's act");
  app.add_option("--byte", options.costs.byte_s, "seconds per byte of a link");
  app.add_option("--message", options.costs.message_s, "the core's seconds per message");
  app.add_option("--reduce-byte", options.costs.reduce_byte_s, "the core's seconds per byte reduced");
  app.add_option("--move-byte", options.costs.move_byte_s, "the core's seconds per byte received and sent");
  app.add_option("--ranks-per-core", options.costs.ranks_per_core, "more than 1 where hosts share cores");
  app.add_option("--hosts", options.hosts, "numbers of hosts")->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--sizes", options.sizes, "bytes per rank")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--small-bytes", options.small_bytes, "as ANNULUS_SMALL_BYTES");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json entries = nlohmann::json::array();
  for (const int hosts : options.hosts) {
    for (const size_t size : options.sizes) entries.push_back(Entry(hosts, size, options));
  }
  std::cout << entries.dump(1) << std::endl;
  return 0;
}

}  // namespace
}  // namespace annulus

int main(int argc, char** argv) { return annulus::Main(argc, argv); }
