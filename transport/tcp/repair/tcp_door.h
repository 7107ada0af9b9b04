// TcpDoor: where the links that this rank has accepted get another connection when one breaks. It keeps the port at
// which the links were made, as long as any of them lives. Whoever comes has to prove itself as at the start, under a
// key of which the random ticket in this rank's address is a part: so in a job without a key, too, only its own ranks
// are let in.
//
// Threads: the one that runs the io_context; it accepts while the rank drives its links.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/secret.h"
#include "transport/security/door.h"
#include "transport/stream_socket.h"

namespace annulus {

class TcpDoor {
 public:
  // A link that may be made again.
  class Link {
   public:
    // Whether a connection with that number may take the place of the lane's.
    virtual bool Expects(int lane, uint32_t connection) const = 0;
    virtual void Welcome(int lane, uint32_t connection, SealedSocket socket) = 0;

   protected:
    ~Link() = default;
  };

  // `hello` as for an acceptor.
  TcpDoor(asio::io_context* context, StreamListener listener, const Hello& hello, const Secret& key);
  TcpDoor(const TcpDoor&) = delete;
  TcpDoor& operator=(const TcpDoor&) = delete;
  ~TcpDoor() { door_->Close(); }

  void Add(int peer, int channel, Link* link) { links_[{peer, channel}] = link; }
  void Remove(int peer, int channel) { links_.erase({peer, channel}); }

 private:
  StreamHandshake::Verdict Decide(const Hello& peer) const;
  Link* Find(const Hello& peer) const;

  StreamListener listener_;
  std::shared_ptr<Door> door_;
  std::map<std::pair<int, int>, Link*> links_;  // By peer and channel.
};

}  // namespace annulus
