// What a rank hears from what it takes for the store of rank 0: from its first byte on (bit 0 of the first byte clear),
// or after the right answer to its ping, while it asks for a key and then erases it.
#include <thread>

#include "control_peer.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous_store.h"

void dtrain::fuzz::store_client(Input input) {
  if (input.empty()) return;
  const bool answers = (input[0] & 1) != 0;
  const std::string bytes(input.begin() + 1, input.end());
  const Listener listener;
  std::thread rank_0([&] {
    auto peer = listener.accept();
    const std::string hello = peer.receive_bytes(10);  // two requests: to validate, and a ping
    if (answers) peer.send(hello.substr(6));
    peer.send(bytes);
    peer.send(answers ? std::string()
                      : std::string(4, '\0'));  // an answer to the ping: the rank does not connect again
    peer.end();
  });
  try {
    const auto store = comm::RendezvousStore::open(
        {.address = "127.0.0.1", .port = listener.port(), .timeout = std::chrono::seconds(10)});
    (void)store->get("k");
    store->erase("k");
  } catch (const CommError&) {
  }
  rank_0.join();
}
