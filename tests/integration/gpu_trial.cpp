// A trial for comparing GPUs with CPUs: gpu_trial_models.h has its models and batches.
// `gpu_trial --cases` (trial_cases.h) also says what the fake GPUs reported, and what they counted in the batches from
// hyperparameters.count_from to hyperparameters.count_to. Runs on GPUs come before those on CPUs: libtorch looks for
// CUDA once.
#include <dlfcn.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/device_graph.h"
#include "device/device_profile.h"
#include "file_batches.h"
#include "gpu_trial_models.h"
#include "harness/fake_gpu.h"
#include "trial_cases.h"
#include "trial_optimizer.h"

namespace {

using dtrain::Json;

// The fake that training has opened; nullptr in a run on CPUs.
dtrain::test::FakeGpus* fake_gpus(at::Device device) {
  if (device.is_cpu()) return nullptr;
  void* const function = ::dlsym(RTLD_DEFAULT, dtrain::test::kFakeGpusFunction);
  if (function == nullptr) throw dtrain::Error("libtorch_cuda.so is not the fake GPUs' library");
  return reinterpret_cast<dtrain::test::FakeGpusFunction*>(function)();
}

Json json_of(const dtrain::test::FakeGpuCounts& counts) {
  return {{"kernels", counts.kernels},
          {"copies_to_device", counts.copies_to_device},
          {"copies_to_host", counts.copies_to_host},
          {"copies_on_device", counts.copies_on_device},
          {"pageable_copies", counts.pageable_copies},
          {"scalar_reads", counts.scalar_reads},
          {"host_syncs", counts.host_syncs},
          {"allocations", counts.allocations},
          {"nccl_operations", counts.nccl_operations},
          {"graph_launches", counts.graph_launches}};
}

Json last_counts;  // of the run that has ended last

// hyperparameters.fault: {"kind": "kill", "rank": 1, "batch": 7}; with "at": the n-th allocation, operation or kernel
// from then on; with "once": a file that the fault makes, and that keeps it from happening again. Batches are counted
// from the start of the process.
class Fault {
 public:
  Fault(const Json& wanted, int rank, dtrain::test::FakeGpus* gpus) : wanted_(wanted), rank_(rank), gpus_(gpus) {}
  void before(std::int64_t batch) const {
    if (wanted_.empty() || wanted_.at("rank") != rank_ || wanted_.at("batch") != batch) return;
    if (const std::string once = wanted_.value("once", ""); !once.empty()) {
      if (std::ifstream(once).good()) return;
      std::ofstream(once) << "done";
    }
    const auto kind = wanted_.at("kind").get<std::string>();
    if (kind == "kill") ::raise(SIGKILL);
    if (kind == "stop") ::raise(SIGSTOP);
    if (kind == "terminate") ::raise(SIGTERM);
    if (gpus_ == nullptr) return;
    const int at = wanted_.value("at", 1);
    if (kind == "allocation") gpus_->fail_allocation(at);
    if (kind == "lost") gpus_->lose_device(at);
    if (kind == "nccl_error") gpus_->fail_nccl(at);
    if (kind == "nccl_hang") gpus_->hang_nccl(at);
  }

 private:
  const Json wanted_;
  const int rank_;
  dtrain::test::FakeGpus* const gpus_;
};

class GpuTrial : public dtrain::Trial {
 public:
  explicit GpuTrial(dtrain::TrialContext& context)
      : context_(context),
        floats_(context.hyperparameter<std::string>("dtype", "float32") == "float64" ? at::kDouble : at::kFloat),
        model_(context.wrap_model(dtrain::test::make_gpu_model(context.hyperparameter<std::string>("model"), floats_,
                                                               context.hyperparameter<bool>("sparse", false)))),
        gpus_(fake_gpus(context.device())),
        fault_(context.hyperparameter<Json>("fault", Json::object()), context.rank(), gpus_),
        own_state_(context.hyperparameter<bool>("own_state", false)),
        draws_(context.hyperparameter<bool>("draws", false)),
        host_(context.hyperparameter<std::string>("host", "metric")),
        host_rank_(context.hyperparameter<int>("host_rank", -1)),
        count_from_(context.hyperparameter<std::int64_t>("count_from", 0)),
        count_to_(context.hyperparameter<std::int64_t>("count_to", 0)) {
    // hyperparameters.checkpointed: the type of device on which the model's blocks are computed again in backward.
    const auto checkpointed = context.hyperparameter<std::string>("checkpointed", "");
    model_->checkpointed = checkpointed == c10::DeviceTypeName(context.device().type(), /*lower_case=*/true);
    context.wrap_optimizer(dtrain::test::make_optimizer(context.hyperparameter<Json>("optimizer")));
    if (const double norm = context.hyperparameter<double>("clip", 0.0); norm > 0) context.clip_gradient_norm(norm);
    if (const auto steps = context.hyperparameter<std::int64_t>("halve_rate_after", 0); steps > 0) {
      context.wrap_lr_scheduler(dtrain::lr::step(steps, 0.5));
    }
    if (const auto scaling = context.hyperparameter<Json>("loss_scaling", Json::object()); !scaling.empty()) {
      context.scale_loss({scaling.at("initial_scale"), scaling.at("growth_interval")});
    }
    const int queries = context.hyperparameter<int>("delay_queries", 0);
    if (gpus_ != nullptr) {
      gpus_->heal();  // of what the run before was to suffer
      gpus_->delay_queries(queries);
      dtrain::train::release_unused_memory(context.device());  // of the run before
    }
    last_counts = Json();
    if (draws_) noise_ = at::zeros({}, at::TensorOptions().device(context.device()).dtype(floats_));
  }

