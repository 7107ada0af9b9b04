// The results as CSV, one line per row, and as JSON, one document per run.
//
// Threads: see perf_report.h.
#include <nlohmann/json.hpp>

#include "bench/perf/perf_report.h"

namespace annulus::perf {
namespace {

// Raised when a field changes its meaning or goes; a new field is no reason.
constexpr int kSchema = 1;

using Json = nlohmann::ordered_json;

const char* OpText(const CallSpec& spec) { return HasOp(spec.kind) ? OpName(spec.op) : ""; }

template <typename Items, typename Name>
Json Names(const Items& items, Name name) {
  Json names = Json::array();
  for (const auto& item : items) names.push_back(name(item));
  return names;
}

Json ConfigJson(const Options& options) {
  return {{"min_bytes", options.min_bytes},
          {"max_bytes", options.max_bytes},
          {"factor", options.factor},
          {"step_bytes", options.step_bytes},
          {"iterations", options.iterations},
          {"warmup", options.warmup},
          {"seconds", options.seconds},
          {"async_calls", options.async_calls},
          {"modes", Names(options.modes, ModeName)},
          {"local_register", options.local_register},
          {"check", options.check},
          {"collectives", Names(options.kinds, KindName)},
          {"types", Names(options.types, TypeName)},
          {"ops", Names(options.ops, OpName)},
          {"root", options.root},
          {"limit", options.limit},
          {"device", options.device},
          {"corrupt", options.corrupt}};
}

Json MachineJson(const Machine& machine) {
  Json json = {{"library_version", machine.library_version},
               {"cpu_model", machine.cpu_model},
               {"cores", machine.cores},
               {"cores_online", machine.cores_online},
               {"ranks", machine.ranks},
               {"hosts", machine.hosts},
               {"transport", machine.transport},
               {"links", machine.links},
               {"limit", machine.limit},
               {"limit_latency_us", machine.latency_us},
               {"device", machine.device},
               {"slice_bytes", machine.slice_bytes},
               {"channels", machine.channels},
               {"checksum", machine.checksum},
               {"small_bytes", machine.small_bytes},
               {"algorithm", machine.algorithm},
               {"tuning", machine.tuning}};
  for (const auto& [name, text] : machine.cost_settings) {
    const Json number = Json::parse(text, nullptr, false);
    json[name] = number.is_number() ? number : Json(text);
  }
  return json;
}

// `share`: 0 if it is not known, or there is none.
Json FormJson(const FormResult& form, double share) {
  Json json = {{"median_us", form.timing.median_us},
               {"min_us", form.timing.min_us},
               {"p99_us", form.timing.p99_us},
               {"samples", form.timing.samples},
               {"calls_per_sample", form.timing.calls_per_sample},
               {"algbw_gb_per_s", form.algbw},
               {"busbw_gb_per_s", form.busbw},
               {"limit_percent", share > 0 ? Json(share) : Json()},
               {"wrong", form.wrong < 0 ? Json() : Json(form.wrong)}};
  if (form.alone_us > 0) {
    json["alone_us"] = form.alone_us;
    json["computing_us"] = form.computing_us;
    json["overlap_percent"] = form.Overlap();
  }
  return json;
}

class JsonWriter final : public Report {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out) {}

  void Begin(const Options& options, const Machine& machine) override {
    document_ = {{"benchmark", "annulus-perf"},
                 {"schema", kSchema},
                 {"config", ConfigJson(options)},
                 {"machine", MachineJson(machine)},
                 {"results", Json::array()}};
    has_share_ = !machine.HasFewCores();
  }

  void Add(const Row& row) override {
    Json result = {{"collective", CallName(row.spec)}, {"bytes", row.bytes},
                   {"count", row.spec.count},          {"type", TypeName(row.spec.type)},
                   {"op", OpText(row.spec)},           {"root", HasRoot(row.spec.kind) ? Json(row.spec.root) : Json()},
                   {"mode", ModeName(row.mode)},       {"calls", row.calls},
                   {"limit_us", row.limit_us},         {"out_of_place", FormJson(row.out, ShareOf(row.OutShare()))}};
    if (HasInPlaceForm(row.spec.kind)) result["in_place"] = FormJson(row.in, ShareOf(row.InShare()));
    document_["results"].push_back(std::move(result));
  }

  void End(int64_t wrong) override {
    document_["wrong"] = wrong < 0 ? Json() : Json(wrong);
    Write();
  }

  void Fail(const std::string& why) override {
    document_["error"] = why;
    Write();
  }

 private:
  // A CPU name that is no UTF-8 must not cost the results.
  void Write() { out_ << document_.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl; }

  double ShareOf(double share) const { return has_share_ ? share : 0; }

  std::ostream& out_;
  Json document_;
  bool has_share_ = true;  // As in the table.
};

class CsvWriter final : public Report {
 public:
  explicit CsvWriter(std::ostream& out) : out_(out) {}

  void Begin(const Options&, const Machine& machine) override {
    ranks_ = machine.ranks;
    has_share_ = !machine.HasFewCores();
    out_ << "collective,ranks,links,bytes,count,type,op,root,form,median_us,min_us,p99_us,samples,calls_per_sample,"
            "algbw_gb_per_s,busbw_gb_per_s,limit_us,limit_percent,wrong,mode,calls,"
            "alone_us,computing_us,overlap_percent\n";
    links_ = machine.links.find(',') == std::string::npos ? machine.links : "mixed";
  }

  void Add(const Row& row) override {
    AddForm(row, "out_of_place", row.out, row.OutShare());
    if (HasInPlaceForm(row.spec.kind)) AddForm(row, "in_place", row.in, row.InShare());
  }

  void End(int64_t) override { out_.flush(); }

  void Fail(const std::string&) override { out_.flush(); }

 private:
  void AddForm(const Row& row, const char* name, const FormResult& form, double share) {
    out_ << CallName(row.spec) << ',' << ranks_ << ',' << links_ << ',' << row.bytes << ',' << row.spec.count << ','
         << TypeName(row.spec.type) << ',' << OpText(row.spec) << ','
         << (HasRoot(row.spec.kind) ? std::to_string(row.spec.root) : "") << ',' << name << ',' << form.timing.median_us
         << ',' << form.timing.min_us << ',' << form.timing.p99_us << ',' << form.timing.samples << ','
         << form.timing.calls_per_sample << ',' << form.algbw << ',' << form.busbw << ',' << row.limit_us << ','
         << (has_share_ && share > 0 ? Json(share).dump() : "") << ','
         << (form.wrong < 0 ? "" : std::to_string(form.wrong)) << ',' << ModeName(row.mode) << ',' << row.calls << ',';
    if (form.alone_us > 0) {
      out_ << form.alone_us << ',' << form.computing_us << ',' << form.Overlap() << '\n';
    } else {
      out_ << ",,\n";
    }
    out_.flush();
  }

  std::ostream& out_;
  int ranks_ = 0;
  bool has_share_ = true;  // As in the table.
  std::string links_;
};

}  // namespace

std::unique_ptr<Report> JsonReport(std::ostream& out) { return std::make_unique<JsonWriter>(out); }
std::unique_ptr<Report> CsvReport(std::ostream& out) { return std::make_unique<CsvWriter>(out); }

}  // namespace annulus::perf
