// The trial of planted_faults.py: a multilayer perceptron on generated data which does, on one rank, what
// `hyperparameters.fault` says, and keeps account of it.
//
//   stall    sleeps `amount` ms in each `period`-th batch, in train_batch()
//   loader   the loader's worker sleeps `amount` ms for each batch it reads
//   shard    this rank has `amount` samples more in a batch than the others, of as many in all
//   leak     keeps `amount` bytes more with each batch, in pages of its own: what is kept in a heap splits it up, and
//            then the process grows by more than that
//   none     nothing: faults from outside, and healthy runs
//
// `block`: loader and shard are at work in every other block of so many batches, after `lead` batches without them;
// what a block with them takes longer than those around it is what they cost.
//
// When it ends each rank writes data.record/planted-RANK.json: `begin_ns`, the monotonic times at which its batches
// began (and the last one ended); `faulty`, for each of them whether the fault was at work; `slept_ns` and `kept_bytes`
// in all.
#include <dtrain/dtrain.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include <dtrain/data/data_sets.h>
#include <sys/mman.h>

#include "dtrain/base/clock.h"

namespace {

struct Fault {
  explicit Fault(dtrain::TrialContext& context)
      : kind(context.hyperparameter<std::string>("fault")),
        amount(context.hyperparameter<std::int64_t>("amount", 0)),
        period(context.hyperparameter<std::int64_t>("period", 1)),
        lead(context.hyperparameter<std::int64_t>("lead", 0)),
        block(context.hyperparameter<std::int64_t>("block", 1)),
        here(context.rank() == context.hyperparameter<int>("rank", 1)) {}

  // Of batches, which count from 1.
  bool at_work(std::int64_t batch) const { return batch > lead && (batch - lead - 1) / block % 2 == 0; }

  std::string kind;
  std::int64_t amount, period, lead, block;
  bool here;  // on this rank
};

std::int64_t now_ns() {
  return dtrain::SystemClock().monotonic().count();
}

void sleep_ms(std::int64_t ms, std::atomic<std::int64_t>& slept_ns) {
  const std::int64_t begin = now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  slept_ns += now_ns() - begin;
}

class SlowDataset final : public dtrain::data::Dataset {
 public:
  SlowDataset(std::shared_ptr<dtrain::data::Dataset> inner, const Fault& fault, std::atomic<std::int64_t>& slept_ns)
      : inner_(std::move(inner)), fault_(fault), slept_ns_(slept_ns) {}
  std::int64_t size() const override { return inner_->size(); }
  const std::vector<dtrain::data::Field>& fields() const override { return inner_->fields(); }
  // Once a batch, in their order.
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    inner_->read(samples, outputs);
    if (fault_.at_work(++batches_)) sleep_ms(fault_.amount, slept_ns_);
  }

 private:
  std::shared_ptr<dtrain::data::Dataset> inner_;
  const Fault& fault_;
  std::atomic<std::int64_t>& slept_ns_;
  mutable std::atomic<std::int64_t> batches_{0};
};

// Notes when batches begin, and gives the rank its part of them: the inner loader's are as large as any rank's can be.
class PlantedSource final : public dtrain::BatchSource {
 public:
  PlantedSource(dtrain::Loader inner, const Fault& fault, std::int64_t samples)
      : inner_(std::move(inner)), fault_(fault), samples_(samples) {}

  void start_epoch(std::int64_t epoch) override { inner_->start_epoch(epoch); }
  std::optional<dtrain::Batch> next() override {
    const std::int64_t now = now_ns();
    auto batch = inner_->next();
    if (!batch) return batch;
    begin_ns.push_back(now);
    if (fault_.kind != "shard") return batch;
    const bool uneven = fault_.at_work(static_cast<std::int64_t>(begin_ns.size()));
    batch->samples = samples_ + (uneven ? (fault_.here ? fault_.amount : -fault_.amount) : 0);
    for (at::Tensor& tensor : batch->tensors) tensor = tensor.narrow(0, 0, batch->samples);
    return batch;
  }
  std::optional<std::int64_t> batches_per_epoch() const override { return inner_->batches_per_epoch(); }
  std::optional<std::int64_t> samples_per_epoch() const override { return inner_->samples_per_epoch(); }
  std::int32_t queue_depth() const override { return inner_->queue_depth(); }
  std::int32_t workers() const override { return inner_->workers(); }

