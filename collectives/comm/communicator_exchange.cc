// The exchanges of Communicator.
#include <array>
#include <memory>

#include "collectives/calls/call_arguments.h"
#include "collectives/comm/communicator.h"

namespace annulus {

Status Communicator::RunExchange(const CallArguments& send, const CallArguments& recv, bool* blames_recv) {
  ANNULUS_RETURN_IF_ERROR(CheckMayStart());
  Dispatcher::Exchange calls = {send, recv};
  std::shared_ptr<const UserReduction> none;
  for (const bool is_recv : {false, true}) {
    *blames_recv = is_recv;
    const Status valid = Complete(&calls[is_recv ? 1 : 0], &none);
    const char* const part = is_recv ? "the part received from source: " : "the part sent to dest: ";
    if (!valid.ok()) return Refuse({valid.code(), part + valid.message()});
  }
  if (!AreApart(send, recv)) return Refuse(Status::Invalid("sendbuf and recvbuf overlap"));
  return dispatcher_.RunExchange(calls);
}

}  // namespace annulus
