// A trial that uses what stands around the training loop: logged metrics, scopes, collectives, callbacks, early
// stopping. What it does follows from hyperparameters, so that around_the_loop.py knows every number.
#include <dtrain/dtrain.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using dtrain::Json;
using dtrain::Reduction;

// Sample i of all is on rank i % ranks. hyperparameters.batches is each rank's number of batches.
class Samples final : public dtrain::BatchSource {
 public:
  Samples(std::int64_t rank, std::int64_t ranks, std::int64_t batches, std::int64_t size)
      : rank_(rank), ranks_(ranks), batches_(batches), size_(size) {}
  void start_epoch(std::int64_t) override { next_ = 0; }
  std::optional<dtrain::Batch> next() override {
    if (next_ == batches_) return std::nullopt;
    const auto i = (torch::arange(size_, torch::kLong) + next_++ * size_) * ranks_ + rank_;
    const auto x = torch::stack({(i * 37 % 101).to(torch::kDouble) / 101, (i * 53 % 97).to(torch::kDouble) / 97}, 1);
    return dtrain::Batch{{"i", "x"}, {i, x}, size_};
  }
  std::optional<std::int64_t> batches_per_epoch() const override { return batches_; }

 private:
  std::int64_t rank_, ranks_, batches_, size_, next_ = 0;
};

// Writes down each call, and does what hyperparameters.fault says: {"in": "after_batch", "batch": 3, "rank": 1}.
class Journal final : public dtrain::Callback {
 public:
  explicit Journal(dtrain::TrialContext& context)
      : context_(context),
        fault_(context.hyperparameter<Json>("fault", Json::object())),
        file_(context.hyperparameter<std::string>("folder") + "/journal-" + std::to_string(context.rank()),
              std::ios::app) {}

  std::string name() const override { return "journal"; }
  void on_training_start(const Position& at) override { note("on_training_start", at); }
  void before_batch(const Position& at, const dtrain::Batch& batch) override {
    this->at = at;
    note("before_batch", at, std::to_string(batch["i"][0].item<std::int64_t>()));
  }
  void after_batch(const Position& at, const dtrain::Metrics& metrics) override {
    const auto timed = context_.scope("journal");
    note("after_batch", at, metrics.contains("loss") ? "loss" : "nothing");
    context_.log("calls", static_cast<double>(calls_));
  }
  void on_epoch_end(const Position& at) override { note("on_epoch_end", at); }
  void on_validation_end(const Position& at, const std::map<std::string, double>& metrics) override {
    ++validations;
    note("on_validation_end", at, Json(metrics.at("score")).dump());
  }
  void on_checkpoint(const Position& at) override {
    if (fault_.value("in", "") == "on_checkpoint") note("on_checkpoint", at);
  }
  void on_training_end(const Position& at) override { note("on_training_end", at); }
  dtrain::TrialState save_state() override {
    return {{{"drawn", drawn_}}, {{"validations", validations}, {"calls", calls_}}};
  }
  void load_state(const dtrain::TrialState& state) override {
    drawn_.copy_(state.tensors.at("drawn"));
    validations = state.values.at("validations");
    calls_ = state.values.at("calls");
  }

  Position at;
  std::size_t validations = 0;

 private:
  void note(const std::string& what, const Position& at, const std::string& more = "") {
    if (what.ends_with("batch")) {
      ++calls_;
      drawn_ += torch::rand({3});
    }
    file_ << what << " " << at.batch << " " << at.epoch << " " << more << std::endl;
    const bool here = fault_.value("in", "") == what && fault_.value("batch", std::int64_t{0}) == at.batch;
    if (here && fault_.value("rank", 0) == context_.rank()) throw std::runtime_error("no more paper");
  }

  dtrain::TrialContext& context_;
  const Json fault_;
  std::ofstream file_;
  std::int64_t calls_ = 0;
  at::Tensor drawn_ = torch::zeros({3});
};

void require(bool right, const std::string& what) {
  if (!right) throw dtrain::Error(what + " is wrong");
}

