#include "launcher/remote/start_order.h"

#include "launcher/job/hosts.h"
#include "launcher/remote/channel.h"

namespace annulus {

std::string Encode(const StartOrder& order) {
  FieldWriter writer;
  writer.Number(order.first_rank).Number(order.nranks).Number(order.size).Number(order.prefix ? 1 : 0);
  writer.Number(order.bind ? 1 : 0).Text(order.folder).Number(static_cast<int64_t>(order.variables.size()));
  for (const auto& [name, value] : order.variables) writer.Text(name).Text(value);
  for (const std::string& word : order.command) writer.Number(1).Text(word);
  writer.Number(0);
  return writer.content();
}

bool Decode(std::string_view content, StartOrder* order) {
  *order = {};
  FieldReader reader(content);
  const int64_t first_rank = reader.Number();
  const int64_t nranks = reader.Number();
  const int64_t size = reader.Number();
  if (size < 1 || size > kMaxRanks || nranks < 1 || first_rank < 0 || nranks > size || first_rank > size - nranks) {
    return false;
  }
  order->first_rank = static_cast<int>(first_rank);
  order->nranks = static_cast<int>(nranks);
  order->size = static_cast<int>(size);
  order->prefix = reader.Number() != 0;
  order->bind = reader.Number() != 0;
  order->folder = reader.Text();
  for (int64_t left = reader.Number(); left > 0 && !reader.failed(); --left) {
    const std::string name = reader.Text();
    order->variables[name] = reader.Text();
  }
  while (reader.Number() == 1 && !reader.failed()) order->command.push_back(reader.Text());
  return reader.Complete() && !order->command.empty();
}

}  // namespace annulus
