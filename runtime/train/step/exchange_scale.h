// The scale of gradients that the ranks sum in every window.
#pragma once

#include "dtrain/comm/communicator.h"
#include "exchange/window_scale.h"
#include "step/aggregation_window.h"
#include "step/collective_vote.h"

namespace dtrain::train {

class ExchangeScale final : public WindowScale {
 public:
  ExchangeScale(const comm::Communicator& communicator, const AggregationWindow& window, CollectiveVote& vote)
      : communicator_(communicator), window_(window), vote_(vote) {}

  double full() const override;
  double correction() override;

 private:
  const comm::Communicator& communicator_;
  const AggregationWindow& window_;
  CollectiveVote& vote_;
};

}  // namespace dtrain::train
