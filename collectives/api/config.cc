#include "collectives/api/config.h"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>

namespace annulus {
namespace {

// Visits every pair of fields that both structs have, in the order of annulus_config_t.
template <typename Config, typename OptionsType, typename Visitor>
void VisitFields(Config& config, OptionsType& options, Visitor visit) {
  visit(config.rank, options.rank);
  visit(config.size, options.size);
  visit(config.local_rank, options.local_rank);
  visit(config.local_size, options.local_size);
  visit(config.rendezvous, options.rendezvous);
  visit(config.job_key, options.job_key);
  visit(config.insecure, options.insecure);
  visit(config.transport, options.transport);
  visit(config.interface_name, options.interface_name);
  visit(config.host_id, options.host_id);
  visit(config.timeout_ms, options.timeout_ms);
  visit(config.connect_timeout_ms, options.connect_timeout_ms);
  visit(config.slice_bytes, options.slice_bytes);
  visit(config.channels, options.channels);
  visit(config.tcp_sockets, options.tcp_sockets);
  visit(config.checksum, options.checksum);
  visit(config.small_bytes, options.small_bytes);
  visit(config.spin_us, options.spin_us);
  visit(config.log_level, options.log_level);
  visit(config.mesh_ranks, options.mesh_ranks);
  visit(config.priorities, options.priorities);
  visit(config.memory_bytes, options.memory_bytes);
  visit(config.trace, options.trace);
  visit(config.algorithm, options.algorithm);
  visit(config.shm_stores, options.shm_stores);
  visit(config.tuning, options.tuning);
  visit(config.tuning_file, options.tuning_file);
}

// Keeps every distinct text for the life of the process, so that a config never outlives its strings. Settings are few.
const char* Intern(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> kept;
  std::lock_guard<std::mutex> lock(mutex);
  return kept.insert(text).first->c_str();
}

struct ToConfig {
  void operator()(const char*& field, const std::string& value) const { field = Intern(value); }
  template <typename Number>
  void operator()(Number& field, int64_t value) const {
    field = static_cast<Number>(value);
  }
};

struct FromConfig {
  void operator()(const char* field, std::string& value) const {
    if (field != nullptr) value = field;
  }
  template <typename Number>
  void operator()(Number field, int64_t& value) const {
    value = field;
  }
};

// The first version's last field; a smaller struct was never published.
constexpr size_t kSmallestConfigBytes = offsetof(annulus_config_t, log_level) + sizeof(const char*);

}  // namespace

Status InitConfig(annulus_config_t* config) {
  Options options;
  ANNULUS_RETURN_IF_ERROR(ReadEnvironment(&options));
  std::memset(config, 0, sizeof *config);
  config->struct_bytes = sizeof *config;
  VisitFields(*config, options, ToConfig());
  return Status();
}

Status ToOptions(const annulus_config_t& config, Options* options) {
  if (config.struct_bytes < kSmallestConfigBytes) {
    return Status::Invalid("config->struct_bytes is " + std::to_string(config.struct_bytes) +
                           "; fill the struct with annulus_config_init first");
  }
  annulus_config_t known{};
  std::memcpy(&known, &config, config.struct_bytes < sizeof known ? config.struct_bytes : sizeof known);
  Options result;
  VisitFields(known, result, FromConfig());
  *options = std::move(result);
  return Status();
}

}  // namespace annulus