  std::vector<std::int64_t> begin_ns;

 private:
  dtrain::Loader inner_;
  const Fault& fault_;
  std::int64_t samples_;
};

class PlantedTrial final : public dtrain::Trial {
 public:
  explicit PlantedTrial(dtrain::TrialContext& context) : context_(context), fault_(context) {
    task_ = {.samples = 20'000, .features = context.hyperparameter<std::int64_t>("features"), .seed = 1};
    const auto width = context.hyperparameter<std::int64_t>("width");
    torch::nn::Sequential layers;
    std::int64_t inputs = task_.features;
    for (std::int64_t layer = context.hyperparameter<std::int64_t>("depth"); layer > 1; --layer, inputs = width) {
      layers->push_back(torch::nn::Linear(inputs, width));
      layers->push_back(torch::nn::ReLU());
    }
    layers->push_back(torch::nn::Linear(inputs, task_.classes));
    model_ = context.wrap_model(layers);
    context.wrap_optimizer(dtrain::Sgd{.lr = 0.01, .momentum = 0.9});
  }

  ~PlantedTrial() override {
    if (!source_) return;
    std::vector<bool> faulty;
    for (std::size_t i = 0; i < source_->begin_ns.size(); ++i) {
      faulty.push_back(fault_.at_work(static_cast<std::int64_t>(i) + 1));
    }
    source_->begin_ns.push_back(ended_ns_);
    const auto folder = context_.resolve(context_.data().at("record").get<std::string>());
    std::ofstream(folder / ("planted-" + std::to_string(context_.rank()) + ".json"))
        << dtrain::Json{{"begin_ns", source_->begin_ns},
                        {"faulty", faulty},
                        {"slept_ns", slept_ns_.load()},
                        {"kept_bytes", kept_bytes_}}
               .dump()
        << '\n';
  }

  dtrain::Loader training_loader() override {
    std::shared_ptr<dtrain::data::Dataset> data = dtrain::data::make_synthetic(task_, context_.host_share());
    if (fault_.kind == "loader" && fault_.here) data = std::make_shared<SlowDataset>(data, fault_, slept_ns_);
    // Not the context's: a rank's batches are to be larger than its fair part.
    const bool uneven = fault_.kind == "shard";
    dtrain::Loader loader =
        dtrain::make_loader(data, {.batch_size = context_.batch_size() + (uneven ? fault_.amount : 0),
                                   .rank = context_.rank(),
                                   .world_size = context_.world_size()});
    source_ = std::make_shared<PlantedSource>(loader, fault_, context_.batch_size());
    return source_;
  }
  dtrain::Loader validation_loader() override { return nullptr; }

  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    ++batches_;
    if (fault_.here && fault_.kind == "stall" && batches_ % fault_.period == 0) sleep_ms(fault_.amount, slept_ns_);
    if (fault_.here && fault_.kind == "leak") {
      keep(static_cast<std::size_t>(fault_.amount));
    }
    const auto loss = torch::nn::functional::cross_entropy(model_->forward(batch["features"]), batch["label"]);
    context_.backward(loss);
    ended_ns_ = now_ns();
    return {{"loss", loss}};
  }
  dtrain::Metrics evaluate_batch(const dtrain::Batch&) override { return {}; }

 private:
  // Until the process ends.
  void keep(std::size_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw dtrain::SystemError("cannot keep memory", errno);
    std::memset(memory, 1, bytes);
    kept_bytes_ += static_cast<std::int64_t>(bytes);
  }

  dtrain::TrialContext& context_;
  Fault fault_;
  dtrain::data::SyntheticOptions task_;
  torch::nn::Sequential model_;
  std::shared_ptr<PlantedSource> source_;
  std::int64_t batches_ = 0, ended_ns_ = 0;
  std::atomic<std::int64_t> slept_ns_{0};
  std::int64_t kept_bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  return dtrain::run_trial<PlantedTrial>(argc, argv);
}
