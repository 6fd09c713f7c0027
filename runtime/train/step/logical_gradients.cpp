#include "step/logical_gradients.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "compression/bucket_compressor.h"
#include "dtrain/base/error.h"
#include "exchange/gradient_tree.h"
#include "exchange/logical_peers.h"

namespace dtrain::train {
namespace {

using Tensors = std::vector<at::Tensor>;  // of each group

Tensors gradients_of_groups(const FlatParameters& parameters) {
  Tensors gradients;
  for (const auto& group : parameters.groups()) gradients.push_back(group.gradients);
  return gradients;
}

Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros;
  for (const at::Tensor& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

void copy(const Tensors& from, Tensors& to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

// Adds the gradients of a round to the sums of a window.
void add_round(const AggregationWindow& window, const Tensors& round, Tensors& sums) {
  if (window.rounds() == 1) return copy(round, sums);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i].add_(round[i]);
}

void visit_window_sums(const FlatParameters& parameters, const Tensors& sums, StateVisitor& visitor) {
  if (sums.empty()) return;
  for (const auto& parameter : parameters.parameters()) {
    visitor.tensor("sums/" + parameter.name, sums[parameter.group].narrow(0, parameter.offset, parameter.padded));
  }
}

// The factor of the sum over all logical ranks and rounds.
double factor_of_sum(const LogicalGradientParts& parts) {
  const double batches = parts.window.average() ? parts.window.rounds() : 1;
  return 1 / (batches * parts.ranks.size);
}

// As a strategy it exchanges the gradients of the last logical rank of this rank, and updates nothing.
class PlainGradients final : public LogicalGradients, private GradientStrategy {
 public:
  explicit PlainGradients(const LogicalGradientParts& parts)
      : parts_(parts),
        gradients_(gradients_of_groups(parts.parameters)),
        exchange_(parts.run.communicator, parts.run.recorder, parts.ranks) {
    if (parts.window.length() > 1) sums_ = zeros_like(gradients_);
    set_plan(parts.plan);
  }

  void add(int logical_rank) override { tree_->add(logical_rank); }
  void end_round() override {
    const at::NoGradGuard no_grad;
    if (!overlaps()) tree_->finish();
    if (!sums_.empty()) add_round(parts_.window, gradients_, sums_);
  }
  GradientStrategy* in_backward() override { return overlaps() ? this : nullptr; }
  void set_plan(const comm::FusionPlan& plan) override {
    Tensors buckets;
    for (const auto& bucket : plan.buckets) {
      buckets.push_back(gradients_[bucket.group].narrow(0, bucket.begin, bucket.end - bucket.begin));
    }
    tree_.emplace(exchange_, std::move(buckets));
  }
  double finish(std::span<const std::uint8_t> /*used*/) override {
    const at::NoGradGuard no_grad;
    copy(sums_, gradients_);
    return factor_of_sum(parts_);
  }
  void visit(StateVisitor& visitor) override { visit_window_sums(parts_.parameters, sums_, visitor); }
  void visit_logical_rank(std::size_t /*index*/, StateVisitor& /*visitor*/) override {}
  void report() override {}

 private:
  std::string_view operation() const override { return "all_reduce"; }
  comm::Work launch(std::size_t bucket) override { return tree_->add_last(parts_.ranks.end - 1, bucket); }
  std::optional<at::Tensor> update(const Update& /*update*/) override {
    throw Error("the sums of logical ranks are updated by another strategy");
  }
  // Parts that are no all-reduce are exchanged behind backward, through memory that all buckets share.
  bool overlaps() const { return exchange_.is_all_reduce() && parts_.run.world.size > 1; }

  const LogicalGradientParts parts_;
  Tensors gradients_;
  TreeExchange exchange_;
  std::optional<GradientTree> tree_;
  Tensors sums_;  // of the window's rounds; empty: windows have one round
};

class CompressedGradients final : public LogicalGradients {
 public:
  CompressedGradients(const LogicalGradientParts& parts, const CompressorOptions& options)
      : parts_(parts),
        gradients_(gradients_of_groups(parts.parameters)),
        exchange_(parts.run.communicator, parts.run.recorder, parts.ranks),
        codec_(compression_options(options).codec),
        peers_(parts.run.communicator, exchange_, codec_.gathers),
        report_(options.name, options.key) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(parts.ranks.count()); ++i) {
      compressors_.push_back(std::make_unique<comm::GradientCompressor>(
          compression_options(options), gradient_tensors(parts.parameters, gradients_), peers_.peer(i)));
      if (parts.window.length() > 1) sums_.push_back(zeros_like(gradients_));
    }
  }

