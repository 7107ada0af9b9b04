#include "collectives/observe/trace_json.h"

#include <time.h>

#include <cinttypes>
#include <string>
#include <vector>

#include "cuda_kernels/reduce_types.h"

namespace annulus {
namespace {

constexpr int kTracksPerCommunicator = 100;  // Separates communicators when files are joined.

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      quoted += '?';  // Only in users' labels; safe for any reader.
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Number(uint64_t number) { return std::to_string(number); }

// The format counts in microseconds.
std::string Microseconds(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%" PRId64 ".%03d", time / kMicrosecond, static_cast<int>(time % kMicrosecond));
  return text;
}

Nanoseconds WallClockMinusMonotonic() {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  return wall.tv_sec * kSecond + wall.tv_nsec - Now();
}

class Writer {
 public:
  Writer(const TraceOwner& owner, const std::vector<std::string>& labels, std::FILE* file)
      : owner_(owner), labels_(labels), file_(file) {}

  void Begin(uint64_t dropped);
  void NameTracks();
  void Link(const TraceLink& link);
  void Event(const TraceEvent& event, bool unfinished);
  void Verdict(const annulus::Verdict& verdict, Nanoseconds at);
  void End() { Put("\n]}\n"); }

 private:
  void Put(const std::string& text) { std::fwrite(text.data(), 1, text.size(), file_); }
  // Processes and threads are numbered from 1: ui.perfetto.dev takes 0 for the idle task of the kernel.
  int Process() const { return owner_.process_rank + 1; }
  int Track(int index) const { return (owner_.communicator - 1) * kTracksPerCommunicator + index + 1; }
  // One event; `fields` are those beyond what every event has, `args` the members of "args".
  void Put(const std::string& name, const char* category, const char* phase, int track, Nanoseconds at,
           const std::string& fields, const std::string& args);
  void Name(const char* what, int track, const std::string& name);
  void Collective(const TraceEvent& event, bool unfinished);
  void Message(const TraceEvent& event);
  void Slice(const TraceEvent& event);

  // The user's label of a call, "" when there is none.
  const std::string& LabelOf(const TraceEvent& event) const { return labels_[event.label]; }
  std::string Named(const std::string& name, const TraceEvent& event) const {
    return LabelOf(event).empty() ? name : name + " (" + LabelOf(event) + ")";
  }
  std::string CallArguments(const TraceEvent& event) const;

