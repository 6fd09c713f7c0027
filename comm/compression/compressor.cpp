// A compressor of gradients, and what all codecs share: memory for collectives, and error feedback.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <utility>

#include "compression/codec.h"
#include "compression/kernels.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {

CodecMemory::CodecMemory(CompressionPeers& peers, std::size_t bytes) {
  if (bytes > 0) buffer_ = peers.allocate(bytes);
}

std::byte* CodecMemory::claim_bytes(std::size_t bytes) {
  const std::size_t size = buffer_ ? buffer_->bytes().size() : 0;
  if (used_ + rounded(bytes) > size) {
    throw CommError("gradient compression: " + std::to_string(bytes) + " bytes do not fit into what is left of " +
                        std::to_string(size),
                    "exchange each gradient once a step, and finish a step before the next");
  }
  std::byte* const place = buffer_->bytes().data() + used_;
  used_ += rounded(bytes);
  return place;
}

std::vector<bool> float32_tensors(std::span<const GradientTensor> tensors) {
  std::vector<bool> result;
  for (const GradientTensor& tensor : tensors) result.push_back(tensor.type == DataType::kFloat32);
  return result;
}

Residuals::Residuals(std::span<const GradientTensor> tensors, const std::vector<bool>& keep)
    : tensors_(tensors), places_(tensors.size(), nullptr) {
  const auto padded = [](std::size_t elements) {
    return CodecMemory::rounded(elements * sizeof(float)) / sizeof(float);
  };
  std::size_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) total += keep[i] ? padded(tensors[i].elements) : 0;
  memory_.reset(static_cast<float*>(std::calloc(std::max<std::size_t>(total, 1), sizeof(float))));
  if (!memory_) throw std::bad_alloc();
  std::size_t used = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!keep[i]) continue;
    places_[i] = memory_.get() + used;
    used += padded(tensors[i].elements);
  }
}

void Residuals::give_back(std::size_t tensor) {
  if (!places_[tensor]) return;
  const GradientTensor& given = tensors_[tensor];
  kernels::add_scaled(static_cast<const float*>(given.data), places_[tensor], given.elements, 1);
  std::memset(given.data, 0, given.elements * sizeof(float));
}

std::vector<std::pair<std::string, std::span<float>>> Residuals::places() {
  std::vector<std::pair<std::string, std::span<float>>> result;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i]) result.emplace_back("error/" + tensors_[i].name, std::span(places_[i], tensors_[i].elements));
  }
  return result;
}

namespace {

// The ranks of a communicator.
class AllRanks final : public CompressionPeers {
 public:
  explicit AllRanks(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  std::unique_ptr<Buffer> allocate(std::size_t bytes) override { return communicator_.allocate(bytes); }
  Work all_reduce(void* data, std::size_t count, DataType type, const ReduceOptions& options) override {
    return communicator_.all_reduce(data, count, type, options);
  }
  Work all_gather(const void* in, void* out, std::size_t count, DataType type, int bucket) override {
    return communicator_.all_gather(in, out, count, type, bucket);
  }

 private:
  Communicator& communicator_;
};

// An exchange without compression.
class PlainExchange final : public Exchange {
 public:
  PlainExchange(CompressionPeers& peers, const GradientBucket& bucket, double scale)
      : peers_(peers), bucket_(bucket), scale_(scale) {}
  Work next() override {
    if (std::exchange(sent_, true)) return {};
    return peers_.all_reduce(bucket_.data, bucket_.count, bucket_.type,
                             {.post_scale = scale_, .bucket = bucket_.number});
  }
  bool only_local() const override { return sent_; }

 private:
  CompressionPeers& peers_;
  GradientBucket bucket_;
  double scale_;
  bool sent_ = false;
};

const CompressionState* find_state(std::span<const CompressionState> state, const std::string& name) {
  const auto found = std::ranges::find(state, name, &CompressionState::name);
  return found == state.end() ? nullptr : &*found;
}

}  // namespace

// ExchangeWork is outside the unnamed namespace because a GradientCompressor's members must not be of types from there.
class ExchangeWork;

// The exchanges of one compressor.
struct ExchangeFlow {
  CodecContext context;
  std::unique_ptr<Codec> codec;                         // null: everything travels as it is
  std::deque<std::shared_ptr<ExchangeWork>> under_way;  // in the order they were begun
  SystemClock clock;
  std::int64_t steps = 0;

