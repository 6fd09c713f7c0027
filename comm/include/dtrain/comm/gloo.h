// The store by which ranks that no launcher connects meet. It
// is in a module of its own (libdtrain_comm_gloo.so) that is opened on demand and needs the libtorch, which every
// program that trains has loaded. If the module is requested but missing, an error says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dtrain::comm {

// The key-value store by which ranks that no launcher connects find each other: PyTorch's TCPStore, which torchrun
// uses too. One thread at a time.
class RendezvousStore {
 public:
  struct Options {
    std::string address;  // IP address on which it listens
    std::uint16_t port = 0;
    bool serves = false;                         // true on rank 0, unless torchrun serves it
    std::chrono::milliseconds timeout{600'000};  // of connecting and of get()
  };
  // Opens the store. CommError: it cannot be reached, or the port is taken.
  static std::unique_ptr<RendezvousStore> open(const Options& options);
  virtual ~RendezvousStore() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is set. CommError at the deadline.
  virtual std::string get(const std::string& key) = 0;
};

}  // namespace dtrain::comm
