// The scale of gradients that the ranks sum in every window. On a CPU the exchange multiplies by it while the data is
// in its hands; on a device the update does, for NCCL's plain sums are its fastest.
#pragma once

#include "dtrain/comm/communicator.h"
#include "exchange/window_scale.h"
#include "precision/loss_scaler.h"
#include "step/aggregation_window.h"
#include "step/collective_vote.h"

namespace dtrain::train {

class ExchangeScale final : public WindowScale {
 public:
  ExchangeScale(const comm::Communicator& communicator, const AggregationWindow& window, CollectiveVote& vote,
                bool on_host, const LossScaler* scaler)
      : communicator_(communicator), window_(window), vote_(vote), on_host_(on_host), scaler_(scaler) {}

  double full() const override;
  double correction() override;
  // What correction() is for a full window of which every rank had all its batches.
  double correction_of_full_window() const { return on_host_ ? 1 : of_full_window(); }
  at::Tensor inverse_of_loss_scale() const override { return scaler_ ? scaler_->inverse() : at::Tensor(); }

 private:
  double of_full_window() const;

  const comm::Communicator& communicator_;
  const AggregationWindow& window_;
  CollectiveVote& vote_;
  const bool on_host_;
  const LossScaler* const scaler_;  // may be null
};

}  // namespace dtrain::train