  void advance_all(bool writes);
};

class ExchangeWork final : public WorkState {
 public:
  // `counted`: the step is compressed. `gathers`: the operations are all_gathers, otherwise all_reduces.
  ExchangeWork(ExchangeFlow& flow, std::unique_ptr<Exchange> exchange, const GradientBucket& bucket, bool counted,
               bool gathers)
      : flow_(flow), exchange_(std::move(exchange)), counted_(counted), gathers_(gathers) {
    timing_.enqueued = flow.clock.monotonic();
    const double plain = sent(static_cast<double>(bucket.count * size_of(bucket.type)), /*gathered=*/false);
    if (counted && bucket.type != DataType::kFloat32) flow.context.statistics.plain_bytes += plain;
    if (counted) flow.context.statistics.uncompressed_bytes += plain;
    step();
  }

  bool test() override {
    if (!done_ && operation_.test() && exchange_->only_local()) step();
    return done_;
  }
  void wait() override {
    while (!done_) flow_.advance_all(/*writes=*/true);
  }
  // Waits for the operation under way, then runs the next stage.
  void advance(bool writes) {
    if (done_) return;
    operation_.wait();
    if (!writes && exchange_->only_writes()) {
      done_ = true;
    } else {
      step();
    }
  }
  WorkTiming timing() const override { return timing_; }
  std::size_t bytes() const override { return bytes_; }
  std::uint64_t sequence() const override { return sequence_; }
  bool done() const { return done_; }

 private:
  double sent(double bytes, bool gathered) const {
    const auto n = static_cast<double>(flow_.context.world());
    return bytes * (gathered ? 1 : 2) * (n - 1) / n;
  }
  void step();

  ExchangeFlow& flow_;
  std::unique_ptr<Exchange> exchange_;
  bool counted_;
  bool gathers_;
  Work operation_;
  WorkTiming timing_;
  std::size_t bytes_ = 0;
  std::uint64_t sequence_ = 0;
  bool done_ = false;
};

void ExchangeWork::step() {
  if (operation_) {
    const WorkTiming now = operation_.timing();
    if (timing_.started.count() == 0) timing_.started = now.started;
    timing_.exposed += now.exposed;
  }
  const Nanoseconds began = flow_.clock.monotonic();
  const bool first = !operation_;
  operation_ = exchange_->next();
  const Nanoseconds ended = flow_.clock.monotonic();
  CompressionStatistics& statistics = flow_.context.statistics;
  Nanoseconds coding = ended - began;
  if (operation_) {
    coding = std::max(Nanoseconds{0}, coding - operation_.timing().exposed);  // issuing it is the operation's own time
    bytes_ += operation_.bytes();
    if (counted_) statistics.sent_bytes += sent(static_cast<double>(operation_.bytes()), gathers_);
    if (first) sequence_ = operation_.sequence();
  }
  timing_.exposed += coding;
  if (counted_) statistics.coding += coding;
  if (operation_) return;
  timing_.ended = ended;
  done_ = true;
}

void ExchangeFlow::advance_all(bool writes) {
  // The exchanges advance stage by stage, in the order in which they were begun, which is the same on every rank.
  for (const auto& exchange : under_way) exchange->advance(writes);
  std::erase_if(under_way, [](const auto& exchange) { return exchange->done(); });
}

std::unique_ptr<Codec> NoCompression::make_codec(CodecContext&) const {
  return nullptr;
}

CodecMaker codec_maker(const Compression& compression) {
  return std::visit([](const auto& settings) { return codec_maker(settings); }, compression);
}

struct GradientCompressor::Impl : ExchangeFlow {
  Impl(const CompressionOptions& options, std::vector<GradientTensor> tensors, CompressionPeers& peers)
      : ExchangeFlow{CodecContext{std::move(tensors), peers, options, {}, nullptr}, nullptr, {}, {}, 0} {}
  std::unique_ptr<CompressionPeers> own_peers;  // null: the caller's
};

GradientCompressor::GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                                       CompressionPeers& peers) {
  impl_ = std::make_unique<Impl>(options, std::move(tensors), peers);
  std::unique_ptr<Codec> codec = options.codec.make ? options.codec.make(impl_->context) : nullptr;  // checks, too
  if (peers.world_size() > 1) impl_->codec = std::move(codec);
  impl_->context.memory = std::make_unique<CodecMemory>(peers, impl_->codec ? impl_->codec->staging_bytes() : 0);
}

