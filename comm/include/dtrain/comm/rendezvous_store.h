// The key-value store in which ranks that no launcher connects find rank 0: PyTorch's TCPStore, as torchrun serves it,
// or one that rank 0 serves itself. Whoever reaches its port can read it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dtrain::comm {

// One thread at a time. Keys have at most 8 KiB, values at most 1 MiB; both may hold any bytes.
class RendezvousStore {
 public:
  struct Options {
    std::string address;  // IP address of the store, or the only one on which it listens
    std::uint16_t port = 0;
    bool serves = false;                         // true on rank 0, unless torchrun serves it
    std::chrono::milliseconds timeout{600'000};  // of connecting and of each call
    int ranks = 1;                               // that connect to the store which this process serves
  };
  // Opens the store. CommError: it cannot be reached, another program answers, or this process cannot listen there.
  static std::unique_ptr<RendezvousStore> open(const Options& options);
  virtual ~RendezvousStore() = default;

  // In a store that rank 0 serves only rank 0 may call set() and erase(): the connection of any other is closed.
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual bool has(const std::string& key) = 0;
  // Blocks until the key is set. CommError at the deadline.
  virtual std::string get(const std::string& key) = 0;
  // Does nothing if the key is not set.
  virtual void erase(const std::string& key) = 0;
  virtual std::uint16_t port() const = 0;
};

}  // namespace dtrain::comm
