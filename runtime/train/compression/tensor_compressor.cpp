#include "compression/tensor_compressor.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>

#include "device/training_device.h"
#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

// An exchange without compression. The scale is applied after the sum, as on a CPU: NCCL would round before the sum.
class PlainTensors final : public TensorExchange {
 public:
  PlainTensors(comm::Communicator& communicator, TensorBucket bucket, double scale)
      : communicator_(communicator), bucket_(std::move(bucket)), scale_(scale) {}
  comm::Work next() override {
    if (std::exchange(sent_, true)) {
      bucket_.values.mul_(scale_);
      return {};
    }
    return communicator_.all_reduce(bucket_.values.data_ptr(), static_cast<std::size_t>(bucket_.values.numel()),
                                    comm_type(bucket_.values.scalar_type()), {.bucket = bucket_.number});
  }

 private:
  comm::Communicator& communicator_;
  const TensorBucket bucket_;
  const double scale_;
  bool sent_ = false;
};

TensorCodecContext context_of(const FlatParameters& parameters, std::vector<at::Tensor> flats,
                              comm::Communicator& communicator, std::uint64_t seed) {
  const auto tensors = gradient_tensors(parameters, flats);
  const at::Device device = parameters.memory().device();
  const auto count = at::TensorOptions().dtype(at::kLong).device(device);
  TensorCodecContext context{std::move(flats), {}, communicator, seed, at::zeros({}, count), at::zeros({}, count)};
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    context.places.push_back({all[i].name, all[i].group, all[i].offset, all[i].gradient.numel(),
                              static_cast<std::int64_t>(tensors[i].rows),
                              static_cast<std::int64_t>(tensors[i].columns)});
  }
  return context;
}

}  // namespace

class TensorCompressor::OneWork final : public comm::WorkState {
 public:
  // `counted`: the step is compressed, so its bytes count.
  OneWork(TensorCompressor& compressor, std::unique_ptr<TensorExchange> exchange, bool counted, bool gathers)
      : compressor_(compressor), exchange_(std::move(exchange)), counted_(counted), gathers_(gathers) {
    step();
    first_ = operation_;
  }

  // Runs one stage: the compute stream waits for the operation, and the next operation is launched.
  void advance() {
    if (done_) return;
    operation_.join();
    step();
  }
  bool done() const { return done_; }

  bool test() override { return done_ && first_.test(); }
  void wait() override {
    join();
    first_.wait();
  }
  void join() override {
    while (!done_) compressor_.advance_all();
  }
  comm::WorkTiming timing() const override { return first_.timing(); }
  std::size_t bytes() const override { return bytes_; }
  std::uint64_t sequence() const override { return first_.sequence(); }
  std::vector<comm::MissingRank> missing() const override { return first_.missing(); }

 private:
  void step() {
    operation_ = exchange_->next();
    done_ = !operation_;
    if (done_) {
      exchange_.reset();
      return;
    }
    bytes_ += operation_.bytes();
    if (counted_) {
      compressor_.statistics_.sent_bytes += compressor_.sent(static_cast<double>(operation_.bytes()), gathers_);
    }
  }

  TensorCompressor& compressor_;
  std::unique_ptr<TensorExchange> exchange_;
  const bool counted_, gathers_;
  comm::Work first_, operation_;
  std::size_t bytes_ = 0;
  bool done_ = false;
};

TensorCompressor::TensorCompressor(const FlatParameters& parameters, std::vector<at::Tensor> flats,
                                   comm::Communicator& communicator, const CompressorOptions& options)
    : options_(compression_options(options)),
      undoes_steps_(options.undoes_steps),
      context_(context_of(parameters, std::move(flats), communicator, options.seed)),
      times_(parameters.memory().device()),
      report_(options.name, options.key) {
  const at::NoGradGuard no_grad;
  codec_ = make_tensor_codec(context_, options.compression);  // also checks the settings
  if (communicator.world_size() == 1) codec_.reset();
}

TensorCompressor::~TensorCompressor() = default;

bool TensorCompressor::compared() const {
  const std::int64_t since = steps_ - options_.first_compared;
  return codec_ && since >= 0 && since < 2 * options_.compared_steps;
}

bool TensorCompressor::compressing() const {
  if (!codec_ || steps_ < options_.codec.warmup_steps) return false;
  return !compared() || (steps_ - options_.first_compared) % 2 == 1;
}

std::string_view TensorCompressor::operation() const {
  return options_.codec.gathers && compressing() ? "all_gather" : "all_reduce";
}

double TensorCompressor::sent(double bytes, bool gathered) const {
  const auto n = static_cast<double>(context_.world());
  return bytes * (gathered ? 1 : 2) * (n - 1) / n;
}

TensorBucket TensorCompressor::bucket_of(const comm::FusionPlan& plan, std::size_t index) const {
  const auto& planned = plan.buckets[index];
  TensorBucket bucket;
  bucket.tensors.assign(planned.items.begin(), planned.items.end());
  std::sort(bucket.tensors.begin(), bucket.tensors.end(),
            [this](std::size_t a, std::size_t b) { return context_.places[a].begin < context_.places[b].begin; });
  bucket.group = planned.group;
  bucket.begin = planned.begin;
  bucket.values = context_.flats[planned.group].narrow(0, planned.begin, planned.end - planned.begin);
  bucket.number = static_cast<int>(index);
  return bucket;
}

