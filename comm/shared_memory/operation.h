// One outstanding collective of this rank: its handle, its times and how it ends. What moves its data is in transfer.h.
// Shared by the communicator and the Work handles; the thread of the communicator.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/comm/communicator.h"
#include "shared_memory/transfer.h"

namespace dtrain::comm {

class SharedMemoryCommunicator;

class Operation final : public WorkState {
 public:
  Operation(SharedMemoryCommunicator* communicator, const Transfer& transfer)
      : communicator_(communicator), transfer_(transfer) {}

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override { return transfer_.payload(); }
  std::uint64_t sequence() const override { return descriptor().sequence; }
  std::vector<MissingRank> missing() const override;

  const Descriptor& descriptor() const { return transfer_.descriptor(); }

 private:
  friend class SharedMemoryCommunicator;

  SharedMemoryCommunicator* communicator_;  // null once the communicator is gone
  Transfer transfer_;
  int entered_ = 0;  // ranks seen to have entered it, in rank order
  bool complete_ = false;
  std::string failed_;  // why it will never complete
  WorkTiming timing_;
};

}  // namespace dtrain::comm
