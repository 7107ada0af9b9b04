#include "launcher/remote/start_order.h"

#include "base/bytes.h"
#include "launcher/job/hosts.h"
#include "launcher/remote/agent_pipe.h"

namespace annulus {

std::string Encode(const StartOrder& order) {
  ByteWriter writer;
  writer.I64(order.first_rank).I64(order.nranks).I64(order.size).I64(order.prefix ? 1 : 0);
  writer.I64(order.bind ? 1 : 0).LongText(order.folder).I64(static_cast<int64_t>(order.variables.size()));
  for (const auto& [name, value] : order.variables) writer.LongText(name).LongText(value);
  for (const std::string& word : order.command) writer.I64(1).LongText(word);
  writer.I64(0);
  return writer.bytes();
}

bool Decode(std::string_view content, StartOrder* order) {
  *order = {};
  ByteReader reader(content);
  const int64_t first_rank = reader.I64();
  const int64_t nranks = reader.I64();
  const int64_t size = reader.I64();
  if (size < 1 || size > kMaxRanks || nranks < 1 || first_rank < 0 || nranks > size || first_rank > size - nranks) {
    return false;
  }
  order->first_rank = static_cast<int>(first_rank);
  order->nranks = static_cast<int>(nranks);
  order->size = static_cast<int>(size);
  order->prefix = reader.I64() != 0;
  order->bind = reader.I64() != 0;
  order->folder = reader.LongText();
  for (int64_t left = reader.I64(); left > 0 && reader.ok(); --left) {
    const std::string name = reader.LongText();
    order->variables[name] = reader.LongText();
  }
  while (reader.I64() == 1 && reader.ok()) order->command.push_back(reader.LongText());
  return reader.done() && !order->command.empty();
}

}  // namespace annulus