// Every operation with every type, against what one process computes.
void try_collectives(dtrain::TrialContext& context) {
  const std::int64_t ranks = context.world_size();
  const auto of_rank = [](std::int64_t rank, at::ScalarType type) {
    return (torch::arange(6).reshape({2, 3}) + 10 * rank).to(type);
  };
  for (const auto type : {at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    std::vector<at::Tensor> all;
    for (std::int64_t rank = 0; rank < ranks; ++rank) all.push_back(of_rank(rank, type));
    const at::Tensor mine = of_rank(context.rank(), type).t().contiguous().t();  // not contiguous
    const at::Tensor before = mine.clone();
    const std::string name = c10::toString(type);
    const at::Tensor stacked = torch::stack(all).to(at::kDouble);
    require(torch::equal(context.all_reduce(mine), stacked.sum(0).to(type)), "the sum of " + name);
    require(torch::equal(context.all_reduce(mine, Reduction::kMax), all.back()), "the maximum of " + name);
    require(torch::equal(context.all_reduce(mine, Reduction::kMin), all.front()), "the minimum of " + name);
    if (at::isFloatingType(type)) {
      require(torch::equal(context.all_reduce(mine, Reduction::kMean), stacked.mean(0).to(type)),
              "the mean of " + name);
    }
    const auto gathered = context.all_gather(mine);
    require(gathered.size() == all.size(), "the number of gathered tensors");
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      require(torch::equal(gathered[rank], all[rank]), "gathered " + name);
    const int root = static_cast<int>(ranks) - 1;
    require(torch::equal(context.broadcast(mine, root), all.back()), "broadcast " + name);
    require(torch::equal(mine, before), "what was given of " + name);
  }
  require(context.all_reduce(torch::tensor(2.0)).item<double>() == 2.0 * static_cast<double>(ranks), "a scalar");
}

class LoopTrial final : public dtrain::Trial {
 public:
  explicit LoopTrial(dtrain::TrialContext& context)
      : context_(context), model_(torch::nn::Linear(2, 1)), journal_(std::make_shared<Journal>(context)) {
    model_->to(torch::kDouble);
    context.wrap_model(model_);
    context.wrap_optimizer(dtrain::Sgd{.lr = 0.1, .momentum = 0.9});
    fault_ = context.hyperparameter<std::string>("mistake", "");
    if (fault_ != "other_callbacks" || context.rank() == 0) context.add_callback(journal_);
    scores_ = context.hyperparameter<std::vector<double>>("scores", {});
    if (context.hyperparameter<bool>("auc", false)) {
      auc_ = std::make_shared<dtrain::Auc>();
      context.add_metric("auc", auc_);
    }
    if (context.hyperparameter<bool>("f1", false)) {
      f1_ = std::make_shared<dtrain::F1>();
      context.add_metric("f1", f1_);
    }
    if (const auto stop = context.hyperparameter<Json>("stop_early", Json()); !stop.is_null()) {
      context.stop_early({.metric = stop.value("metric", ""),
                          .smaller_is_better = stop.value("smaller_is_better", true),
                          .patience = stop.value("patience", std::int64_t{1})});
    }
    terminate_at_ = context.hyperparameter<std::int64_t>("terminate_at", 0);
    logs_ = context.hyperparameter<bool>("logs", false);
    pictures_ = context.hyperparameter<bool>("pictures", false);
    if (pictures_) context.log_histogram("at the start", torch::zeros({3}));
    scopes_ = context.hyperparameter<bool>("scopes", false);
    const auto outside = context.scope("constructor");  // no time: there is no batch
    if (context.hyperparameter<bool>("collectives", false)) try_collectives(context);
  }

  dtrain::Loader training_loader() override {
    const auto batches = context_.hyperparameter<std::vector<std::int64_t>>("batches");
    const auto rank = static_cast<std::size_t>(context_.rank());
    return std::make_shared<Samples>(context_.rank(), context_.world_size(), batches.at(rank % batches.size()),
                                     context_.batch_size());
  }
  // 12 samples on all ranks together.
  dtrain::Loader validation_loader() override {
    const std::int64_t ranks = context_.world_size();
    return std::make_shared<Samples>(context_.rank(), ranks, 12 / ranks / 2, 2);
  }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const std::int64_t number = journal_->at.batch;
    if (terminate_at_ == number && context_.rank() == context_.world_size() - 1) std::raise(SIGTERM);
    if (fault_ == "other_operation" && number == 3) {
      context_.rank() == 0 ? void(context_.all_reduce(torch::ones({3}))) : void(context_.all_gather(torch::ones({3})));
    }
    if (fault_ == "type") context_.all_reduce(torch::ones({2}, torch::kBool));
    if (scopes_) return in_scopes(batch);
    if (fault_ == "scope_name") const auto timed = context_.scope("my scope");
    if (fault_ == "many_scopes") const auto timed = context_.scope("batch-" + std::to_string(number));
    const at::Tensor loss = (model_(batch["x"]) - 1).square().mean();
    context_.backward(loss);
    if (fault_ == "after_backward") context_.all_reduce(torch::ones({2}));
    if (logs_) log(number, batch);
    if (pictures_) log_pictures(number);
    if (fault_ == "killed" && number == 5 && context_.rank() == 0) std::raise(SIGKILL);
    if (fault_ == "picture_shape") context_.log_image("shape", torch::zeros({2, 5, 5}));
    if (fault_ == "picture_type") context_.log_image("type", torch::zeros({5, 5}, torch::kLong));
    if (fault_ == "no_values") context_.log_histogram("empty", torch::zeros({0}));
    if (fault_ == "logs_twice") context_.log("loss", 1.0);
    if (fault_ == "shape" && context_.rank() == 1) return {{"loss", torch::ones({2, 3})}};
    if (fault_ == "logged_shape" && context_.rank() == 1) context_.log("each", torch::ones({3}));
    if (fault_ == "other_reduction") context_.log("x", {1.0, context_.rank() == 0 ? Reduction::kSum : Reduction::kMax});
    return {{"loss", loss}};
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const std::size_t number = journal_->validations;
    if (fault_ == "validation_shape" && context_.rank() == 1) return {{"score", torch::ones({4})}};
    const double score = number < scores_.size() ? scores_[number] : 0.0;
    const auto timed = context_.scope("evaluate");
    const at::Tensor x = batch["x"];
    if (auc_) auc_->add(x.select(1, 0), batch["i"] * batch["i"] % 3 == 0);
    if (fault_ == "rows" && auc_ && context_.rank() == 1) auc_->dtrain::GatheredMetric::add(torch::ones({1, 3}));
    if (f1_) f1_->add_classes(batch["i"] * 37 % 101 % 3, batch["i"] % 3, fault_ == "sums" ? 3 + context_.rank() : 3);
    context_.log("evaluated", {static_cast<double>(batch.samples), Reduction::kSum});
    return {{"score", score}, {"loss", (model_(x) - 1).square().mean()}, {"most", {x.max(), Reduction::kMax}}};
  }

 private:
  // "whole" with "forward" twice and "backward" once in it, and "thrown", which an exception ends.
  dtrain::Metrics in_scopes(const dtrain::Batch& batch) {
    const auto whole = context_.scope("whole");
    at::Tensor loss;
    for (int i = 0; i < 2; ++i) {
      const auto timed = context_.scope("forward");
      loss = (model_(batch["x"]) - 1).square().mean();
    }
    {
      const auto timed = context_.scope("backward");
      context_.backward(loss);
    }
    try {
      const auto timed = context_.scope("thrown");
      throw std::runtime_error("caught");
    } catch (const std::runtime_error&) {
    }
    return {{"loss", loss}};
  }

  at::Tensor counter_ = torch::zeros({}, torch::kFloat64);

  void log(std::int64_t number, const dtrain::Batch& batch) {
    const auto rank = static_cast<double>(context_.rank());
    const auto batch_number = static_cast<double>(number);
    context_.log("mean", rank + 1);
    context_.log("total", {torch::tensor(static_cast<double>(batch.samples)), Reduction::kSum});
    context_.log("largest", {10 * rank + batch_number, Reduction::kMax});
    context_.log("smallest", {10 * rank + batch_number, Reduction::kMin});
    if (context_.rank() == 0 && number % 3 == 0) context_.log("sometimes", batch_number);
    context_.log("counter", counter_.fill_(batch_number));  // the same tensor in each batch
  }

  // What around_the_loop.py knows how to make, too.
  void log_pictures(std::int64_t number) {
    const at::Tensor ramp = torch::arange(24).reshape({4, 6}) * 10 + number;
    context_.log_image("grey", ramp.to(torch::kByte));
    context_.log_image("colours",
                       torch::tensor({0.0, 0.5, 1.0, -1.0, 2.0, std::nan(""), 0.25, 0.75, 0.1, 0.2, 0.3, 0.4})
                           .reshape({3, 2, 2})
                           .to(torch::kFloat));
    context_.log_image("grid", (torch::arange(5 * 6).reshape({5, 1, 2, 3}) * 8).to(torch::kByte));
    const auto rank = static_cast<double>(context_.rank());
    context_.log_histogram("values",
                           torch::tensor({-2.5, 0.0, 1e-3, 4.0 + rank, static_cast<double>(number), std::nan("")}));
  }

  dtrain::TrialContext& context_;
  torch::nn::Linear model_;
  std::shared_ptr<Journal> journal_;
  std::shared_ptr<dtrain::Auc> auc_;
  std::shared_ptr<dtrain::F1> f1_;
  std::vector<double> scores_;
  std::string fault_;
  std::int64_t terminate_at_ = 0;
  bool logs_ = false;
  bool pictures_ = false;
  bool scopes_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<LoopTrial>(argc, argv);
}