GradientCompressor::GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                                       std::unique_ptr<CompressionPeers> peers)
    : GradientCompressor(options, std::move(tensors), *peers) {
  impl_->own_peers = std::move(peers);
}

GradientCompressor::GradientCompressor(const CompressionOptions& options, std::vector<GradientTensor> tensors,
                                       Communicator& communicator)
    : GradientCompressor(options, std::move(tensors), std::make_unique<AllRanks>(communicator)) {}

GradientCompressor::~GradientCompressor() = default;

bool GradientCompressor::compressing() const {
  const CompressionOptions& options = impl_->context.options;
  if (!impl_->codec || impl_->steps < options.codec.warmup_steps) return false;
  const std::int64_t since = impl_->steps - options.first_compared;
  return since < 0 || since % 2 == 1 || since >= 2 * options.compared_steps;
}

Work GradientCompressor::exchange(const GradientBucket& bucket, double scale) {
  Impl& impl = *impl_;
  std::unique_ptr<Exchange> exchange;
  const bool compressing = this->compressing();
  if (compressing && bucket.type == DataType::kFloat32) exchange = impl.codec->begin(bucket, scale);
  const bool gathers = exchange && impl.context.options.codec.gathers;
  if (!exchange) exchange = std::make_unique<PlainExchange>(impl.context.peers, bucket, scale);
  auto work = std::make_shared<ExchangeWork>(impl, std::move(exchange), bucket, compressing, gathers);
  impl.under_way.push_back(work);
  return Work(work);
}

bool GradientCompressor::advance(bool writes) {
  impl_->advance_all(writes);
  return !impl_->under_way.empty();
}

void GradientCompressor::end_step() {
  if (compressing()) ++impl_->context.statistics.compressed_steps;
  ++impl_->context.statistics.steps;
  ++impl_->steps;
  impl_->under_way.clear();
  impl_->context.memory->reset();
}

void GradientCompressor::not_applied(std::size_t tensor) {
  if (compressing()) impl_->codec->not_applied(tensor);
}

std::vector<CompressionState> GradientCompressor::save_state() const {
  std::vector<CompressionState> state;
  // Two halves, so that float holds any number of steps exactly.
  const auto steps = static_cast<std::uint64_t>(impl_->steps);
  state.push_back({"steps", {static_cast<float>(steps >> 24), static_cast<float>(steps & 0xffffff)}});
  if (!impl_->codec) return state;
  for (const auto& [name, place] : impl_->codec->state()) state.push_back({name, {place.begin(), place.end()}});
  return state;
}

void GradientCompressor::load_state(std::span<const CompressionState> state) {
  std::vector<std::pair<std::string, std::span<float>>> places;
  if (impl_->codec) places = impl_->codec->state();
  std::array<float, 2> steps{};
  places.emplace_back("steps", std::span<float>(steps));
  for (const auto& [name, place] : places) {
    const CompressionState* const found = find_state(state, name);
    if (!found || found->values.size() != place.size()) {
      throw CommError("the compression state has " + (found ? std::to_string(found->values.size()) : "no") +
                          " values of '" + name + "', not " + std::to_string(place.size()),
                      "restore it into the model and with the compression it was saved with");
    }
  }
  if (state.size() != places.size()) {
    throw CommError(
        "the compression state has " + std::to_string(state.size()) + " entries, not " + std::to_string(places.size()),
        "restore it into the model and with the compression it was saved with");
  }
  for (const auto& [name, place] : places) {
    const auto& values = find_state(state, name)->values;
    std::copy(values.begin(), values.end(), place.begin());
  }
  if (impl_->codec) impl_->codec->state_changed();
  impl_->steps = (static_cast<std::int64_t>(steps[0]) << 24) + static_cast<std::int64_t>(steps[1]);
}

const CompressionStatistics& GradientCompressor::statistics() const {
  return impl_->context.statistics;
}

const CompressionOptions& GradientCompressor::options() const {
  return impl_->context.options;
}

}  // namespace dtrain::comm
