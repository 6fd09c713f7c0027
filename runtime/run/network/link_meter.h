// Measures a connection between two hosts: its round trip and its bandwidth, in a fraction of a second. Both ends first
// prove that they know the launch's secret; a connection without that proof is closed. All messages are bounded, and
// every wait has a deadline.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "dtrain/base/clock.h"
#include "dtrain/base/fd.h"

namespace dtrain::run {

// What both ends of a measurement know. `server` is the number of the host that is meant to answer: an address that
// several hosts have must not be taken for another host.
struct LinkKey {
  std::string secret;
  int server = 0;
};

// Answers on one address, on a thread of its own for the life of the object; one connection at a time.
class LinkServer {
 public:
  // SystemError if it cannot listen there.
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

// The median of some round trips of a few bytes. CommError: no connection, the wrong server, or too slow.
Nanoseconds measure_round_trip(const LinkTarget& target, const LinkKey& key);

// Bits per second that arrive at the server while this end sends for `duration`. The first part does not count: TCP
// needs it to reach full speed, and a traffic shaper lets a burst pass. CommError as above.
double measure_bandwidth(const LinkTarget& target, const LinkKey& key, Nanoseconds duration);

}  // namespace dtrain::run
