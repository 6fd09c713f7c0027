#pragma once

#include "harness/forwarding_communicator.h"

namespace dtrain::train {

// A communicator whose ranks cannot map each other's memory, as those of several hosts.
class NoCommonMemory final : public test::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::unique_ptr<comm::Buffer> allocate_common(std::size_t) override { return nullptr; }
};

}  // namespace dtrain::train