  const TraceOwner owner_;
  const std::vector<std::string>& labels_;
  std::FILE* const file_;
  bool first_ = true;
};

void Writer::Begin(uint64_t dropped) {
  Put("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"rank\":" + Number(owner_.rank) +
      ",\"size\":" + Number(owner_.nranks) + ",\"communicator\":" + Number(owner_.communicator) +
      ",\"dropped_events\":" + Number(dropped) +
      ",\"time_of_day_minus_ts_us\":" + Microseconds(WallClockMinusMonotonic()) + "},\n\"traceEvents\":[");
}

void Writer::Put(const std::string& name, const char* category, const char* phase, int track, Nanoseconds at,
                 const std::string& fields, const std::string& args) {
  Put(std::string(first_ ? "\n" : ",\n") + "{\"name\":" + Quoted(name) + ",\"cat\":\"" + category + "\",\"ph\":\"" +
      phase + "\",\"pid\":" + Number(Process()) + ",\"tid\":" + Number(Track(track)) + ",\"ts\":" + Microseconds(at) +
      fields + ",\"args\":{" + args + "}}");
  first_ = false;
}

void Writer::Name(const char* what, int track, const std::string& name) {
  Put(what, "__metadata", "M", track, 0, "", "\"name\":" + Quoted(name));
}

void Writer::NameTracks() {
  Name("process_name", 0, "rank " + Number(owner_.process_rank));
  std::string of;
  if (owner_.communicator > 1) {
    of = " of communicator " + Number(owner_.communicator) + " (rank " + Number(owner_.rank) + " of " +
         Number(owner_.nranks) + ")";
  }
  Name("thread_name", 0, "calls" + of);
  for (int channel = 0; channel < owner_.channels; ++channel) {
    Name("thread_name", 1 + channel, "channel " + Number(channel) + of);
  }
  Name("thread_name", 1 + owner_.channels, "messages" + of);
}

void Writer::Link(const TraceLink& link) {
  Put("link to rank " + Number(link.peer), "link", "i", 1 + link.channel, link.made, ",\"s\":\"t\"",
      "\"peer\":" + Number(link.peer) + ",\"transport\":" + Quoted(link.transport) +
          ",\"description\":" + Quoted(link.description));
}

std::string Duration(const TraceEvent& event) { return ",\"dur\":" + Microseconds(event.took); }

std::string Writer::CallArguments(const TraceEvent& event) const {
  const std::string label = LabelOf(event).empty() ? "" : "\"label\":" + Quoted(LabelOf(event)) + ",";
  return label + "\"sequence\":" + Number(event.call.sequence) + ",\"count\":" + Number(event.call.count) +
         ",\"type\":\"" + TypeName(event.call.type) +
         "\",\"bytes\":" + Number(event.call.count * TypeBytes(event.call.type));
}

void Writer::Collective(const TraceEvent& event, bool unfinished) {
  std::string args = CallArguments(event) + ",\"ok\":" + (event.ok && !unfinished ? "true" : "false");
  if (unfinished) args += ",\"unfinished\":true";
  Put(Named(KindName(event.call.kind), event), "collective", "X", 0, event.begin, Duration(event), args);
}

void Writer::Message(const TraceEvent& event) {
  const bool sends = event.call.kind == CollectiveKind::kSend;
  const std::string name = Named((sends ? "send to rank " : "receive from rank ") + Number(event.peer), event);
  const std::string id = ",\"id\":" + Quoted(Number(owner_.process_rank) + "-" + Number(Track(0)) + "-" +
                                             (sends ? "to-" : "from-") + Number(event.peer));
  const int track = 1 + owner_.channels;
  Put(name, "message", "b", track, event.begin, id, CallArguments(event));
  Put(name, "message", "e", track, event.begin + event.took, id, "");
}

void Writer::Slice(const TraceEvent& event) {
  const bool works = event.kind == TraceEvent::Kind::kReduced || event.kind == TraceEvent::Kind::kCopied;
  const char* const name = event.kind == TraceEvent::Kind::kReceived  ? "received"
                           : event.kind == TraceEvent::Kind::kReduced ? "reduced"
                           : event.kind == TraceEvent::Kind::kCopied  ? "copied"
                                                                      : "sent";
  std::string args = "\"bytes\":" + Number(event.bytes) + ",\"chunk\":" + Number(event.chunk) +
                     ",\"slice\":" + Number(event.slice) + ",\"sequence\":" + Number(event.call.sequence);
  if (event.peer >= 0) args += ",\"peer\":" + Number(event.peer);
  Put(name, "slice", works ? "X" : "i", 1 + event.channel, event.begin, works ? Duration(event) : ",\"s\":\"t\"", args);
}

void Writer::Event(const TraceEvent& event, bool unfinished) {
  switch (event.kind) {
    case TraceEvent::Kind::kCollective:
      return Collective(event, unfinished);
    case TraceEvent::Kind::kMessage:
      return Message(event);
    case TraceEvent::Kind::kWait:
      return Put(event.peer >= 0 ? "wait for rank " + Number(event.peer) : "wait", "wait", "X", 0, event.begin,
                 Duration(event), event.peer >= 0 ? "\"peer\":" + Number(event.peer) : "");
    case TraceEvent::Kind::kSleep:
      return Put("sleep", "sleep", "X", 0, event.begin, Duration(event), "");
    default:
      return Slice(event);
  }
}

void Writer::Verdict(const annulus::Verdict& verdict, Nanoseconds at) {
  Put(CodeName(verdict.code), "verdict", "i", 0, at, ",\"s\":\"p\"",
      "\"message\":" + Quoted(verdict.message) + ",\"rank\":" + std::to_string(verdict.rank) +
          ",\"sequence\":" + Number(verdict.call.sequence));
}

}  // namespace

void WriteTraceJson(const TraceOwner& owner, const Trace::Content& content, std::FILE* file) {
  Writer writer(owner, content.labels, file);
  writer.Begin(content.dropped);
  writer.NameTracks();
  for (const TraceLink& link : content.links) writer.Link(link);
  for (const TraceEvent& event : content.events) {
    writer.Event(event, content.unfinished && &event == &content.events.back());
  }
  if (content.verdict.code != Code::kOk) writer.Verdict(content.verdict, content.verdict_at);
  writer.End();
}

}  // namespace annulus
