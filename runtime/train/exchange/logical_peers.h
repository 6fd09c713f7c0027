// The logical ranks of this rank as peers that compress, one compressor for each (reproducibility.virtual_ranks). An
// operation is gathered from all of them, one after the other, and then carried out among all logical ranks: reductions
// follow the tree of exchange/gradient_tree.h. Training thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "dtrain/comm/compression.h"
#include "exchange/gradient_tree.h"

namespace dtrain::train {

class LogicalPeers {
 public:
  // Both outlive this object, which outlives the compressors. `gathers`: the codec's (comm::CodecMaker).
  LogicalPeers(comm::Communicator& communicator, TreeExchange& exchange, bool gathers);
  ~LogicalPeers();
  LogicalPeers& operator=(LogicalPeers&&) = delete;

  // The logical rank of this number among those of this rank. All of them issue the same operations, and wait for each
  // in the order of their numbers once the last one has issued it.
  comm::CompressionPeers& peer(std::size_t index);
  // To be called when the operations of a step are complete. Returns the bytes that this rank has sent in it, counted
  // as in comm::CompressionStatistics.
  double end_step();

 private:
  class Operation;
  class Reduction;
  class Gathering;
  class WorkOfPeer;
  class Peer;

  comm::Communicator& communicator_;
  TreeExchange& exchange_;
  const bool gathers_;
  std::unique_ptr<comm::Buffer> gathered_;  // of the memory that all logical ranks of this rank share, if it gathers
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Operation>> operations_;  // of this step
  double sent_bytes_ = 0;
};

}  // namespace dtrain::train