  // data.file: batches that Python has written; else hyperparameters.batches: of each rank, in an epoch.
  dtrain::Loader training_loader() override {
    if (const auto file = context_.data().value("file", std::string()); !file.empty()) {
      return std::make_shared<dtrain::test::FileBatches>(context_.resolve(file),
                                                         std::vector<std::string>{"x", "y", "weight", "spike"},
                                                         context_.rank(), context_.world_size());
    }
    const auto batches = context_.hyperparameter<std::vector<std::int64_t>>("batches");
    return drawing(loader(1, batches.at(static_cast<std::size_t>(context_.rank()))));
  }
  dtrain::Loader validation_loader() override { return drawing(loader(2, 3)); }

  void before_batch(const dtrain::Batch&) override {
    fault_.before(++batch_);
    if (draws_) noise_.uniform_();
    if (gpus_ != nullptr && batch_ == count_from_) gpus_->take_counts();
    if (gpus_ == nullptr || batch_ != count_to_) return;
    last_counts = json_of(gpus_->take_counts());
    add_memory(last_counts);
  }

  // hyperparameters.host: what a CUDA graph would not repeat: "metric" (a number of the host), "item" (a wait
  // for the GPU), "buffer" (it is replaced), "random" (drawn on the host); "memory": there is none during a capture;
  // "nothing". hyperparameters.host_rank: on this rank alone, the others have "nothing".
  dtrain::Metrics train_batch(const dtrain::Batch& batch) override {
    const std::string host = host_rank_ < 0 || host_rank_ == context_.rank() ? host_ : "nothing";
    if (host == "memory" && dtrain::train::capturing_graph) gpus_->fail_allocation(1);
    auto loss = model_->loss(batch);
    if (draws_) loss = loss * (1 + 0.1 * noise_);
    if (own_state_) {
      if (!average_.defined()) average_ = at::zeros({2}, loss.options().requires_grad(false));
      loss = loss * (1 + 0.1 * average_[0]);
      average_.mul_(0.9).add_(loss.detach(), 0.1);
    }
    context_.backward(loss);
    if (host == "item" && std::isnan(loss.item<double>())) throw dtrain::Error("the loss is not a number");
    if (host == "buffer") model_->buffers().at(0).set_data(model_->buffers().at(0).clone());
    if (host == "random") torch::rand(1);
    if (host != "metric") return {{"loss", loss}};
    return {{"loss", loss}, {"samples", static_cast<double>(batch.samples)}};
  }
  // hyperparameters.own_state: a mean of losses, each rank's own, which later losses depend on.
  dtrain::TrialState save_state() override {
    if (!average_.defined()) return {};
    return {{{"average", average_}}, {{"rank", context_.rank()}}};
  }
  void load_state(const dtrain::TrialState& state) override {
    if (state.tensors.empty()) return;
    if (state.values.at("rank") != context_.rank()) throw dtrain::Error("this is another rank's state");
    average_ = state.tensors.at("average").to(context_.device());
  }

  dtrain::Metrics evaluate_batch(const dtrain::Batch& batch) override {
    const auto loss = model_->loss(batch);
    return {{"loss", draws_ ? loss + torch::rand_like(loss) : loss}};
  }

 private:
  // Of libtorch on this GPU: what tensors have, and what it keeps for them.
  void add_memory(Json& counts) const {
    const auto reading = dtrain::train::device_memory(context_.device())->take();
    counts["allocated_bytes"] = reading.allocated;
    counts["reserved_bytes"] = reading.reserved;
  }
  // hyperparameters.draws: random numbers of libtorch are in the data, in the loss and in the validation.
  dtrain::Loader drawing(dtrain::Loader source) const {
    return draws_ ? std::make_shared<dtrain::test::DrawingBatches>(std::move(source)) : source;
  }
  dtrain::Loader loader(std::uint64_t seed, std::int64_t batches) const {
    return std::make_shared<dtrain::test::GeneratedBatches>(
        model_, dtrain::test::GeneratedBatches::Options{.seed = seed,
                                                        .rank = context_.rank(),
                                                        .batches = batches,
                                                        .samples = context_.batch_size(),
                                                        .floats = floats_});
  }

  dtrain::TrialContext& context_;
  const at::ScalarType floats_;
  const std::shared_ptr<dtrain::test::GpuModel> model_;
  dtrain::test::FakeGpus* const gpus_;
  const Fault fault_;
  const bool own_state_, draws_;
  const std::string host_;
  const int host_rank_;
  at::Tensor average_, noise_;
  const std::int64_t count_from_, count_to_;  // batches of this rank, from 1
  std::int64_t batch_ = 0;
};

// What the fake GPUs of the run that has ended reported and counted.
Json outcome() {
  Json reports = Json::array();
  if (void* const function = ::dlsym(RTLD_DEFAULT, dtrain::test::kFakeGpusFunction)) {
    reports = reinterpret_cast<dtrain::test::FakeGpusFunction*>(function)()->take_reports();
  }
  return {{"reports", reports}, {"counts", std::exchange(last_counts, Json())}};
}

}  // namespace

int main(int argc, char** argv) {
  return dtrain::test::run_trial_or_cases<GpuTrial>(argc, argv, outcome);
}
