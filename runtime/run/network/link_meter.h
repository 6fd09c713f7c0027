// Measures a connection between two hosts: its round trip, and what it carries in a fraction of a second. Both ends
// prove first that they know a secret of the launch; whoever does not is hung up on. What is received is bounded, and
// every wait ends.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/fd.h"

namespace dtrain::run {

// What both ends of a measurement know. `server` is which of the hosts is meant to answer: an address that belongs to
// several of them must not be taken for another host.
struct LinkKey {
  std::string secret;
  int server = 0;
};

// Answers on one address, on a thread of its own, from construction to destruction; one connection at a time.
class LinkServer {
 public:
  // SystemError when it cannot listen there.
  LinkServer(const std::string& address, LinkKey key);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;
  int port() const { return port_; }

 private:
  void serve(int stop) const;

  LinkKey key_;
  UniqueFd listener_;
  UniqueFd stop_;  // eventfd: ends the thread
  int port_ = 0;
  std::thread thread_;
};

struct LinkTarget {
  std::string from;  // this end's address
  std::string address;
  int port = 0;
};

// The median of some round trips of a few bytes. CommError: no connection, not the right server, too slow.
Nanoseconds measure_round_trip(const LinkTarget& target, const LinkKey& key);

// Bits a second that arrive at the server while this end sends for `duration`, the first part of it not counted: TCP
// needs it to come up to speed, and a shaper lets a burst pass. CommError as above.
double measure_bandwidth(const LinkTarget& target, const LinkKey& key, Nanoseconds duration);

}  // namespace dtrain::run
