// Lets a benchmark run a trial a few steps at a time, so that several contestants take turns on the same cores.
//
// Protocol, over two FIFOs a rank: the benchmark writes "N\n" or "MODE N\n", the trial makes N steps and answers one
// line with N step times in nanoseconds; "0\n" (or the end of the FIFO) ends the training.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/train/loader.h"

namespace dtrain::bench {

// A source of batches that waits for its turn before each block of steps. A step's time is from one call of next() to
// the following one: everything a training step does.
class SteppedSource final : public BatchSource {
 public:
  // `commands`, `replies`: paths of the FIFOs. `set_mode` is called when a command names a mode.
  SteppedSource(Loader inner, const std::string& commands, const std::string& replies,
                std::function<void(const std::string&)> set_mode = {});
  ~SteppedSource() override;

  void start_epoch(std::int64_t epoch) override { inner_->start_epoch(epoch); }
  std::optional<Batch> next() override;
  std::int32_t queue_depth() const override { return inner_->queue_depth(); }
  std::int32_t workers() const override { return inner_->workers(); }

 private:
  void wait_for_turn();

  Loader inner_;
  std::function<void(const std::string&)> set_mode_;
  std::FILE* commands_;
  std::FILE* replies_;
  std::int64_t left_ = 0;
  std::int64_t started_ns_ = -1;
  std::vector<std::int64_t> times_;
  bool over_ = false;
  std::int64_t epoch_ = 0;
};

}  // namespace dtrain::bench
