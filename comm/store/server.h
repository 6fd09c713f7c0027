// The store that rank 0 serves where torchrun does not: PyTorch's TCPStore, of which others can read keys only. Its
// clients prove nothing, so what they can occupy is bounded: the connections, the bytes of each, and the time that a
// request may take. None of them can write.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "dtrain/comm/rendezvous_store.h"

namespace dtrain::comm::store {

class StoreSession;

class StoreServer final : public RendezvousStore {
 public:
  explicit StoreServer(const Options& options);
  ~StoreServer() override;

  void set(const std::string& key, const std::string& value) override;
  bool has(const std::string& key) override;
  std::string get(const std::string& key) override;  // CommError at once: nobody else sets keys
  void erase(const std::string& key) override;
  std::uint16_t port() const override { return port_; }

 private:
  friend class StoreSession;

  std::optional<std::string> find(const std::string& wire_key);  // any thread

  // The server's thread.
  void accept();
  void make_room();
  void sweep();

  const std::size_t most_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::steady_timer sweep_;
  std::list<std::shared_ptr<StoreSession>> sessions_;  // in the order of their coming; the server's thread
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace dtrain::comm::store