  void add(int logical_rank) override {
    const at::NoGradGuard no_grad;
    const auto index = static_cast<std::size_t>(logical_rank - parts_.ranks.begin);
    sums_.empty() ? begin_exchange(index) : add_round(parts_.window, gradients_, sums_[index]);
  }
  void end_round() override {}

  double finish(std::span<const std::uint8_t> used) override {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      copy(sums_[i], gradients_);
      begin_exchange(i);
    }
    const Nanoseconds began = parts_.run.clock.monotonic();
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < compressors_.size(); ++i) more |= compressors_[i]->advance(/*writes=*/i == 0);
    }
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) give_back(i);
    }
    exposed_ += parts_.run.clock.monotonic() - began;
    end_step();
    return 1;  // the exchange has applied the factor
  }

  void visit(StateVisitor& /*visitor*/) override {}
  void visit_logical_rank(std::size_t index, StateVisitor& visitor) override {
    if (parts_.window.rounds() > 0 && !sums_.empty()) visit_window_sums(parts_.parameters, sums_[index], visitor);
    auto state = compressors_[index]->save_state();
    for (auto& entry : state) visitor.reals("compression/" + entry.name, entry.values);
    if (visitor.replaces()) compressors_[index]->load_state(state);
  }

  void report() override {
    comm::CompressionStatistics all = compressors_.front()->statistics();
    const auto steps = static_cast<double>(all.compressed_steps);
    all.sent_bytes = sent_bytes_;
    all.uncompressed_bytes = all.plain_bytes = 0;
    for (const at::Tensor& group : gradients_) {
      const double bytes = steps * exchange_.cost(TreeExchange::Parts::kSubtrees, group.nbytes());
      all.uncompressed_bytes += bytes;
      if (group.scalar_type() == at::kDouble) all.plain_bytes += bytes;
    }
    for (std::size_t i = 1; i < compressors_.size(); ++i) {
      const comm::CompressionStatistics& one = compressors_[i]->statistics();
      all.coding += one.coding;
      all.saturated += one.saturated;
      all.underflowed += one.underflowed;
    }
    report_.write(all, codec_.word, parts_.run);
  }

 private:
  void begin_exchange(std::size_t index) {
    const Nanoseconds began = parts_.run.clock.monotonic();
    for (std::size_t b = 0; b < parts_.plan.buckets.size(); ++b) {
      compressors_[index]->exchange(gradient_bucket(parts_.plan, b, gradients_), factor_of_sum(parts_));
    }
    exposed_ += parts_.run.clock.monotonic() - began;
  }

  // A gradient that no logical rank used is not applied, but the error feedback that it held has been sent.
  void give_back(std::size_t parameter) {
    const auto& facts = parts_.parameters.parameters()[parameter];
    at::Tensor gradient = gradients_[facts.group].narrow(0, facts.offset, facts.padded);
    const at::Tensor result = gradient.clone();
    for (const auto& compressor : compressors_) {
      gradient.copy_(result);
      compressor->not_applied(parameter);  // may clear the gradient
    }
  }

  void end_step() {
    const bool compressed = compressors_.front()->compressing();
    for (const auto& compressor : compressors_) compressor->end_step();
    const double sent = peers_.end_step();
    if (compressed) sent_bytes_ += sent;
    report_.add(compressed, std::exchange(exposed_, Nanoseconds{0}));
  }

  const LogicalGradientParts parts_;
  Tensors gradients_;
  TreeExchange exchange_;
  const comm::CodecMaker codec_;
  LogicalPeers peers_;
  std::vector<std::unique_ptr<comm::GradientCompressor>> compressors_;  // of each logical rank of this rank
  std::vector<Tensors> sums_;  // of the window's rounds, likewise; empty: windows have one round
  CompressionReport report_;
  double sent_bytes_ = 0;   // in compressed steps
  Nanoseconds exposed_{0};  // in this step
};

}  // namespace

std::unique_ptr<LogicalGradients> make_logical_gradients(const LogicalGradientParts& parts,
                                                         const StrategyOptions& options) {
  if (std::holds_alternative<comm::NoCompression>(options.compression)) return std::make_unique<PlainGradients>(parts);
  return std::make_unique<CompressedGradients>(parts,
                                               for_gradients(options.compression, options.seed, parts.settled_steps));
}

}  // namespace dtrain::train
