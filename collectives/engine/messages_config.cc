#include "collectives/engine/messages_config.h"

#include "collectives/observe/trace.h"

namespace annulus {

void TraceMessage(const MessageContext& context, const QueuedMessage& ended) {
  Trace* const trace = context.config->monitor->trace();
  if (trace == nullptr) return;
  TraceEvent event;
  event.kind = TraceEvent::Kind::kMessage;
  event.channel = MessageChannel(context.plan());
  event.peer = context.peer;
  event.label = ended.message.label;
  event.call = CallOf(ended.message, ended.number, 0);
  event.call.kind = ended.message.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  event.begin = ended.begin;
  event.took = Now() - ended.begin;
  trace->Add(event);
}

ScheduleParams ParamsOf(const MessageContext& context, const Message& message, size_t slice_bytes) {
  ScheduleParams params;
  params.kind = message.sends ? CollectiveKind::kSend : CollectiveKind::kRecv;
  params.algorithm = Algorithm::kMessage;
  params.rank = context.config->rank;
  params.nranks = context.config->nranks;
  params.root = context.peer;
  params.count = message.count;
  params.element_bytes = TypeBytes(message.type);
  params.slice_bytes = slice_bytes;
  return params;
}

Work CommonWork(const MessageContext& context) {
  Work work;
  work.rank = context.config->rank;
  work.nranks = context.config->nranks;
  work.links = context.config->links;
  work.monitor = context.config->monitor;
  work.notes = context.notes;
  work.lends = true;
  return work;
}

Status BrokenProtocol(int peer, const std::string& what) {
  return {Code::kProtocol, "rank " + std::to_string(peer) + " sent " + what, peer, 0};
}

}  // namespace annulus
