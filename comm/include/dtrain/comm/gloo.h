// libtorch's gloo as a backend between hosts, for machines without MPI: ordinary TCP connections between the ranks. It
// is in a module of its own (libdtrain_comm_gloo.so) that is opened on demand and needs the libtorch, which every
// program that trains has loaded. If the module is requested but missing, an error says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Collective over `control`, which must outlive the communicator and whose rank i is rank members[i] of the run; errors
// name ranks by these numbers. Returns once all ranks are connected. `address`: this host's address, at which the other
// ranks reach it. Sums are made by dtrain in rank order, with the same bits as over MPI. Neither the sender nor the
// data is authenticated. CommError if the module is missing, or if a rank cannot be reached before the deadline.
std::unique_ptr<Communicator> make_gloo_communicator(ControlPlane& control, const std::vector<int>& members,
                                                     const std::string& address, const CommunicatorOptions& options);

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