comm::Work TensorCompressor::exchange(const comm::FusionPlan& plan, std::size_t index, double scale) {
  const at::NoGradGuard no_grad;
  const ExposedTimes::Stretch stretch(times_, compared());
  TensorBucket bucket = bucket_of(plan, index);
  const bool counted = compressing();
  const bool compressed = counted && context_.holds_float32(bucket.group);
  if (compressed && undoes_steps_) keep_state();
  if (counted) {
    const double bytes = sent(static_cast<double>(bucket.values.nbytes()), /*gathered=*/false);
    statistics_.uncompressed_bytes += bytes;
    if (!compressed) statistics_.plain_bytes += bytes;
  }
  std::unique_ptr<TensorExchange> exchange = compressed ? codec_->begin(bucket, scale) : nullptr;
  const bool gathers = exchange && options_.codec.gathers;
  if (!exchange) exchange = std::make_unique<PlainTensors>(context_.communicator, std::move(bucket), scale);
  under_way_.push_back(std::make_shared<OneWork>(*this, std::move(exchange), counted, gathers));
  return comm::Work(under_way_.back());
}

void TensorCompressor::advance_all() {
  const at::NoGradGuard no_grad;
  const ExposedTimes::Stretch stretch(times_, compared());
  // Exchanges advance by one stage each, in the order of their begin, which is the same on every rank.
  for (const auto& work : under_way_) work->advance();
  std::erase_if(under_way_, [](const auto& work) { return work->done(); });
}

void TensorCompressor::not_applied(std::size_t parameter) {
  const at::NoGradGuard no_grad;
  if (compressing()) codec_->not_applied(parameter);
}

void TensorCompressor::end_step() {
  if (compared()) times_.end_step(compressing());
  if (compressing()) ++statistics_.compressed_steps;
  ++statistics_.steps;
  ++steps_;
  under_way_.clear();
}

void TensorCompressor::keep_state() {
  if (std::exchange(keeps_state_, true)) return;
  const std::vector<at::Tensor> now = codec_->state_memory();
  if (state_before_.empty()) {
    for (const at::Tensor& memory : now) state_before_.push_back(at::empty_like(memory));
  }
  for (std::size_t i = 0; i < now.size(); ++i) state_before_[i].copy_(now[i]);
}

void TensorCompressor::undo_step_where(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  if (!std::exchange(keeps_state_, false)) return;
  const at::Tensor undo = found_inf.to(at::kBool);
  std::vector<at::Tensor> now = codec_->state_memory();
  for (std::size_t i = 0; i < now.size(); ++i) at::where_out(now[i], undo, state_before_[i], now[i]);
}

void TensorCompressor::forget_times() {
  times_.forget();
  report_.forget();
}

comm::CompressionStatistics TensorCompressor::statistics() const {
  comm::CompressionStatistics statistics = statistics_;
  statistics.saturated = context_.saturated.item<std::int64_t>();
  statistics.underflowed = context_.underflowed.item<std::int64_t>();
  return statistics;
}

void TensorCompressor::report(const RunServices& run) {
  for (const auto& step : times_.take()) report_.add(step.compressed, step.exposed);
  report_.write(statistics(), options_.codec.word, run);
}

void TensorCompressor::visit(StateVisitor& visitor) {
  // The number of steps is stored in two halves, which float holds exactly.
  const auto number = static_cast<std::uint64_t>(steps_);
  std::vector<float> steps{static_cast<float>(number >> 24), static_cast<float>(number & 0xffffff)};
  visitor.reals("steps", steps);
  if (visitor.replaces()) {
    if (steps.size() != 2) {
      throw CommError("the compression state has " + std::to_string(steps.size()) + " values of 'steps', not 2",
                      "restore it into the model and with the compression it was saved with");
    }
    steps_ = (static_cast<std::int64_t>(steps[0]) << 24) + static_cast<std::int64_t>(steps[1]);
  }
  if (!codec_) return;
  for (const auto& [name, values] : codec_->state()) visitor.tensor(name, values);
}

c10::Event ExposedTimes::event_now() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(current_stream(device_));
  return event;
}

ExposedTimes::Stretch::Stretch(ExposedTimes& times, bool count) : times_(times), count_(count) {
  if (!count_) return;
  if (times_.device_.is_cpu()) {
    began_ = times_.clock_.monotonic();
  } else {
    times_.began_.emplace(times_.event_now());
  }
}

ExposedTimes::Stretch::~Stretch() {
  if (!count_) return;
  if (times_.device_.is_cpu()) {
    times_.exposed_ += times_.clock_.monotonic() - began_;
    return;
  }
  try {
    times_.events_.emplace_back(std::move(*times_.began_), times_.event_now());
  } catch (const std::exception&) {  // a device that has failed: waits for it report the error
  }
}

void ExposedTimes::end_step(bool compressed) {
  steps_.push_back({{compressed, std::exchange(exposed_, Nanoseconds{0})}, std::exchange(events_, {})});
}

std::vector<ExposedTimes::Step> ExposedTimes::take() {
  std::vector<Step> steps;
  for (Counted& counted : steps_) {
    for (auto& [began, ended] : counted.events) {
      ended.synchronize();
      counted.step.exposed += Nanoseconds(std::llround(began.elapsedTime(ended) * 1e6));
    }
    steps.push_back(counted.step);
  }
  steps_.clear();
  return steps;
}

}  // namespace dtrain::train
